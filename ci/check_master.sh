#!/usr/bin/env bash
# make check-master: does the series still apply to upstream's newest master, by three-way merges?
#   make check-master [BUILD=1] [OPTIONS="options of make wheel"]
#   BUILD=1    also builds its wheel, in build/taichi-master
# taichi/, build/taichi and patches/ stay as they are. Conflicts are named, not resolved: that is for
# `make bump`, once upstream has made a release.
set -euo pipefail
build=${BUILD:-0} # lib.sh has another meaning for the name
# shellcheck source=ci/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=ci/worktree.sh
source "$ROOT/ci/worktree.sh"

# describe COMMIT: its date and how far it is from the release, where the history is here.
describe() {
  local text counts
  text=$(git -C "$SOURCE" log -1 --format='%h of %cs' "$1")
  if [ "$(git -C "$SOURCE" rev-parse --is-shallow-repository)" = false ]; then
    counts=$(git -C "$SOURCE" rev-list --left-right --count "$(upstream commit)...$1")
    text+=", ${counts#*$'\t'} commits ahead of $(upstream tag), ${counts%$'\t'*} behind it"
  fi
  printf '%s\n' "$text"
}

# name_of COMMIT: the patch file that gave this commit of the series.
name_of() {
  local patches number
  mapfile -t patches < <(list_patches "$PATCHES")
  number=$(git -C "$SOURCE" rev-list --count "$(upstream commit)..$1")
  printf '%s\n' "${patches[number - 1]##*/}"
}

# note_conflict: where the rebase stands. One that stands still is no conflict.
note_conflict() {
  local commit files
  commit=$(git -C "$SCRATCH/tree" rev-parse --verify --quiet REBASE_HEAD) || commit=
  { [ -n "$commit" ] && [ "$commit" != "$stopped" ]; } || die "git cannot rebase the series; its messages: $(cat "$SCRATCH/log")"
  stopped=$commit
  files=$(git -C "$SCRATCH/tree" diff --name-only --diff-filter=U | paste -sd ' ')
  conflicts+=("$(name_of "$commit"): ${files:-no file, it became empty}")
}

# rebase_all COMMIT: the series onto COMMIT. A patch that conflicts is noted and left out, so that one run
# finds them all.
rebase_all() {
  ! rebase_series "$SCRATCH/tree" "$1" >"$SCRATCH/log" 2>&1 || return 0
  operation_in "$SCRATCH/tree" || die "git cannot rebase the series; its messages: $(cat "$SCRATCH/log")"
  while operation_in "$SCRATCH/tree"; do
    note_conflict
    plain_git -C "$SCRATCH/tree" rebase --skip >"$SCRATCH/log" 2>&1 || true
  done
}

tell_conflicts() {
  local line
  for line in "${conflicts[@]}"; do printf 'conflict: %s\n' "$line" >&2; done
  [ ${#conflicts[@]} -eq 1 ] || warn "a later conflict may come only from an earlier patch that was left out here"
  die "${#conflicts[@]} of $(list_patches "$PATCHES" | wc -l) patches conflict with upstream's master;" \
    "resolve them at upstream's next release, with: make bump TAG=v..."
}

flag BUILD "$build" || true # a wrong value is told before any work
fetch_source
master=$(fetch_master)
say "upstream's master: $(describe "$master")"
start_scratch
replay "$(upstream commit)" "$PATCHES"
conflicts=() stopped=
rebase_all "$master"
[ ${#conflicts[@]} -eq 0 ] || tell_conflicts
say "the series applies to it: $(list_patches "$PATCHES" | wc -l) patches, no conflict"
if flag BUILD "$build"; then
  put_worktree "$MASTER_TREE" "$(git -C "$SCRATCH/tree" rev-parse HEAD)"
  "$ROOT/ci/wheel.sh" --tree "$MASTER_TREE" "$@"
  say "and it builds"
else
  say "next: make check-master BUILD=1, which also builds it"
fi
