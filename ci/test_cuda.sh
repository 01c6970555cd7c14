#!/usr/bin/env bash
# make test-cuda: the tests on a real GPU, in eight minutes at most, with a report.
#   make test-cuda [WHEEL=path/to/taichi-*.whl [WHEELS=folder]] [REPORT=folder] [PYTHON=path|VENV=path]
#   ./build.sh test-cuda [--rehearse] [--upstream] [--minutes N] [--workers N] [pytest arguments] [NAME=value ...]
# With WHEEL nothing is downloaded: torch, CuPy, JAX, Numba, Warp and tvm-ffi are tested as far as
# PYTHON's environment has them, and WHEELS names a folder of wheels to install beside it. Without
# WHEEL: the newest source wheel in dist/, and the packages of requirements/test.txt.
# --rehearse runs the same on the CPU, to see that the machinery works; it proves nothing about a GPU.
set -euo pipefail
# shellcheck source=ci/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

began=$(date +%s)
rehearse=() upstream=() arguments=()
while [ $# -gt 0 ]; do
  case $1 in
    --rehearse) rehearse=(--rehearse) ;;
    --upstream) upstream=(--upstream) ;;
    --minutes | --workers)
      [ $# -gt 1 ] || die "$1 wants a number"
      arguments+=("$1" "$2")
      shift
      ;;
    *) break ;;
  esac
  shift
done

prepare_environment() {
  if [ -z "${WHEEL:-}" ]; then
    make_venv --on-top "$BUILD/venv-peers" "$python" "$ROOT/requirements/test.txt"
    python=$BUILD/venv-peers/bin/python
  fi
  make_offline_venv "$BUILD/venv-test-cuda" "$wheel"
  [ -n "${WHEEL:-}" ] || install_into_venv "$wheel"
  "$venv/bin/python" "$ROOT/ci/cuda_facts.py" needed "$python" || exit 1
}

python=$(pick_python)
[ ${#rehearse[@]} -gt 0 ] || "$python" "$ROOT/ci/has_gpu.py" || exit 1
pick_wheel
prepare_environment
if [ ${#upstream[@]} -gt 0 ]; then
  need_source
  "$ROOT/ci/series.sh" ready
  mapfile -t files < <(upstream_tests)
  upstream+=("$TREE" "${files[@]}")
fi

report=${REPORT:-$BUILD/test-results/cuda}
say "the report goes to $report"
export PYTHONDONTWRITEBYTECODE=1
unset VENV PYTHON WHEEL WHEELS REPORT FORCE TAG
exec "$venv/bin/python" "$ROOT/ci/cuda_run.py" "$report" "${upstream[@]+"${upstream[@]}"}" \
  "${rehearse[@]+"${rehearse[@]}"}" "${arguments[@]+"${arguments[@]}"}" --began "$began" --wheel "$wheel" -- "$@"
