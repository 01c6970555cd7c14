#!/usr/bin/env bash
# make check-variants: does the series compile with other options, compilers and Pythons than those of make wheel?
#   make check-variants [ONLY=name] [BUILD=1] [PYTHONS="python3.9 /path/to/python3.13"]
#   no-cuda, no-llvm   without the CUDA backend; without any LLVM backend
#   gcc                GCC, where upstream's CMake files do not make warnings errors: no warning in a line of the series
#   python3.N          with the headers of that CPython, for each one in PYTHONS (default: those on PATH, 3.9 to 3.13)
# Compiles each file that the series touches, without code generation: minutes, where a build of each would take hours.
#   BUILD=1            also builds no-cuda and no-llvm whole, links them, and runs what such a Taichi can: Python tests
#                      of what the series touches; an import
# Starts from the settings of the build that `make wheel` left; build/taichi stays as it is.
set -euo pipefail
build=${BUILD:-0} # lib.sh has another meaning for the name
# shellcheck source=ci/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

OUT=$BUILD/variants

# setting NAME: of the build that is there.
setting() { sed -n "s/^$1:[A-Z]*=//p" "$folder/CMakeCache.txt"; }

# configure NAME OPTIONS: as the build that is there but for OPTIONS.
configure() {
  local name=$1 log=$OUT/$1/configure.log options=() key
  shift
  for key in CMAKE_BUILD_TYPE CMAKE_C_COMPILER CMAKE_CXX_COMPILER CMAKE_CXX_FLAGS LLVM_DIR PYTHON_EXECUTABLE \
    TI_VERSION_MAJOR TI_VERSION_MINOR TI_VERSION_PATCH TI_WITH_CUDA TI_WITH_LLVM TI_WITH_OPENGL TI_WITH_VULKAN; do
    options+=("-D$key=$(setting "$key")")
  done
  rm -rf "${OUT:?}/$name"
  mkdir -p "$OUT/$name"
  cmake -G Ninja -S "$TREE" -B "$OUT/$name" -DCMAKE_EXPORT_COMPILE_COMMANDS=ON \
    -DCMAKE_INSTALL_PREFIX="$OUT/$name/install" -DTI_WITH_C_API=OFF -DTI_BUILD_EXAMPLES=OFF -DTI_BUILD_TESTS=OFF \
    "${options[@]}" "$@" >"$log" 2>&1 ||
    die "CMake cannot configure $name: $(grep -m 1 -A 4 'CMake Error' "$log"); all of it: $log"
}

# check NAME OPTIONS: compiles the files of the variant.
check() {
  local name=$1
  shift
  checked=$((checked + 1))
  "$python" "$ROOT/ci/compile_variant.py" "$TREE" --base "$(upstream commit)" --name "$name" "$@" || failed+=("$name")
}

wanted() { [ -z "${ONLY:-}" ] || [ "$ONLY" = "$1" ]; }

# build_whole NAME: what CMake configured, in place of the core of a source wheel, in an environment of its own.
build_whole() {
  local log=$OUT/$1/build.log site
  say "$1: building; the log is $log"
  CCACHE_BASEDIR=$ROOT CCACHE_NOHASHDIR=1 cmake --build "$OUT/$1" --target install >"$log" 2>&1 ||
    { tail -n 25 "$log" && return 1; }
  rm -rf "$venv" && make_wheel_venv "$venv" "$wheel" &&
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))') &&
    rm -rf "$site/taichi/_lib/core/"taichi_python*.so "$site/taichi/_lib/runtime" &&
    cp -R "$OUT/$1/install/python/taichi/_lib" "$site/taichi/"
}

try_no_cuda() {
  local files here='import pathlib, taichi; here = pathlib.Path(taichi.__file__).parent'
  mapfile -t files < <(upstream_tests)
  "$venv/bin/python" -c "$here; assert not list(here.glob('_lib/runtime/*cuda*'))" &&
    cd "$TREE" && "$venv/bin/python" -m pytest -p no:cacheprovider -q -ra "${files[@]}"
}

# Without any backend there is no memory to share, but the modules load.
try_no_llvm() { "$venv/bin/python" -c 'import taichi as ti; assert ti.Ndarray.__dlpack__ and ti.from_dlpack'; }

# built NAME
built() {
  local venv=$BUILD/venv-$1
  flag BUILD "$build" || return 0
  { build_whole "$1" && ("try_${1//-/_}"); } || failed+=("$1, built")
}

# check_option NAME OPTIONS
check_option() {
  wanted "$1" || return 0
  configure "$@"
  check "$1" "$OUT/$1"
  built "$1"
}

check_options() {
  check_option no-cuda -DTI_WITH_CUDA=OFF
  # Upstream's compilation_manager does not say that it needs taichi_common, which LLVM's parts bring along.
  check_option no-llvm -DTI_WITH_CUDA=OFF -DTI_WITH_LLVM=OFF \
    -DCMAKE_CXX_STANDARD_LIBRARIES="$OUT/no-llvm/taichi/common/libtaichi_common.a"
}

check_gcc() {
  wanted gcc || return 0
  command -v g++ >/dev/null || die "g++ is missing; install it with: apt-get install g++, or choose with ONLY=no-cuda"
  configure gcc -DCMAKE_C_COMPILER=gcc -DCMAKE_CXX_COMPILER=g++
  check gcc "$OUT/gcc" --warnings-of-the-series
}

# default_pythons: those that have headers.
default_pythons() {
  local minor
  for minor in 9 10 11 12 13; do
    [ ! -f "$(include_of "python3.$minor")/Python.h" ] || printf 'python3.%s\n' "$minor"
  done
}

include_of() { "$1" -c 'import sysconfig; print(sysconfig.get_path("include"))' 2>/dev/null; }

check_pythons() {
  local interpreter include name
  # pybind11's headers are those of any Python.
  configure python
  for interpreter in ${PYTHONS:-$(default_pythons)}; do
    include=$(include_of "$interpreter") || die "PYTHONS has '$interpreter', which does not run"
    [ -f "$include/Python.h" ] || die "$interpreter has no headers; install them, as with: apt-get install python3-dev"
    name=$("$interpreter" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
    ! wanted "$name" || check "$name" "$OUT/python" --python-include "$include"
  done
}

folder=$(find "$TREE"/_skbuild/*/cmake-build -maxdepth 1 -name CMakeCache.txt -printf '%h\n' -quit 2>/dev/null) ||
  die "$TREE is not built; build it with: make wheel"
python=$(pick_python)
export PATH="$BUILD/venv-build/bin:$PATH"
! flag BUILD "$build" || pick_wheel
export PYTHONDONTWRITEBYTECODE=1 TI_OFFLINE_CACHE=0 TI_TEST_ARCH=cpu TI_WANTED_ARCHS=cpu
unset VENV PYTHON
failed=() checked=0
check_options
check_gcc
case ${ONLY:-python} in python*) check_pythons ;; esac
[ "$checked" -gt 0 ] || die "ONLY is '${ONLY:-}', wanted no-cuda, no-llvm, gcc or python3.N of a Python that is here"
[ ${#failed[@]} -eq 0 ] || die "the series does not compile as ${failed[*]}; the errors are above"
say "the series compiles in each of these variants"
