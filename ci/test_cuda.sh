#!/usr/bin/env bash
# make test-cuda: the tests on a real GPU, in eight minutes at most, with a report.
#   make test-cuda [WHEEL=path/to/taichi-*.whl [WHEELS=folder]] [REPORT=folder] [PYTHON=path|VENV=path]
#   ./build.sh test-cuda [--rehearse] [--upstream] [--minutes N] [pytest arguments] [NAME=value ...]
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

# The wheel to test, and the environment whose packages are its peers.
choose_wheel() {
  if [ -n "${WHEEL:-}" ]; then
    wheel=$WHEEL
    [ -f "$wheel" ] || die "WHEEL=$wheel: no such file; build one with: make wheel"
  else
    wheel=$(newest_wheel "$(wheel_version)" "$python")
    [ -n "$wheel" ] || die "dist/ has no taichi-$(wheel_version) wheel for $("$python" -V); build it with: make wheel"
  fi
}

# pip of the new environment: the one that it sees in PYTHON's, else its own.
install() {
  "$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$venv/bin/python" -m ensurepip >/dev/null 2>&1 ||
    die "$python has no pip; install it with: apt-get install python3-pip python3-venv"
  "$venv/bin/python" -m pip install --disable-pip-version-check --quiet --no-warn-script-location "$@"
}

prepare_environment() {
  local others=()
  if [ -z "${WHEEL:-}" ]; then
    make_venv --on-top "$BUILD/venv-peers" "$python" "$ROOT/requirements/test.txt"
    python=$BUILD/venv-peers/bin/python
  fi
  venv=$BUILD/venv-test-cuda
  rm -rf "$venv"
  make_venv --on-top=all --without-pip "$venv" "$python"
  if [ -n "${WHEELS:-}" ]; then
    [ -d "$WHEELS" ] || die "WHEELS=$WHEELS: no such folder"
    mapfile -t others < <(find "$WHEELS" -maxdepth 1 -name '*.whl' ! -name "${wheel##*/}" | sort)
  fi
  say "installing ${wheel##*/}${others[*]+ and ${#others[@]} more} into $venv"
  install --no-index --no-deps --ignore-installed "$wheel" "${others[@]+"${others[@]}"}" ||
    die "${wheel##*/} cannot be installed for $("$python" -V); pip's message is above"
  [ -n "${WHEEL:-}" ] || install "$wheel"
  "$venv/bin/python" "$ROOT/ci/cuda_facts.py" needed "$python" || exit 1
}

python=$(pick_python)
[ ${#rehearse[@]} -gt 0 ] || "$python" "$ROOT/ci/has_gpu.py" || exit 1
choose_wheel
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
