#!/usr/bin/env bash
# make test, test-cpu: the test matrix on one wheel, on the CPU. On a GPU: ci/test_cuda.sh.
#   ci/test.sh fast|source [pytest arguments]
# With pytest arguments only those tests run; without, also upstream's own.
set -euo pipefail
# shellcheck source=ci/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

kind=${1:-}
case $kind in
  fast) verb="test" ;;
  source) verb="test-cpu" ;;
  *) die "usage: ci/test.sh fast|source [pytest arguments]" ;;
esac
shift

find_wheel() {
  if [ "$kind" = fast ]; then
    find_fast_wheel "$ROOT/build.sh" wheel-fast || die "the fast wheel was not built; then again: make test"
  else
    find_source_wheel
    warn_if_outdated "$wheel" wheel
  fi
}

statuses=()
# run_suite NAME ARGUMENTS: one run of pytest, in the present directory.
run_suite() {
  local name=$1 status=0
  shift
  say "$name"
  "$venv/bin/python" -m pytest -p no:cacheprovider -q -ra --junit-xml="$results/$name.xml" "$@" || status=$?
  statuses+=("$name=$status")
}

own_suites() {
  local folder
  cd "$ROOT"
  for folder in tests/*/; do
    folder=${folder%/}
    # The harness is the same whatever the wheel.
    [ "$folder" != tests/harness ] || [ "$kind" = fast ] || continue
    # These need a GPU, or a simulated one: ci/test_cuda.sh, ci/test_cuda_sim.sh.
    [[ $folder != tests/cuda* ]] || continue
    # These need Genesis: ci/test_genesis.sh.
    [ "$folder" != tests/genesis ] || continue
    run_suite "${folder##*/}" "$folder"
  done
}

upstream_suite() {
  local files
  if ! have_source; then
    left_out="upstream's own tests: $(source_is_missing)"
    return
  fi
  "$ROOT/ci/series.sh" ready
  mapfile -t files < <(upstream_tests)
  cd "$TREE"
  PYTHONPATH=$ROOT/ci run_suite upstream -p upstream_exceptions "${files[@]}"
}

left_out=
python=$(pick_python)
find_wheel
venv=$BUILD/venv-test-$kind
make_wheel_venv "$venv" "$wheel"

results=$BUILD/test-results/$kind
rm -rf "$results"
mkdir -p "$results"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# Kernels are cached under Taichi's version alone: another wheel's must not be found.
export TI_OFFLINE_CACHE_FILE_PATH=$scratch/cache PYTHONDONTWRITEBYTECODE=1
export TI_TEST_ARCH=cpu TI_WANTED_ARCHS=cpu TI_TEST_WHEEL=$kind
unset VENV PYTHON FORCE TAG

if [ $# -gt 0 ]; then
  cd "$ROOT"
  run_suite chosen "$@"
else
  own_suites
  upstream_suite
fi
"$venv/bin/python" "$ROOT/ci/summary.py" "$results" --arch cpu --left-out "$left_out" "${statuses[@]}" ||
  die "make $verb failed; run one test again with: ./build.sh $verb NODE_ID"
