#!/usr/bin/env bash
# make test-genesis: real Genesis, patched, against the released one, bit for bit, on the CPU.
#
#   ci/test_genesis.sh [pytest arguments]
#
#   (neither)     one falling robot, few steps: for CI
#   FULL=1        go2 and franka, 0, 1 and 64 environments, 100 steps, MPM
#   VENV=path     the environment that `make genesis VENV=path` made, in place of build/venv-genesis
#   SOURCE=1, WHEEL=path   as for make genesis
set -euo pipefail
wants_source=${SOURCE:-} # lib.sh has another meaning for the name
# shellcheck source=ci/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# need_pytest: the test tools of `make test`, at the same versions.
need_pytest() {
  "$python" -c 'import pytest' 2>/dev/null ||
    "$python" -m pip install --disable-pip-version-check --quiet "$(grep '^pytest==' "$ROOT/requirements/test.txt")" ||
    die "pytest is missing and cannot be installed, pip's message is above; install it with: $python -m pip install pytest"
}

check_flags FULL
SOURCE=$wants_source "$ROOT/ci/genesis.sh" install
venv=${VENV:-$BUILD/venv-genesis}
python=$venv/bin/python
"$ROOT/ci/genesis.sh" stock
need_pytest

results=$BUILD/test-results/genesis
mkdir -p "$results"
export GENESIS_STOCK_PYTHON=$BUILD/venv-genesis-stock/bin/python GENESIS_RESULTS=$results PYTHONDONTWRITEBYTECODE=1
export GENESIS_FULL=${FULL:-}
unset VENV PYTHON FULL WHEEL
cd "$ROOT"
status=0
"$python" -m pytest -p no:cacheprovider -q -ra --durations=5 --junit-xml="$results/genesis.xml" \
  "${@:-tests/genesis}" || status=$?
[ "$status" = 0 ] || die "make test-genesis failed (pytest's status $status); one test again: ./build.sh test-genesis NODE_ID"
say "Genesis returns the same bits with shared memory as without; next: make genesis-undo, or use $venv"
