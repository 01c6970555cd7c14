#!/usr/bin/env bash
# The one entry to everything here: ./build.sh VERB [options] [NAME=value ...]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

usage() {
  cat <<'TEXT'
Zero-copy DLPack for Taichi. Usage: make VERB, or ./build.sh VERB [options]

  demo         a simulation and a torch network on one memory, in a fresh environment
  test         the tests on the fast wheel, on the CPU
  wheel-fast   the released Taichi wheel with the series on top, in a minute
  wheel        the patched Taichi from source (./build.sh wheel --help)
  test-cpu     the tests on the source wheel, on the CPU
  test-cpp     the C++ tests of the series, after make wheel
  test-cuda-sim  the CUDA tests on a simulated driver, on each wheel; no GPU needed
  test-cuda    the tests on a real GPU, with a report: make test-cuda WHEEL=path REPORT=folder

  genesis      Genesis with a Taichi that shares its memory: make genesis [VENV=path] [SOURCE=1]
  genesis-undo   the released Taichi and Genesis' own files again
  test-genesis   real Genesis against the released one, bit for bit (FULL=1: all scenes, 100 steps)
  bench-genesis  what Genesis gains: make bench-genesis ENVS="1 64"; all of it: head ci/bench_genesis.sh
  genesis-check, genesis-export   the patches for Genesis, as check and export

  apply        the patched tree in build/taichi
  export       the commits of build/taichi into patches/
  check        is the series whole: export again, compare byte for byte
  bump         move the series to another release: make bump TAG=v...
  check-master   does the series still apply to upstream's newest master: make check-master [BUILD=1]
  check-variants   without CUDA, without LLVM, by GCC, for other Pythons: does it compile: make check-variants [ONLY=name]
  bisect       each patch by itself, on those before it: formatting, build, tests: make bisect [FROM=n]
  compare-upstream   Taichi's own tests, all of them: does the patched wheel lose any: [ONLY=pattern]
  pr           a branch and a text for a pull request; pushes nothing: make pr [FROM=master]
  lint         black, pylint, clang-format, shellcheck, patch headers
  fuzz         the code that judges tensors, under libFuzzer: make fuzz RUNS=N
  sanitize     the capsule code under AddressSanitizer and UndefinedBehaviorSanitizer
  valgrind     orders of events in the life of shared memory, under valgrind: make valgrind ORDERS=N
  soak         exports, imports and ndarrays in a loop, memory flat: make soak CYCLES=N
  bench        what an exchange costs, against other libraries: make bench QUICK=1; all of it: head ci/bench.sh
  bench-cuda   the same on a GPU, with no network: make bench-cuda WHEEL=path REPORT=folder
  clean        remove build/ and dist/

PYTHON=path takes another Python; VENV=path an environment that already has torch.
TEXT
}

# clean: everything that the verbs made. Refuses to lose commits or changes.
clean() {
  ci/series.sh release
  rm -rf build dist
  printf 'removed build/ and dist/; next: make wheel-fast\n'
}

verb=${1:-help}
[ $# -eq 0 ] || shift
options=()
for word in "$@"; do
  if [[ $word =~ ^[A-Z_]+= ]]; then
    export "${word?}"
  else
    options+=("$word")
  fi
done
set -- "${options[@]+"${options[@]}"}"

case $verb in
  help | -h | --help) usage ;;
  apply | export | check | bump) exec ci/series.sh "$verb" "$@" ;;
  wheel) exec ci/wheel.sh "$@" ;;
  bisect) exec ci/bisect.sh "$@" ;;
  check-master) exec ci/check_master.sh "$@" ;;
  check-variants) exec ci/check_variants.sh "$@" ;;
  pr) exec ci/pr.sh "$@" ;;
  compare-upstream) exec ci/compare_upstream.sh "$@" ;;
  wheel-fast) exec ci/wheel_fast.sh "$@" ;;
  test) exec ci/test.sh fast "$@" ;;
  test-cpu) exec ci/test.sh cpu "$@" ;;
  test-cpp) exec ci/test_cpp.sh "$@" ;;
  test-cuda-sim) exec ci/test_cuda_sim.sh "$@" ;;
  test-cuda) exec bash ci/test_cuda.sh "$@" ;; # also where a copy lost the mode bits
  genesis) exec ci/genesis.sh install "$@" ;;
  genesis-undo | genesis-check | genesis-export) exec ci/genesis.sh "${verb#genesis-}" "$@" ;;
  test-genesis) exec ci/test_genesis.sh "$@" ;;
  demo) exec ci/demo.sh "$@" ;;
  bench) exec ci/bench.sh "$@" ;;
  bench-genesis) exec ci/bench_genesis.sh "$@" ;;
  bench-cuda) exec bash ci/bench_cuda.sh "$@" ;;
  lint) exec ci/lint.sh "$@" ;;
  fuzz | sanitize | soak | valgrind) exec "ci/$verb.sh" "$@" ;;
  clean) clean ;;
  *)
    printf "error: no verb '%s'; ./build.sh help lists them\n" "$verb" >&2
    exit 1
    ;;
esac
