#!/usr/bin/env bash
# make test-cuda-sim: the CUDA half of the matrix on a simulated driver (tests/cuda_sim/), on each wheel.
#   ci/test_cuda_sim.sh [pytest arguments]
set -euo pipefail
# shellcheck source=ci/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

python=$(pick_python)
arguments=("$@")
[ $# -gt 0 ] || arguments=(tests/cuda_sim)
export CUDA_SIM_BUILD=$BUILD/cuda_sim

kinds=(fast)
if [ -n "$(newest_wheel "$(wheel_version)" "$python")" ]; then
  kinds+=(source)
else
  warn "left out: the source wheel is not in dist/; build it with: make wheel"
fi
status=0
for kind in "${kinds[@]}"; do
  say "the simulated driver under the $kind wheel"
  "$ROOT/ci/test.sh" "$kind" "${arguments[@]}" || status=1
done
[ "$status" = 0 ] || die "make test-cuda-sim failed; run one test again with: ./build.sh test-cuda-sim NODE_ID"
