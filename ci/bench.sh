#!/usr/bin/env bash
# make bench: what an exchange costs, against NumPy, torch, JAX, Warp, tvm-ffi, Quadrants and GsTaichi.
#   make bench [QUICK=1] [GUARD=1] [DOCS=1]
#   make bench BUILDS=1 [COLD=1] [OPTIONS="options of make wheel"]
#   QUICK=1    two sizes of arrays and fewer samples, in under two minutes; docs/ stays as it is
#   GUARD=1    fails when a ratio is beyond twice its limit in bench/limits.json
#   DOCS=1     writes docs/benchmarks.md and docs/img also after a quick run; DOCS=0 never
#   BUILDS=1   measures how long the wheels take to build, and nothing else: the source wheel with a warm
#              ccache, from no compiled files; with COLD=1 also with the cache ignored, which takes long
# Takes the newest wheels in dist/, source and fast, or the one that is there. Results: build/bench.
set -euo pipefail
# shellcheck source=ci/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# The results, also those of a run that is not for docs/.
OUT=$BUILD/bench

leave_out() {
  say "left out: $1: $2"
  left_out+=(--left-out "$1=$2")
}

# add_wheel NAME VERSION VERB: a worker for the newest wheel of that version.
add_wheel() {
  local name=$1 wheel venv=$BUILD/venv-bench-$1
  wheel=$(newest_wheel "$2" "$python")
  if [ -z "$wheel" ]; then
    leave_out "$name" "dist/ has no taichi-$2 wheel for this Python; build it with: make $3"
    return
  fi
  warn_if_outdated "$wheel" "$3"
  make_venv --on-top "$venv" "$peers"
  install_wheel_into "$venv" "$wheel"
  workers+=(--worker "$name=$venv/bin/python")
}

# add_peer NAME: a worker with a peer that cannot share an environment with Taichi.
add_peer() {
  local name=$1 venv=$BUILD/venv-bench-$1
  if flag QUICK && [ ! -e "$venv/.stamp" ]; then
    leave_out "$name" "the quick run installs no peers; a full one does: make bench"
    return
  fi
  # A subshell, since make_venv ends the shell where it fails.
  if ! (make_venv --on-top "$venv" "$peers" "$ROOT/requirements/bench-$name.txt"); then
    leave_out "$name" "it cannot be installed here, pip's message is above; is the package index there?"
    return
  fi
  workers+=(--worker "$name=$venv/bin/python")
}

prepare_environments() {
  make_venv "$BUILD/venv-bench" "$python" "$ROOT/requirements/bench.txt"
  make_venv --on-top "$BUILD/venv-peers" "$python" "$ROOT/requirements/test.txt"
  peers=$BUILD/venv-peers/bin/python
  add_wheel source "$(wheel_version)" wheel
  add_wheel fast "$(wheel_version).fast" wheel-fast
  [ ${#workers[@]} -gt 0 ] || die "no wheel to measure; build one with: make wheel-fast, or make wheel"
  add_peer quadrants
  add_peer gstaichi
}

bench() { PYTHONPATH=$ROOT PYTHONSAFEPATH=1 "$BUILD/venv-bench/bin/python" -m bench "$@" --out "$OUT"; }

# The command as the reader types it.
command_line() {
  local name
  printf 'make bench'
  for name in QUICK GUARD; do ! flag "$name" || printf ' %s=1' "$name"; done
}

# wants_docs: a full run is for docs/, unless told otherwise.
wants_docs() {
  [ -n "${DOCS:-}" ] || { ! flag QUICK && return; }
  flag DOCS
}

measure_and_report() {
  local plan=full docs=()
  ! flag QUICK || plan=quick
  ! wants_docs || docs=(--docs)
  say "measuring, a round at a time; Ctrl-C ends it and leaves earlier results as they are"
  bench measure --plan "$plan" --command "$(command_line)" "${workers[@]}" "${left_out[@]+"${left_out[@]}"}"
  bench report "${docs[@]+"${docs[@]}"}"
  ! flag GUARD || bench guard || die "the guard found ratios beyond twice their limit; on a busy machine try again first"
}

# timed NAME COMMAND: runs it, notes a line for the table of docs/benchmarks.md.
timed() {
  local name=$1 began
  shift
  say "$*"
  began=$(date +%s)
  "$@" >"$OUT/build.log" 2>&1 || die "$* failed; its log is $OUT/build.log"
  lines+=("| $name | $(($(date +%s) - began)) s |")
}

# The cold build also fills the cache that the warm one reads.
measure_source_builds() {
  if ! have_source; then
    say "left out: the source wheel: $(source_is_missing)"
    return
  elif ! command -v ccache >/dev/null; then
    say "left out: the source wheel, since without ccache each build is a cold one; install it with: apt-get install ccache"
    return
  fi
  if flag COLD; then
    rm -rf "$TREE/_skbuild"
    CCACHE_RECACHE=1 timed "source wheel, cold" "$ROOT/build.sh" wheel "$@"
  fi
  rm -rf "$TREE/_skbuild"
  timed "source wheel, warm" "$ROOT/build.sh" wheel "$@"
}

# measure_builds OPTIONS: those of make wheel.
measure_builds() {
  local lines=()
  mkdir -p "$OUT"
  timed "fast wheel" "$ROOT/build.sh" wheel-fast
  measure_source_builds "$@"
  say "whole commands, with environments and smoke tests:"
  printf '%s\n' "${lines[@]}"
}

python=$(pick_python)
export PYTHONDONTWRITEBYTECODE=1
unset VENV PYTHON
check_flags QUICK GUARD DOCS BUILDS COLD
workers=() left_out=() peers=
if flag BUILDS; then
  measure_builds "$@"
else
  [ $# -eq 0 ] ||
    die "got '$1', wanted settings, as in: make bench QUICK=1; options are those of make wheel, for make bench BUILDS=1"
  prepare_environments
  measure_and_report
fi
