#!/usr/bin/env bash
# make valgrind: a sample of the lifetime suite's orders, JIT code included, under valgrind's memcheck.
#   make valgrind [ORDERS=12]    as many orders for each type of element
# Runs the wheel that the last `make test-cpu` installed, else that of `make test`; PYTHON=path or
# VENV=path names another environment with a patched wheel.
set -euo pipefail
# shellcheck source=ci/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

ORDERS=${ORDERS:-12}
check_count ORDERS "$ORDERS" 12
command -v valgrind >/dev/null || die "valgrind is not here; install it with: apt-get install valgrind"

pick_patched_python
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# Kernels are cached under Taichi's version alone: another wheel's must not be found.
export TI_OFFLINE_CACHE_FILE_PATH=$scratch/cache PYTHONDONTWRITEBYTECODE=1
say "$(valgrind --version) on $python"
"$python" "$ROOT/ci/valgrind.py" "$ORDERS" "$scratch/logs" ||
  die "make valgrind failed; the reason is above. One order without valgrind: python tests/lifetime/run_orders.py scalar ORDER"
say "done, no fault; next: make soak"
