#!/usr/bin/env bash
# make pr: all that a pull request to upstream needs, in build/pr. Nothing is pushed.
#   make pr [FROM=tag|master] [FORK=name]
#   FROM=tag      the branch starts at the release that UPSTREAM names: works without a network, but a pull
#                 request to master also shows the commits that the release has and master lacks
#   FROM=master   at upstream's newest master, if the series applies to it: what upstream would merge
#   FORK=name     the GitHub account that has your fork, for the commands; TITLE="[Tag] ..." another title
# Makes build/pr/taichi, a worktree with the branch dlpack; pull-request.md, from docs/RFC.md and patches/README.md;
# commands.txt, what to type next.
set -euo pipefail
# shellcheck source=ci/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=ci/worktree.sh
source "$ROOT/ci/worktree.sh"

OUT=$BUILD/pr
BRANCH=dlpack
# What the last run made of the branch.
MADE_REF=refs/series/pr
# Upstream's repository, as .gitmodules names it: owner/name.
SLUG=$(git config --file "$ROOT/.gitmodules" submodule.taichi.url | sed 's|.*github.com/||; s|\.git$||')

# Work on the branch is not thrown away: names put on the commits, answers to a review.
keep_own_work() {
  local now
  ! flag FORCE || return 0
  now=$(git -C "$SOURCE" rev-parse --verify --quiet "refs/heads/$BRANCH") || return 0
  { [ "$now" = "$(git -C "$SOURCE" rev-parse --verify --quiet "$MADE_REF")" ] &&
    { [ ! -e "$PR_TREE/.git" ] || [ -z "$(git -C "$PR_TREE" status --porcelain)" ]; }; } ||
    die "build/pr/taichi, branch $BRANCH, has work that make pr did not put there; keep it under another name with:" \
      "git -C taichi branch NAME $BRANCH; or run make pr FORCE=1 to lose it"
}

# without_status DIR: the patches, in DIR, without our own trailer, which tells upstream nothing.
without_status() {
  local patch
  mkdir "$1"
  list_patches "$PATCHES" | while read -r patch; do sed '/^Upstream-Status: /d' "$patch" >"$1/${patch##*/}"; done
}

# make_commits: sets `base` and `head`, the branch as it will be.
make_commits() {
  start_scratch
  without_status "$SCRATCH/patches"
  base=$(upstream commit)
  replay "$base" "$SCRATCH/patches"
  if [ "$from" = master ]; then
    base=$(fetch_master)
    rebase_series "$SCRATCH/tree" "$base" >"$SCRATCH/log" 2>&1 ||
      die "the series does not apply to upstream's master; see which patches conflict with: make check-master"
  fi
  head=$(git -C "$SCRATCH/tree" rev-parse HEAD)
}

# make_branch: a worktree of taichi/, so that it has the history which a fork may lack.
make_branch() {
  put_worktree "$PR_TREE" "$head"
  plain_git -C "$PR_TREE" checkout --quiet -B "$BRANCH"
  git -C "$SOURCE" update-ref "$MADE_REF" "$head"
}

# was_bisected: has `make bisect` built and tested each patch, as they are now?
was_bisected() {
  grep -qs "commit $(upstream patched)\.$" "$BUILD/bisect/report.md" && grep -qsx "Each step was built and tested\." "$BUILD/bisect/report.md"
}

write_text() {
  local tests bisected=()
  if was_bisected; then
    bisected=(--bisected)
  else
    warn "the text says nothing of the commits one by one, since they were not tested so; do it with: make bisect"
  fi
  mapfile -t tests < <(git -C "$SCRATCH/tree" diff --name-only "$base" "$head" -- tests)
  "$python" "$ROOT/ci/pull_request.py" "$ROOT/docs/RFC.md" "$PATCHES" --title "$title" \
    --checker "$SCRATCH/tree/misc/ci_check_pr_title.py" --tests "${tests[@]}" \
    "${bisected[@]+"${bisected[@]}"}" --size "$(git -C "$SCRATCH/tree" diff --shortstat "$base" "$head")"
}

write_commands() {
  cat <<TEXT
# Nothing is pushed yet. These commands do it; read build/pr/pull-request.md first.
cd $PR_TREE
# Your name on the commits, in place of the series':
git rebase --exec 'git commit --amend --no-edit --reset-author' $base
git push https://github.com/$fork/${SLUG#*/}.git $BRANCH
gh pr create --repo $SLUG --base master --head $fork:$BRANCH --title '$title' --body-file $OUT/pull-request.md
# Without gh: open this address, and paste the title and pull-request.md there.
# https://github.com/$SLUG/compare/master...$fork:${SLUG#*/}:$BRANCH?expand=1
TEXT
}

from=${FROM:-tag} fork=${FORK:-YOUR-NAME}
title=${TITLE:-[Lang] Share arrays with other libraries through DLPack}
case $from in tag | master) ;; *) die "FROM is '$from', wanted tag or master, as in: make pr FROM=master" ;; esac
[[ $title != *\'* ]] || die "the title has a ', which the commands cannot quote; write it without"
python=$(pick_python)
fetch_source
keep_own_work
make_commits
write_text >"$SCRATCH/pull-request.md"
write_commands >"$SCRATCH/commands.txt"
make_branch
mv "$SCRATCH/pull-request.md" "$SCRATCH/commands.txt" "$OUT/"
say "build/pr/taichi has the branch $BRANCH, $(git -C "$PR_TREE" rev-list --count "$base..$head") commits on $from ($base)"
say "nothing was pushed; read build/pr/pull-request.md, then type what build/pr/commands.txt says"
