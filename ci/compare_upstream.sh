#!/usr/bin/env bash
# make compare-upstream: Taichi's complete Python tests on the CPU, the released wheel against the patched one.
#   make compare-upstream [WORKERS=n] [ONLY=pattern] [TIMEOUT=seconds] [WHEEL=path]
#   WORKERS=n      as many processes at once (default: one for each core, at most 8)
#   ONLY=pattern   only these files, as in ONLY=test_ndarray or ONLY='test_ad_*'
#   TIMEOUT=600    for one test; what hangs or crashes fails, and the others go on
#   WHEEL=path     the patched wheel (default: the newest source wheel in dist/)
# Each wheel runs the tests of its own source, one file at a time; what ran is kept in build/compare, and is not run
# again until the wheel or the tests change. Fails if a test that passes on the release does not on the patched wheel.
set -euo pipefail
# shellcheck source=ci/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

OUT=$BUILD/compare

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

# run_file KIND FILE: one file on one wheel. The result gets its name when it is whole.
run_file() {
  local results=$OUT/$1/results name=${2%.py} python=$BUILD/venv-compare-$1/bin/python
  if [ -f "$results/$name.xml" ] || [ ! -f "$OUT/$1/source/tests/python/$2" ]; then return; fi
  (
    cd "$OUT/$1/source"
    # As upstream's run_tests.py. Kernels are cached under Taichi's version alone.
    export TI_OFFLINE_CACHE=0 TI_OFFLINE_CACHE_FILE_PATH=$scratch/$1
    "$python" -m pytest -p no:cacheprovider -q -n "$workers" --dist=worksteal --max-worker-restart=1000 --reruns 1 \
      --timeout="$timeout" --timeout-method=thread --junit-xml="$results/$name.part" "tests/python/$2"
  ) >"$results/$name.log" 2>&1 || true
  [ ! -f "$results/$name.part" ] || mv "$results/$name.part" "$results/$name.xml"
}

compare() { "$python" "$ROOT/ci/compare_suites.py" "$OUT/released/results" "$OUT/patched/results" "$@"; }

run_all() {
  local number=0 file
  for file in "${files[@]}"; do
    number=$((number + 1))
    run_file released "$file"
    run_file patched "$file"
    say "$number of ${#files[@]}, $(compare --one-line "${file%.py}")"
  done
}

python=$(pick_python)
workers=${WORKERS:-$(nproc)} timeout=${TIMEOUT:-600}
[ -n "${WORKERS:-}" ] || [ "$workers" -le 8 ] || workers=8
[[ $workers =~ ^[1-9][0-9]*$ ]] || die "WORKERS is '$workers', wanted a number above 0, as in: make compare-upstream WORKERS=2"
[[ $timeout =~ ^[1-9][0-9]*$ ]] || die "TIMEOUT is '$timeout', wanted seconds, as in: make compare-upstream TIMEOUT=600"
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
