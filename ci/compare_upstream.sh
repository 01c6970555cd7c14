#!/usr/bin/env bash
# make compare-upstream: Taichi's complete Python tests on the CPU, the released wheel against the patched one.
#   make compare-upstream [WORKERS=n] [ONLY=pattern] [TIMEOUT=seconds] [WHEEL=path]
#   WORKERS=n      as many processes at once (default: one for each core, at most 8)
#   ONLY=pattern   only these files, as in ONLY=test_ndarray or ONLY='test_ad_*'
#   TIMEOUT=600    for one test; what hangs or crashes fails, and the others go on
#   WHEEL=path     the patched wheel (default: the newest source wheel in dist/)
# Each wheel runs the tests of its own source, some files at a time; what ran is kept in build/compare, and is not run
# again until the wheel or the tests change. Fails if a test that passes on the release does not on the patched wheel.
set -euo pipefail
# shellcheck source=ci/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

OUT=$BUILD/compare
# So many files in one run of pytest: each run starts its workers anew, and what is cut short is done again.
AT_ONCE=10

# Both environments see the same peers and the same test tools.
make_environments() {
  make_venv --on-top "$BUILD/venv-peers" "$python" "$ROOT/requirements/test.txt"
  make_venv --on-top "$BUILD/venv-compare" "$BUILD/venv-peers/bin/python" "$ROOT/requirements/compare.txt"
  make_venv --on-top "$BUILD/venv-compare-patched" "$BUILD/venv-compare/bin/python"
  make_venv --on-top "$BUILD/venv-compare-released" "$BUILD/venv-compare/bin/python"
  install_wheel_into "$BUILD/venv-compare-patched" "$wheel"
  "$BUILD/venv-compare-released/bin/python" -m pip install --disable-pip-version-check --quiet "taichi==$release" ||
    die "the released wheel taichi==$release cannot be installed, pip's message is above; is the package index there?"
}

# make_tests: a copy of the tests for each wheel, since tests leave files where they run.
make_tests() {
  local kind
  "$ROOT/ci/series.sh" ready
  for kind in released patched; do
    rm -rf "$OUT/$kind/source"
    mkdir -p "$OUT/$kind/source" "$OUT/$kind/results"
  done
  git -C "$SOURCE" archive "$(upstream commit)" tests pyproject.toml | tar -x -C "$OUT/released/source"
  cp -R "$TREE/tests" "$TREE/pyproject.toml" "$OUT/patched/source/"
}

# forget_old KIND WHEEL: results of another wheel, whose name or sum is WHEEL, or of other tests.
forget_old() {
  local key
  key=$2$(find "$OUT/$1/source" -type f -name '*.py' -print0 | sort -z | xargs -0 cat | sha256sum)
  [ "$(cat "$OUT/$1/key" 2>/dev/null)" != "$key" ] || return 0
  rm -rf "$OUT/$1/results"
  mkdir -p "$OUT/$1/results"
  printf '%s' "$key" >"$OUT/$1/key"
}

# The files of both wheels that ONLY names.
test_files() {
  local only=${ONLY:-*}
  find "$OUT"/*/source/tests/python -maxdepth 1 -name 'test_*.py' -name "${only%.py}.py" -printf '%f\n' | sort -u
}

# without_result KIND FILES: those that this wheel has and did not run.
without_result() {
  local kind=$1 file
  shift
  for file in "$@"; do
    [ -f "$OUT/$kind/results/${file%.py}.xml" ] || [ ! -f "$OUT/$kind/source/tests/python/$file" ] ||
      printf 'tests/python/%s\n' "$file"
  done
}

# run_files KIND FILES: on one wheel. They get their results together, once the run is whole.
run_files() {
  local kind=$1 results=$OUT/$1/results python=$BUILD/venv-compare-$1/bin/python paths=() path
  shift
  mapfile -t paths < <(without_result "$kind" "$@")
  [ ${#paths[@]} -gt 0 ] || return 0
  (
    cd "$OUT/$kind/source"
    # As upstream's run_tests.py. Kernels are cached under Taichi's version alone.
    export TI_OFFLINE_CACHE=0 TI_OFFLINE_CACHE_FILE_PATH=$scratch/$kind
    "$python" -m pytest -p no:cacheprovider -q -n "$workers" --dist=worksteal --max-worker-restart=1000 --reruns 1 \
      --continue-on-collection-errors --timeout="$timeout" --timeout-method=thread --junit-xml="$scratch/$kind.xml" \
      "${paths[@]}"
  ) >"$scratch/$kind.log" 2>&1 || true
  for path in "${paths[@]##*/}"; do cp "$scratch/$kind.log" "$results/${path%.py}.log"; done
  [ ! -f "$scratch/$kind.xml" ] || "$python" "$ROOT/ci/split_junit.py" "$scratch/$kind.xml" "$results" "${paths[@]}"
  rm -f "$scratch/$kind.xml"
}

compare() { "$python" "$ROOT/ci/compare_suites.py" "$OUT/released/results" "$OUT/patched/results" "$@"; }

run_all() {
  local number=0 some file
  while [ "$number" -lt ${#files[@]} ]; do
    some=("${files[@]:number:AT_ONCE}")
    run_files released "${some[@]}"
    run_files patched "${some[@]}"
    for file in "${some[@]}"; do
      number=$((number + 1))
      say "$number of ${#files[@]}, $(compare --one-line "${file%.py}")"
    done
  done
}

python=$(pick_python)
workers=${WORKERS:-$(nproc)} timeout=${TIMEOUT:-600}
[ -n "${WORKERS:-}" ] || [ "$workers" -le 8 ] || workers=8
check_count WORKERS "$workers" 2
check_count TIMEOUT "$timeout" 600
release=$(upstream tag | sed s/^v//)
pick_wheel
fetch_source
make_environments
make_tests
forget_old patched "$(sha256sum <"$wheel")"
forget_old released "$release"
mapfile -t files < <(test_files)
[ ${#files[@]} -gt 0 ] || die "ONLY is '${ONLY:-}', which names no file of tests/python, as in: make compare-upstream ONLY=test_ndarray"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
export TI_WANTED_ARCHS=cpu PYTHONDONTWRITEBYTECODE=1
unset VENV PYTHON
say "${#files[@]} files on two wheels, $workers processes; Ctrl-C ends it, and the same command goes on from there"
run_all
compare --report "$OUT/report.md" "${files[@]%.py}"
