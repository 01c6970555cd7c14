#!/usr/bin/env bash
# make apply: the patched tree in build/taichi, in which each patch is a commit.
# make export: the commits of build/taichi into patches/, and the hash that they give into UPSTREAM.
# make check: are the patches whole? Exports again, and compares byte for byte.
# make bump TAG=v...: moves the series to another release of Taichi.
#
#   ci/series.sh apply|export|check|bump|ready|release
#
#   FORCE=1   apply: also over commits and changes in build/taichi that are in no patch
#   ready     build/taichi is there, for what reads it; release: nothing in it would be lost, for clean
#
# The series is replayed in a scratch worktree with a fixed committer, so the
# same patches always give the same commit, and build/taichi only ever moves
# from one whole commit to another. Two refs of that worktree remember where
# the series starts and ends.
set -euo pipefail
# shellcheck source=ci/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=ci/worktree.sh
source "$ROOT/ci/worktree.sh"

BASE_REF=refs/worktree/series/base
HEAD_REF=refs/worktree/series/head
BUMP_TREE=$BUILD/bump

same_patches() {
  diff -q <(cd "$1" && list_patches .) <(cd "$2" && list_patches .) >/dev/null &&
    list_patches "$1" | while read -r patch; do cmp -s "$patch" "$2/${patch##*/}" || exit 1; done
}

in_tree() { git -C "$TREE" "$@"; }

is_our_worktree() { is_worktree "$TREE"; }

need_tree() {
  is_our_worktree || die "there is no patched tree in build/taichi; make it with: make apply"
}

series_base() { in_tree rev-parse --verify --quiet "$BASE_REF" || upstream commit; }

changes_in_tree() { in_tree status --porcelain --ignore-submodules=all; }

# Commits that only build/taichi has: HEAD is neither what `apply` or `export`
# left there nor a known state of the series.
has_unexported_commits() {
  local head
  head=$(in_tree rev-parse HEAD)
  [ "$head" != "$(series_base)" ] && [ "$head" != "$(upstream patched)" ] &&
    [ "$head" != "$(in_tree rev-parse --verify --quiet "$HEAD_REF" || true)" ]
}

# set_aside WHAT: refuses to lose work in build/taichi. FORCE=1 keeps it where git can find it.
set_aside() {
  if operation_in "$TREE"; then
    flag FORCE || die "a rebase or am is going on in build/taichi; end it there with: git rebase --continue" \
      "(or --abort), or run $1 again with FORCE=1 to abort it"
    in_tree rebase --abort 2>/dev/null || in_tree am --abort
  fi
  if [ -n "$(changes_in_tree)" ]; then
    flag FORCE || die "build/taichi has changes that are not committed; keep them with: git -C build/taichi" \
      "commit, then make export; or run $1 again with FORCE=1 to stash them"
    in_tree -c user.name=series -c user.email=series@example.invalid \
      stash push --quiet --include-untracked --message "set aside by make $1"
    say "changes of build/taichi are stashed; get them back there with: git stash pop"
  fi
  if has_unexported_commits; then
    flag FORCE || die "build/taichi has commits that are not exported; keep them with: make export; or run" \
      "$1 again with FORCE=1 to leave them"
    say "commits left behind in build/taichi: $(in_tree rev-parse HEAD); see them there with: git log HEAD@{1}"
  fi
}

# move_tree COMMIT BASE: build/taichi at COMMIT, not interrupted half way. Files
# that do not differ keep their time stamps: the next build is incremental.
move_tree() {
  trap '' INT TERM
  if is_our_worktree; then
    plain_git -C "$TREE" checkout --quiet --detach "$1"
  else
    plain_git -C "$SOURCE" worktree add --quiet --detach "$TREE" "$1"
  fi
  in_tree update-ref "$HEAD_REF" "$1"
  in_tree update-ref "$BASE_REF" "$2"
  trap_signals
}

apply() {
  local base
  fetch_source
  start_scratch
  if is_our_worktree; then
    set_aside apply
  elif [ -e "$TREE" ]; then
    die "build/taichi is not a worktree of taichi/; move it away, then run: make apply"
  fi
  base=$(upstream commit)
  replay "$base" "$PATCHES"
  move_tree "$REPLAYED" "$base"
  [ "$REPLAYED" = "$(upstream patched)" ] ||
    warn "the series gives $REPLAYED, UPSTREAM expects $(upstream patched); after a change to patches/ run: make export"
  say "build/taichi is the patched tree, $(list_patches "$PATCHES" | wc -l) patches on $(upstream tag): $REPLAYED"
}

