#!/usr/bin/env bash
# make bisect: the series step by step; each patch is formatted, builds, and passes its tests on those before it.
#   make bisect [FROM=n] [TO=n] [SUITE=quick|full|none] [BUILD=0] [OPTIONS="options of make wheel"]
#   FROM, TO   the first and the last patch, by number. Without FROM it goes on where an earlier run ended:
#              a step is not repeated that passed with the same patches and the same SUITE
#   SUITE      quick: Taichi's tests that the patches so far add or change, Python and C++
#              full: also Taichi's tests of what the series touches. none: only a kernel is run
#   BUILD=0    applies the patches and looks at their formatting, in a minute
# Builds in build/taichi-bisect. Leaves logs and report.md in build/bisect.
set -euo pipefail
build=${BUILD:-1} # lib.sh has another meaning for the name
# shellcheck source=ci/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=ci/worktree.sh
source "$ROOT/ci/worktree.sh"

OUT=$BUILD/bisect
BIN=$BUILD/venv-lint/bin
# What upstream_tests and newest_wheel look into.
TREE=$BISECT_TREE
DIST=$TREE/dist

# check_number NAME VALUE: is it the number of a patch?
check_number() {
  { [[ $2 =~ ^[1-9][0-9]*$ ]] && [ "$2" -le ${#patches[@]} ]; } ||
    die "$1 is '$2', wanted the number of a patch, 1 to ${#patches[@]}, as in: make bisect $1=3"
}

check_arguments() {
  case $suite in quick | full | none) ;; *) die "SUITE is '$suite', wanted quick, full or none" ;; esac
  flag BUILD "$build" || suite=none
  check_number FROM "$first"
  check_number TO "$last"
  [ "$first" -le "$last" ] || die "FROM=$first is behind TO=$last; swap them"
}

# The files of the present patch, and of all patches so far, that match the patterns.
changed_by_patch() { git -C "$TREE" diff --name-only --diff-filter=d "$commit^" "$commit" -- "$@"; }
changed_so_far() { git -C "$TREE" diff --name-only --diff-filter=d "$(upstream commit)" "$commit" -- "$@"; }

# The checks run where `set -e` is off, so each is one chain of commands.

# As upstream's pre-commit hooks, with their exceptions.
check_format() {
  local cpp python_files
  mapfile -t cpp < <(changed_by_patch '*.cpp' '*.h' ':!external')
  mapfile -t python_files < <(changed_by_patch '*.py' ':!external' ':!tests/python/test_exception.py')
  plain_git -c core.whitespace=cr-at-eol -C "$TREE" diff --check "$commit^" "$commit" &&
    cd "$TREE" && clang_format "$BIN" "${cpp[@]+"${cpp[@]}"}" &&
    { [ ${#python_files[@]} -eq 0 ] || "$BIN/black" --quiet --check --diff -l 120 "${python_files[@]}"; }
}

install_step() { make_wheel_venv "$venv" "$(newest_wheel "$(wheel_version)" "$python")"; }

# The first patches share nothing yet.
check_smoke() {
  local without=()
  [ -f "$TREE/python/taichi/lang/_dlpack.py" ] || without=(--no-sharing)
  cd "$OUT" && "$venv/bin/python" "$ROOT/ci/smoke.py" "$(wheel_version)" "${without[@]+"${without[@]}"}"
}

python_tests() {
  changed_so_far 'tests/python/test_*.py'
  [ "$suite" != full ] || upstream_tests
}

check_python() {
  local files
  mapfile -t files < <(python_tests | sort -u)
  [ ${#files[@]} -gt 0 ] || return 0
  cd "$TREE" && "$venv/bin/python" -m pytest -p no:cacheprovider -q -ra --junit-xml="$folder/python.xml" "${files[@]}"
}

check_cpp() { GTEST_OUTPUT=xml:$folder/cpp.xml "$ROOT/ci/test_cpp.sh" --tree "$TREE"; }

# The C++ tests need a library that is a nested submodule, which not every network has.
can_build_cpp_tests() {
  [ -n "$(changed_so_far 'tests/cpp/*')" ] || return 1
  git -C "$TREE" submodule update --init external/googletest >"$folder/googletest.log" 2>&1 && return
  warn "C++ tests are left out: external/googletest cannot be fetched, see $folder/googletest.log"
  note left_out="C++ tests: no googletest"
  return 1
}

# note NAME=VALUE: a line of the step's result, which ci/bisect_report.py reads.
note() { printf '%s\n' "$*" >>"$folder/result"; }

report() {
  local n
  for ((n = 0; n < ${#patches[@]}; n++)); do printf '%s %s\n' "${patches[n]##*/}" "${commits[n]}"; done |
    "$python" "$ROOT/ci/bisect_report.py" "$OUT" --tag "$(upstream tag)"
}

# checked WHAT COMMAND: its output goes to a log of the step. A failure ends the run.
checked() {
  local what=$1 log=$folder/$1.log
  shift
  ("$@") >"$log" 2>&1 && return
  note "outcome=$what failed"
  report >&2
  tail -n 25 "$log" >&2
  die "step $step of ${#patches[@]}, $name: $what failed; the log is $log. Mend that patch (see CONTRIBUTING.md)," \
    "then go on with: make bisect FROM=$step"
}

# result NAME: a value that an earlier run noted.
result() { sed -n "s/^$1=//p" "$folder/result" 2>/dev/null; }

# covers SUITE: did a run with that SUITE look at all that is wanted now?
covers() {
  case $suite in
    none) true ;;
    quick) [ "$1" != none ] ;;
    full) [ "$1" = full ] ;;
  esac
}

# passed_before: with the same patches so far, and as many checks?
passed_before() {
  [ -z "${FROM:-}" ] && [ "$(result outcome)" = passed ] && [ "$(result commit)" = "$commit" ] &&
    [ "$(result build)" -ge "$build" ] && covers "$(result suite)"
}

build_and_test() {
  local began=$SECONDS
  checked build "$ROOT/ci/wheel.sh" --tree "$TREE" "${options[@]+"${options[@]}"}"
  note "seconds=$((SECONDS - began))"
  checked install install_step
  export TI_OFFLINE_CACHE_FILE_PATH=$SCRATCH/cache-$step # Taichi's version is the same at each step
  checked smoke check_smoke
  [ "$suite" != none ] || return 0
  checked python check_python
  ! can_build_cpp_tests || checked cpp check_cpp
}

# take_step NUMBER
take_step() {
  step=$1 name=${patches[$1 - 1]##*/} commit=${commits[$1 - 1]}
  folder=$OUT/${name%%-*}
  if passed_before; then
    say "step $step of ${#patches[@]}, $name: passed before"
    return
  fi
  say "step $step of ${#patches[@]}, $name"
  rm -rf "$folder"
  mkdir -p "$folder"
  put_worktree "$TREE" "$commit"
  note "commit=$commit"
  note "suite=$suite"
  note "build=$build"
  checked format check_format
  [ "$build" = 0 ] || build_and_test
  note outcome=passed
}

options=("$@")
suite=${SUITE:-quick}
python=$(pick_python)
venv=$BUILD/venv-bisect
export PYTHONDONTWRITEBYTECODE=1 TI_TEST_ARCH=cpu TI_WANTED_ARCHS=cpu
fetch_source
mapfile -t patches < <(list_patches "$PATCHES")
first=${FROM:-1} last=${TO:-${#patches[@]}}
check_arguments
make_venv "$BUILD/venv-lint" "$python" "$ROOT/requirements/lint.txt"
start_scratch
replay "$(upstream commit)" "$PATCHES"
mapfile -t commits < <(git -C "$SOURCE" rev-list --reverse "$(upstream commit)..$REPLAYED")
for ((number = first; number <= last; number++)); do take_step "$number"; done
report
done_what="builds and passes its tests on those before it"
[ "$build" = 1 ] || done_what="applies and is formatted"
say "each patch from $first to $last $done_what; the table is in $OUT/report.md"
