#!/usr/bin/env bash
# make fuzz: the code that judges and copies DLPack tensors, under libFuzzer.
#   make fuzz [RUNS=N]      N executions; 200000 unless given
#   ./build.sh fuzz FILE    one input again, such as one that failed
# The inputs that reached something new stay in build/fuzz/corpus.
set -euo pipefail
# shellcheck source=ci/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

RUNS=${RUNS:-200000}
check_count RUNS "$RUNS" 200000
FOLDER=$BUILD/fuzz

python=$(pick_python)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
say "building the fuzz target"
"$python" "$ROOT/ci/sanitizers.py" fuzzer "$scratch/tensor_fuzzer"

export UBSAN_OPTIONS=print_stacktrace=1
if [ $# -gt 0 ]; then
  "$scratch/tensor_fuzzer" "$@" || die "this input fails; the report is above"
  say "this input passes; next: make fuzz"
  exit
fi
mkdir -p "$FOLDER/corpus"
say "$RUNS executions"
"$scratch/tensor_fuzzer" -runs="$RUNS" -seed=1 -max_len=256 -timeout=10 -print_final_stats=1 \
  -artifact_prefix="$FOLDER/" "$FOLDER/corpus" ||
  die "make fuzz failed; the input is named above; run it again with: ./build.sh fuzz build/fuzz/FILE"
say "done, $RUNS executions without a fault; next: make sanitize"
