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

wanted() { sed -n "s/^$1=//p" "$ROOT/integrations/genesis/UPSTREAM"; }

# make_stock: an environment on top of the patched one in which Taichi and Genesis are the released ones.
make_stock() {
  local release
  release=$(upstream tag | sed s/^v//)
  make_venv --on-top=all "$stock" "$python"
  [ ! -f "$stock/.complete" ] || return 0
  say "installing the released Taichi and Genesis into $stock"
  "$stock/bin/python" -m pip install --disable-pip-version-check --quiet --no-deps --ignore-installed \
    "taichi==$release" "genesis-world==$(wanted version)" ||
    die "pip failed, its message is above. The comparison needs the released wheels of Taichi and Genesis: set" \
      "PIP_INDEX_URL or the proxy (https_proxy); then again: make test-genesis"
  touch "$stock/.complete"
}

# need_pytest: the test tools of `make test`, at the same versions.
need_pytest() {
  "$python" -c 'import pytest' 2>/dev/null ||
    "$python" -m pip install --disable-pip-version-check --quiet "$(grep '^pytest==' "$ROOT/requirements/test.txt")" ||
    die "pytest is missing and cannot be installed, pip's message is above; install it with: $python -m pip install pytest"
}

SOURCE=$wants_source "$ROOT/ci/genesis.sh" install
venv=${VENV:-$BUILD/venv-genesis}
python=$venv/bin/python
stock=$BUILD/venv-genesis-stock
make_stock
need_pytest

results=$BUILD/test-results/genesis
mkdir -p "$results"
export GENESIS_STOCK_PYTHON=$stock/bin/python GENESIS_RESULTS=$results PYTHONDONTWRITEBYTECODE=1
export GENESIS_FULL=${FULL:-}
unset VENV PYTHON FULL WHEEL
cd "$ROOT"
status=0
"$python" -m pytest -p no:cacheprovider -q -ra --durations=5 --junit-xml="$results/genesis.xml" \
  "${@:-tests/genesis}" || status=$?
[ "$status" = 0 ] || die "make test-genesis failed (pytest's status $status); one test again: ./build.sh test-genesis NODE_ID"
say "Genesis returns the same bits with shared memory as without; next: make genesis-undo, or use $venv"
