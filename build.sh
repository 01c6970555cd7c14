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
  bench-genesis  what Genesis gains: make bench-genesis ENVS="1 64"
  genesis-tree, genesis-export, genesis-check   the patches for Genesis, as apply, export and check

  apply        the patched tree in build/taichi
  export       the commits of build/taichi into patches/
  check        is the series whole: export again, compare byte for byte
  bump         move the series to another release: make bump TAG=v...
  check-master   does the series still apply to upstream's newest master: make check-master [BUILD=1]
  check-variants   without CUDA, without LLVM, by GCC, for other Pythons: does it compile: make check-variants [BUILD=1]
  bisect       each patch by itself, on those before it: formatting, build, tests: make bisect [FROM=n]
  compare-upstream   Taichi's own tests, all of them: does the patched wheel lose any: [ONLY=pattern]
  pr           a branch and a text for a pull request; pushes nothing: make pr [FROM=master]
  lint         black, pylint, clang-format, shellcheck, patch headers
  fuzz         the code that judges tensors, under libFuzzer: make fuzz RUNS=N
  sanitize     the capsule code under AddressSanitizer and UndefinedBehaviorSanitizer
  valgrind     orders of events in the life of shared memory, under valgrind: make valgrind ORDERS=N
  soak         exports, imports and ndarrays in a loop, memory flat: make soak CYCLES=N
  bench        what an exchange costs, against other libraries: make bench QUICK=1
  bench-cuda   the same on a GPU, with no network: make bench-cuda WHEEL=path REPORT=folder
  clean        remove build/ and dist/

./build.sh VERB --help tells all that a verb takes. PYTHON=path takes another Python; VENV=path an environment that
already has torch.
TEXT
}

die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# clean: everything that the verbs made. Refuses to lose commits or changes.
clean() {
  ci/series.sh release
  rm -rf build dist
  printf 'removed build/ and dist/; next: make wheel-fast\n'
}

# find_script VERB: sets `script` to the command that serves it, and `takes_words` to 1 if that takes options or
# arguments of pytest beside NAME=value.
find_script() {
  takes_words=0
  case $1 in
    bench | bench-cuda | bisect | check-master | demo | fuzz | test | test-* | wheel | wheel-fast) takes_words=1 ;;
  esac
  case $1 in
    clean) script=(clean) ;; # the function above
    apply | export | check | bump) script=(ci/series.sh "$1") ;;
    test) script=(ci/test.sh fast) ;;
    test-cpu) script=(ci/test.sh source) ;;
    genesis) script=(ci/genesis.sh install) ;;
    genesis-undo | genesis-tree | genesis-check | genesis-export) script=(ci/genesis.sh "${1#genesis-}") ;;
    bench | bench-cuda | bench-genesis | bisect | check-master | check-variants | compare-upstream | demo | fuzz | lint | \
      pr | sanitize | soak | test-cpp | test-cuda | test-cuda-sim | test-genesis | valgrind | wheel | wheel-fast)
      script=("ci/${1//-/_}.sh")
      ;;
    *) die "no verb '$1'; ./build.sh help lists them" ;;
  esac
}

# help_of SCRIPT: the comment at its head. Some have a longer help of their own.
help_of() {
  case $1 in
    clean) usage ;;
    ci/wheel.sh | ci/wheel_fast.sh | ci/demo.sh) exec bash "$1" --help ;;
    *) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$1" ;;
  esac
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
  help | -h | --help)
    usage
    exit
    ;;
esac
find_script "$verb"
case " ${options[*]-} " in
  *' --help '* | *' -h '*)
    help_of "${script[0]}"
    exit
    ;;
esac
[ $# -eq 0 ] || [ "$takes_words" = 1 ] ||
  die "make $verb takes no '$1'; its settings are NAME=value: ./build.sh $verb --help tells which"
if [ "$verb" = clean ]; then
  clean
  exit
fi
# By bash, also where a copy lost the mode bits.
exec bash "${script[@]}" "$@"
