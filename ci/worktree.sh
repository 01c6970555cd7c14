# shellcheck shell=bash disable=SC2034
# Sourced by the scripts that make commits of patches, after lib.sh: Git without settings, patches and commits, scratch
# worktrees of taichi/.

SCRATCH=$BUILD/series.$$
# Beside build/taichi, and as deep: ccache's keys hold paths relative to the folder of a compilation, so
# each of these trees finds what another one compiled.
BISECT_TREE=$BUILD/taichi-bisect
MASTER_TREE=$BUILD/taichi-master
# The branch of the pull request.
PR_TREE=$BUILD/pr/taichi

# Git without anybody's settings: they must not change a byte of a patch.
plain_git() {
  GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_ATTR_NOSYSTEM=1 \
    GIT_COMMITTER_NAME="Taichi DLPack series" GIT_COMMITTER_EMAIL=series@example.invalid \
    git -c safe.directory='*' -c core.autocrlf=false -c core.eol=lf -c core.hooksPath=/dev/null \
    -c core.attributesFile=/dev/null -c commit.gpgSign=false -c am.threeWay=false \
    -c am.keepcr=true -c apply.whitespace=nowarn -c mailinfo.scissors=false -c mailinfo.quotedCr=nowarn \
    -c submodule.recurse=false -c advice.detachedHead=false -c rebase.autoStash=false \
    -c diff.algorithm=myers -c diff.context=3 -c diff.interHunkContext=0 -c diff.noprefix=false \
    -c diff.mnemonicPrefix=false -c diff.suppressBlankEmpty=false -c diff.indentHeuristic=true \
    -c i18n.logOutputEncoding=UTF-8 -c format.encodeEmailHeaders=false "$@"
}

# Scratch trees are removed on every exit, Ctrl-C included; those of a killed
# run by the next one.
remove_worktree() {
  git -C "$SOURCE" worktree remove --force "$1" 2>/dev/null || true
  rm -rf "$1"
}
cleanup() {
  local status=$?
  if [ -d "$SCRATCH" ]; then
    remove_worktree "$SCRATCH/tree"
    rm -rf "$SCRATCH"
  fi
  exit "$status"
}
trap_signals() {
  trap 'exit 130' INT
  trap 'exit 143' TERM
}
start_scratch() {
  local old
  trap cleanup EXIT
  trap_signals
  for old in "$BUILD"/series.*; do
    [ -d "$old" ] || continue
    kill -0 "${old##*.}" 2>/dev/null && continue
    remove_worktree "$old/tree"
    rm -rf "$old"
  done
  git -C "$SOURCE" worktree prune
  mkdir -p "$SCRATCH"
}

# format_patches REPOSITORY RANGE DIR: the commits as patch files, which hold nothing that another Git would write
# otherwise.
format_patches() {
  mkdir -p "$3"
  plain_git -C "$1" format-patch --quiet --keep-subject --no-stat --no-signature --zero-commit --full-index --no-renames \
    --no-thread --no-attach --no-color --no-ext-diff --no-textconv --no-notes --no-base --unified=3 \
    --src-prefix=a/ --dst-prefix=b/ -o "$3" "$2" || die "the commits $2 cannot be exported; git's message is above"
}

list_patches() { find "$1" -maxdepth 1 -name '[0-9]*.patch' | LC_ALL=C sort; }

# replay BASE DIR: sets REPLAYED to the commit that the patches of DIR give on BASE.
replay() {
  local patches
  remove_worktree "$SCRATCH/tree"
  plain_git -C "$SOURCE" worktree add --quiet --detach "$SCRATCH/tree" "$1" ||
    die "no worktree can be made of $1 in $SCRATCH; git's message is above"
  mapfile -t patches < <(list_patches "$2")
  if [ ${#patches[@]} -gt 0 ]; then
    plain_git -C "$SCRATCH/tree" am --quiet --keep-non-patch --keep-cr --committer-date-is-author-date \
      "${patches[@]}" >&2 || die "the patch named above does not apply, fuzz is not allowed; mend it in $2"
  fi
  REPLAYED=$(git -C "$SCRATCH/tree" rev-parse HEAD)
}

is_worktree() {
  [ -e "$1/.git" ] || return 1
  # The links between a worktree and its repository are absolute: a clone that
  # was moved needs them renewed.
  git -C "$SOURCE" worktree repair "$1" >/dev/null 2>&1 || true
  [ "$(git -C "$1" rev-parse --path-format=absolute --git-common-dir 2>/dev/null)" = \
    "$(git -C "$SOURCE" rev-parse --path-format=absolute --git-common-dir)" ]
}

# put_worktree DIR COMMIT: a tree of ours at COMMIT, whatever an interrupted run left there. Files that do
# not differ keep their time stamps, and what was built stays: the next build is incremental.
put_worktree() {
  if is_worktree "$1"; then
    plain_git -C "$1" checkout --quiet --force --detach "$2"
  else
    remove_worktree "$1"
    plain_git -C "$SOURCE" worktree add --quiet --detach "$1" "$2"
  fi || die "no worktree of $2 can be made in $1; git's message is above"
}

# operation_in DIR: is a rebase or am going on there?
operation_in() {
  local dir
  dir=$(git -C "$1" rev-parse --path-format=absolute --git-dir)
  [ -d "$dir/rebase-apply" ] || [ -d "$dir/rebase-merge" ]
}

# fetch_upstream REFSPEC
fetch_upstream() {
  local depth=()
  # --depth would cut off the history of a full clone.
  [ "$(git -C "$SOURCE" rev-parse --is-shallow-repository)" = false ] || depth=(--depth 1)
  git -C "$SOURCE" fetch --quiet "${depth[@]}" origin "$1"
}

# fetch_master: the commit of upstream's newest master. No branch of taichi/ moves.
fetch_master() {
  fetch_upstream refs/heads/master ||
    die "upstream's master cannot be fetched, git's message is above; is there a network? Ask with: git -C taichi ls-remote origin"
  git -C "$SOURCE" rev-parse FETCH_HEAD
}

# rebase_series DIR COMMIT: the series that was replayed in DIR, by three-way merges, onto COMMIT.
rebase_series() { plain_git -C "$1" rebase --quiet --onto "$2" "$(upstream commit)"; }