# ready: build/taichi is there to be built: the series, or the work in progress.
ready() {
  if is_our_worktree && { operation_in "$TREE" || [ -n "$(changes_in_tree)" ] || has_unexported_commits; }; then
    say "build/taichi has work that is not exported: it is built as it stands"
    return
  fi
  apply
}

# publish DIR UPSTREAM: swaps the exported patches and the new UPSTREAM in.
# Interrupts wait until both are whole.
publish() {
  local other
  find "$PATCHES" -mindepth 1 -maxdepth 1 ! -name '[0-9]*.patch' -print0 2>/dev/null |
    while IFS= read -r -d '' other; do cp -Rp "$other" "$1/"; done
  trap '' INT TERM
  [ ! -d "$PATCHES" ] || mv "$PATCHES" "$SCRATCH/patches.old"
  mv "$1" "$PATCHES"
  cp "$2" "$UPSTREAM_FILE.new"
  mv "$UPSTREAM_FILE.new" "$UPSTREAM_FILE"
  trap_signals
}

# write_series BASE HEAD [TAG]: the commits BASE..HEAD become patches/ and
# UPSTREAM, once a replay has given the same files again.
write_series() {
  local merges
  merges=$(git -C "$SOURCE" rev-list --merges "$1..$2")
  [ -z "$merges" ] || die "the series has a merge, a patch cannot hold it: $merges; remove it with git rebase"
  format_patches "$SOURCE" "$1..$2" "$SCRATCH/first"
  replay "$1" "$SCRATCH/first"
  format_patches "$SOURCE" "$1..$REPLAYED" "$SCRATCH/second"
  same_patches "$SCRATCH/first" "$SCRATCH/second" ||
    die "the export does not survive a round trip: compare git show of $2 and of $REPLAYED"
  cp "$UPSTREAM_FILE" "$SCRATCH/UPSTREAM"
  set_upstream patched "$REPLAYED" "$SCRATCH/UPSTREAM"
  if [ -n "${3:-}" ]; then
    set_upstream tag "$3" "$SCRATCH/UPSTREAM"
    set_upstream commit "$1" "$SCRATCH/UPSTREAM"
  fi
  publish "$SCRATCH/second" "$SCRATCH/UPSTREAM"
}

export_series() {
  local base head
  need_source
  need_tree
  ! operation_in "$TREE" || die "a rebase or am is going on in build/taichi; end it there with: git rebase --continue"
  start_scratch
  base=$(series_base)
  head=$(in_tree rev-parse HEAD)
  [ "$base" = "$(upstream commit)" ] || die "build/taichi starts at $base, UPSTREAM names $(upstream commit);" \
    "set one right: keep a note of $head, then run: make apply FORCE=1"
  in_tree merge-base --is-ancestor "$base" "$head" ||
    die "HEAD of build/taichi does not descend from $(upstream tag); rebase it with: git -C build/taichi rebase $base"
  write_series "$base" "$head"
  # The replayed commits have the same content; only the committer differs.
  # Index and files stay, and so do changes that are not committed.
  in_tree reset --quiet --soft "$REPLAYED"
  in_tree update-ref "$HEAD_REF" "$REPLAYED"
  in_tree update-ref "$BASE_REF" "$base"
  [ -z "$(changes_in_tree)" ] || warn "changes in build/taichi that are not committed were left out"
  say "patches/ has $(list_patches "$PATCHES" | wc -l) patches, UPSTREAM expects $REPLAYED; next: make check"
}

check_headers() {
  local tags=$SOURCE/misc/prtags.json python
  python=$(pick_python)
  [ -f "$tags" ] || tags=
  "$python" "$ROOT/ci/check_patches.py" "$PATCHES" ${tags:+--tags "$tags"}
}

check_round_trip() {
  local failed=0
  replay "$(upstream commit)" "$PATCHES"
  format_patches "$SOURCE" "$(upstream commit)..$REPLAYED" "$SCRATCH/again"
  if ! same_patches "$PATCHES" "$SCRATCH/again"; then
    diff -ru --exclude='[!0-9]*' "$PATCHES" "$SCRATCH/again" >&2 || true
    warn "a new export differs from patches/ as shown above; write it with: make apply && make export"
    failed=1
  fi
  if [ "$REPLAYED" != "$(upstream patched)" ]; then
    warn "the series gives $REPLAYED, UPSTREAM has patched=$(upstream patched); write it with: make apply && make export"
    failed=1
  fi
  return "$failed"
}

