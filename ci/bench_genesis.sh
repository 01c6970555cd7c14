#!/usr/bin/env bash
# make bench-genesis: the released Genesis against the patched one: getters, observations, control, RL loop.
#
#   make bench-genesis [ENVS="1 64 1024 4096"] [KEEP=1] [DOCS=1] [VENV=path] [SOURCE=1] [WHEEL=path]
#   make bench-genesis ARCH=cuda VENV=path        on a GPU, in five minutes at most, with no network
#
#   ENVS=...      numbers of environments in the scene; for each, kernels compile for minutes
#   KEEP=1        adds to what an earlier run of the same versions measured at other numbers of environments
#   DOCS=1        writes the figures into docs/genesis.md and docs/img/genesis.png
#   VENV, SOURCE, WHEEL    as for make genesis, which this runs first
#   ARCH=cuda     takes the environment VENV as it is, with a source wheel in it, and compares the patched Genesis
#                 with itself, sharing switched off: no second environment is needed. ARCH=cpu is the default.
set -euo pipefail
wants_source=${SOURCE:-} # lib.sh has another meaning for the name
# shellcheck source=ci/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# check_counts: a wrong number is told before any work.
check_counts() {
  local count
  for count in ${ENVS:-}; do check_count ENVS "$count" '"1 64"'; done
}

# prepare_cpu: the environments of make genesis and make test-genesis, and one for the report.
prepare_cpu() {
  SOURCE=$wants_source "$ROOT/ci/genesis.sh" install
  "$ROOT/ci/genesis.sh" stock
  make_venv "$BUILD/venv-bench" "$(VENV='' pick_python)" "$ROOT/requirements/bench.txt"
  conductor=$BUILD/venv-bench/bin/python
  workers=(--worker "stock=$BUILD/venv-genesis-stock/bin/python" --worker "patched=$patched")
}

# prepare_cuda: nothing is installed.
prepare_cuda() {
  [ -x "$patched" ] || die "there is no environment in ${patched%/bin/python}; make it with: make genesis SOURCE=1 VENV=path"
  "$patched" "$ROOT/ci/has_gpu.py" || exit 1
  "$patched" -c 'from genesis.utils import zero_copy' ||
    die "$patched has no patched Genesis, see above; make it with: make genesis SOURCE=1 VENV=path"
  conductor=$patched
  workers=(--worker "off=$patched" --worker "patched=$patched")
}

bench() { PYTHONPATH=$ROOT PYTHONSAFEPATH=1 "$conductor" -m bench.genesis "$@" --out "$out"; }

case ${ARCH:=cpu} in
  cpu | cuda) ;;
  *) die "ARCH is '$ARCH', wanted cpu or cuda" ;;
esac
check_flags DOCS KEEP
check_counts
patched=${VENV:-$BUILD/venv-genesis}/bin/python
"prepare_$ARCH"
out=$BUILD/bench-genesis
mkdir -p "$out"
read -ra counts <<<"${ENVS:-}"
export TI_OFFLINE_CACHE_FILE_PATH=$out/kernels PYTHONDONTWRITEBYTECODE=1
command="make bench-genesis${ENVS:+ ENVS=\"$ENVS\"}"
[ "$ARCH" = cpu ] || command+=" ARCH=$ARCH"
documents=() keep=()
! flag DOCS || documents=(--docs)
if flag KEEP; then
  keep=(--keep)
  command+=" KEEP=1"
fi
unset VENV PYTHON WHEEL ENVS DOCS KEEP
bench measure --arch "$ARCH" --command "$command" "${keep[@]+"${keep[@]}"}" "${workers[@]}" \
  ${counts[@]+--environments "${counts[@]}"}
bench report "${documents[@]+"${documents[@]}"}"
