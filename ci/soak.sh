#!/usr/bin/env bash
# make soak: a million cycles of export, import, create and drop in one process; what grows fails it.
#   make soak [CYCLES=1000000]
# Runs the wheel that the last `make test-cpu` installed, else that of `make test`; PYTHON=path or
# VENV=path names another environment with a patched wheel.
set -euo pipefail
# shellcheck source=ci/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

CYCLES=${CYCLES:-1000000}
check_count CYCLES "$CYCLES" 50000
pick_patched_python
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# Kernels are cached under Taichi's version alone: another wheel's must not be found.
export TI_OFFLINE_CACHE_FILE_PATH=$scratch/cache PYTHONDONTWRITEBYTECODE=1
say "soaking with $python"
"$python" "$ROOT/ci/soak.py" "$CYCLES" ||
  die "make soak failed; the reason is above. A shorter run: make soak CYCLES=50000"
say "nothing grew; all orders of the lifetime suite: TI_LIFETIME_FULL=1 ./build.sh test tests/lifetime"