check_source_is_clean() {
  if [ "$(git -C "$SOURCE" rev-parse HEAD)" != "$(upstream commit)" ]; then
    warn "taichi/ is not at $(upstream tag); put it there with: git -C taichi checkout --detach $(upstream commit)"
    return 1
  fi
  if [ -n "$(git -C "$SOURCE" status --porcelain)" ]; then
    warn "taichi/ has changes, they belong into build/taichi; see them with: git -C taichi status"
    return 1
  fi
}

check() {
  local failed=0
  check_headers || failed=1
  if ! have_source; then
    [ "$failed" = 0 ] || exit 1
    printf 'incomplete: only the headers were checked, %s\n' "$(source_is_missing)" >&2
    exit "$EXIT_INCOMPLETE"
  fi
  start_scratch
  check_source_is_clean || failed=1
  check_round_trip || failed=1
  if is_our_worktree && has_unexported_commits; then
    warn "build/taichi has commits that are not in patches/; write them with: make export"
  fi
  [ "$failed" = 0 ] || die "the series is not whole; the remedies are above"
  say "the series is whole: $(list_patches "$PATCHES" | wc -l) patches on $(upstream tag), byte for byte, $REPLAYED"
}

fetch_tag() {
  local tag=$1
  git -C "$SOURCE" rev-parse --verify --quiet "refs/tags/$tag^{commit}" >/dev/null ||
    fetch_upstream "refs/tags/$tag:refs/tags/$tag" ||
    die "upstream has no tag '$tag', or it cannot be reached; list its tags with: git -C taichi ls-remote --tags origin"
  git -C "$SOURCE" rev-parse "refs/tags/$tag^{commit}"
}

conflict_help() {
  cat >&2 <<TEXT
error: the series does not apply to $1 as it is. In build/bump, for each conflict:
  git status; mend the files; git add FILES; git rebase --continue
then finish with:  make bump TAG=$1
or give up with:   git -C taichi worktree remove --force ../build/bump
TEXT
  exit 1
}

# begin_bump COMMIT: the series on the old tag, then rebased onto COMMIT.
begin_bump() {
  replay "$(upstream commit)" "$PATCHES"
  plain_git -C "$SOURCE" worktree add --quiet --detach "$BUMP_TREE" "$REPLAYED" ||
    die "no worktree can be made in build/bump; git's message is above"
  git -C "$BUMP_TREE" update-ref "$BASE_REF" "$1"
  rebase_series "$BUMP_TREE" "$1"
}

bump() {
  local tag=${TAG:-} new
  [ -n "$tag" ] || die "bump needs the new tag: make bump TAG=v..."
  fetch_source
  [ -z "$(git -C "$SOURCE" status --porcelain)" ] || die "taichi/ has changes; see them with: git -C taichi status"
  if is_our_worktree; then set_aside "bump TAG=$tag"; fi
  new=$(fetch_tag "$tag")
  start_scratch
  if [ -e "$BUMP_TREE/.git" ]; then
    [ "$(git -C "$BUMP_TREE" rev-parse "$BASE_REF")" = "$new" ] ||
      die "build/bump holds a move to another tag; give it up with: git -C taichi worktree remove --force ../build/bump"
    ! operation_in "$BUMP_TREE" || conflict_help "$tag"
  else
    begin_bump "$new" || conflict_help "$tag"
  fi
  write_series "$new" "$(git -C "$BUMP_TREE" rev-parse HEAD)" "$tag"
  plain_git -C "$SOURCE" checkout --quiet --detach "$new"
  remove_worktree "$BUMP_TREE"
  if is_our_worktree; then move_tree "$REPLAYED" "$new"; fi
  say "the series is on $tag: $REPLAYED; next: make check, then git add taichi patches UPSTREAM"
}

# release: build/taichi may be deleted after this.
release() {
  local tree
  have_source || return 0
  if is_our_worktree; then
    set_aside clean
    remove_worktree "$TREE"
  fi
  if [ -e "$BUMP_TREE/.git" ] && ! flag FORCE; then
    die "build/bump holds an unfinished move; finish it, or run clean again with FORCE=1"
  fi
  for tree in "$BUMP_TREE" "$BISECT_TREE" "$MASTER_TREE" "$PR_TREE"; do remove_worktree "$tree"; done
}

check_flags FORCE
case ${1:-} in
  apply | check | bump | ready | release) "$1" ;;
  export) export_series ;;
  *) die "usage: ci/series.sh apply|export|check|bump|ready|release" ;;
esac
