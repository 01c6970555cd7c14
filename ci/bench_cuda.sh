#!/usr/bin/env bash
# make bench-cuda: the benchmark on a real GPU, in five minutes at most, with no network.
#   make bench-cuda [WHEEL=path/to/taichi-*.whl [WHEELS=folder]] [REPORT=folder] [PYTHON=path|VENV=path]
#   ./build.sh bench-cuda [--rehearse] [NAME=value ...]
# Measures against what PYTHON's environment has of torch, NumPy, JAX, Warp and tvm-ffi; the first two must be there.
# WHEELS names a folder of wheels to install beside it. Without WHEEL: the newest source wheel in dist/.
# The samples, results.json, need nothing more. The pictures want matplotlib, pyperf.json wants pyperf; where
# they are missing, make them on another machine: python -m bench report --out FOLDER
# --rehearse runs the same on the CPU, to see that the machinery works; it says nothing about a GPU.
set -euo pipefail
# shellcheck source=ci/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

arch=cuda
case ${1:-} in
  --rehearse) arch=cpu ;;
  '') ;;
  *) die "no option '$1'; the one that there is: ./build.sh bench-cuda --rehearse" ;;
esac

choose_wheel() {
  pick_wheel
  name=source
  [[ ${wheel##*/} != *.fast-* ]] || name=fast
}

prepare_environment() {
  make_offline_venv "$BUILD/venv-bench-cuda" "$wheel"
  (cd "$venv" && bin/python -c 'import numpy, torch, taichi' >"$venv/import.log" 2>&1) ||
    die "$(tail -n 1 "$venv/import.log"); the environment of $python needs torch, NumPy and what taichi needs:" \
      "$python -m pip install torch numpy colorama dill rich"
}

bench() { PYTHONPATH=$ROOT PYTHONSAFEPATH=1 "$venv/bin/python" -m bench "$@" --out "$report"; }

python=$(pick_python)
[ "$arch" = cpu ] || "$python" "$ROOT/ci/has_gpu.py" || exit 1
choose_wheel
prepare_environment
report=${REPORT:-$BUILD/bench-cuda}
mkdir -p "$report"
report=$(cd "$report" && pwd)
export PYTHONDONTWRITEBYTECODE=1
unset VENV PYTHON WHEEL WHEELS REPORT
own="it needs an environment of its own; measured on the CPU by: make bench"
bench measure --plan cuda --arch "$arch" --command "make bench-cuda" --worker "$name=$venv/bin/python" \
  --left-out "quadrants=$own" --left-out "gstaichi=$own"
bench report
[ "$arch" = cuda ] || say "this was a rehearsal on the CPU"
