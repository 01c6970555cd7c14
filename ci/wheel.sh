#!/usr/bin/env bash
# make wheel: the patched Taichi, compiled. Checks first, builds after.
set -euo pipefail
# shellcheck source=ci/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# The archive and its place are those of upstream's own build scripts.
LLVM_URL=https://github.com/taichi-dev/taichi_assets/releases/download/llvm15/taichi-llvm-15-linux.zip
LLVM_CACHE=$HOME/.cache/ti-build-cache/llvm15

usage() {
  cat <<'TEXT'
Usage: ./build.sh wheel [options]      (make wheel OPTIONS="...")

Builds dist/taichi-<tag>+dlpack<N>-*.whl from build/taichi: backends CPU and CUDA.

  --system-deps    take spdlog, fmt and Eigen from the distribution, where
                   their nested submodules cannot be had
  --with-graphics  also the Vulkan and OpenGL backends and GGUI: more
                   submodules, more libraries, about twice the compiling
  --jobs N         compile N files at once (default: one for each core)
  --python PATH    the Python to build for (default: python3)
  --tree DIR       build the tree in DIR as it stands, in place of build/taichi;
                   the wheel goes to DIR/dist and is not tested

Environment: LLVM_DIR names an LLVM 15; CC and CXX a clang, 10 to 15. Without
LLVM_DIR a distribution's llvm-15 is taken, else upstream's prebuilt one is
downloaded. ccache is used where it is installed. Builds are incremental.
TEXT
}

system_deps=0 graphics=0 jobs=$(nproc) tree=
parse_options() {
  while [ $# -gt 0 ]; do
    case $1 in
      --system-deps) system_deps=1 ;;
      --with-graphics) graphics=1 ;;
      --jobs | --python | --tree)
        [ $# -ge 2 ] || die "$1 needs a value; see: ./build.sh wheel --help"
        case $1 in
          --jobs) jobs=$2 ;;
          --python) export PYTHON=$2 ;;
          --tree) tree=$2 ;;
        esac
        shift
        ;;
      -h | --help)
        usage
        exit
        ;;
      *) die "no option '$1'; see: ./build.sh wheel --help" ;;
    esac
    shift
  done
  [[ $jobs =~ ^[1-9][0-9]*$ ]] || die "--jobs is '$jobs', wanted a number above 0"
  [ -z "$tree" ] || take_tree
}

# take_tree: from here on TREE is that of --tree, which may have another version than the series.
take_tree() {
  [ -f "$tree/setup.py" ] || die "--tree is '$tree', wanted the folder of a Taichi source with its setup.py"
  TREE=$(cd "$tree" && pwd)
  DIST=$TREE/dist version="*+dlpack$(upstream series)"
}

# Everything that is missing is told at once.
missing=()
need() { missing+=("$1: $2"); }

clang_version() {
  "$1" --version 2>/dev/null | sed -n 's/.*clang version \([0-9]*\).*/\1/p'
}

# The runtime is compiled to bitcode, which LLVM 15 must be able to read: no
# clang above 15.
find_compiler() {
  local name version
  for name in ${CXX:-clang++-15 clang++-14 clang++-13 clang++-12 clang++}; do
    version=$(clang_version "$name" || true)
    if [ -n "$version" ] && [ "$version" -ge 10 ] && [ "$version" -le 15 ]; then
      CXX=$(command -v "$name")
      CC=${CC:-$(command -v "${name/clang++/clang}")}
      export CC CXX
      return
    fi
  done
  need "clang++ 10 to 15${CXX:+ (CXX=$CXX is not one)}" "apt-get install clang-15"
  CXX=
}

find_llvm() {
  local dir
  if [ -n "${LLVM_DIR:-}" ]; then
    say "LLVM: LLVM_DIR=$LLVM_DIR, from the environment"
    [ -n "$(find -L "$LLVM_DIR" -name LLVMConfig.cmake -print -quit 2>/dev/null)" ] ||
      need "LLVM in LLVM_DIR=$LLVM_DIR (no LLVMConfig.cmake there)" "unset LLVM_DIR, or apt-get install llvm-15-dev"
    return
  fi
  for dir in /usr/lib/llvm-15/lib/cmake/llvm /usr/lib64/llvm15/lib/cmake/llvm; do
    if [ -f "$dir/LLVMConfig.cmake" ]; then
      say "LLVM: the distribution's, $dir"
      export LLVM_DIR=$dir
      return
    fi
  done
  [ "$(uname -sm)" = "Linux x86_64" ] || {
    need "LLVM 15" "apt-get install llvm-15-dev"
    return
  }
  if [ -d "$LLVM_CACHE" ]; then
    say "LLVM: upstream's prebuilt one, $LLVM_CACHE"
  else
    say "LLVM: none here (apt-get install llvm-15-dev would give one); upstream's prebuilt one will be downloaded:"
    say "  $LLVM_URL"
  fi
  export LLVM_DIR=$LLVM_CACHE
}

download_llvm() {
  [ "$LLVM_DIR" = "$LLVM_CACHE" ] && [ ! -d "$LLVM_CACHE" ] || return 0
  "$python" "$ROOT/ci/prebuilt_llvm.py" "$LLVM_URL" "$LLVM_CACHE" ||
    die "no LLVM 15; get one with: apt-get install llvm-15-dev, or name one with LLVM_DIR=path"
}

eigen_dir() {
  local dir
  for dir in /usr/include/eigen3 /usr/local/include/eigen3; do
    if [ -d "$dir" ]; then
      printf '%s\n' "$dir"
      return
    fi
  done
}

# need_header HEADER PACKAGE [DIR]: can the compiler find it? Without a compiler,
# is it where a distribution would put it?
need_header() {
  if [ -z "$CXX" ]; then
    [ -f "/usr/include/$1" ] || [ -f "/usr/include/eigen3/$1" ] || need "header $1" "apt-get install $2"
    return
  fi
  printf '#include <%s>\n' "$1" | "$CXX" -x c++ -std=c++17 ${3:+-isystem "$3"} -DFMT_HEADER_ONLY -E - >/dev/null 2>&1 ||
    need "header $1" "apt-get install $2"
}

preflight() {
  local include entry
  [[ $ROOT != *[[:space:]]* ]] || die "the path '$ROOT' has white space, Taichi's CMake files cannot take it; move the clone"
  command -v git >/dev/null || need git "apt-get install git"
  find_compiler
  find_llvm
  include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
  [ -f "$include/Python.h" ] || need "the headers of $("$python" -V)" "apt-get install python3-dev"
  need_header X11/Xlib.h libx11-dev
  if [ "$system_deps" = 1 ]; then
    need_header spdlog/spdlog.h libspdlog-dev
    need_header fmt/color.h libfmt-dev
    need_header Eigen/Core libeigen3-dev "$(eigen_dir)"
  fi
  if [ "$graphics" = 1 ]; then
    need_header X11/extensions/Xrandr.h libxrandr-dev
    need_header X11/extensions/Xinerama.h libxinerama-dev
    need_header X11/Xcursor/Xcursor.h libxcursor-dev
    need_header X11/extensions/XInput2.h libxi-dev
  fi
  if [ ${#missing[@]} -gt 0 ]; then
    for entry in "${missing[@]}"; do printf 'missing %s\n' "$entry" >&2; done
    die "${#missing[@]} things are missing; run the commands above, then again: make wheel"
  fi
  if command -v ccache >/dev/null; then
    say "ccache: $(command -v ccache)"
  else
    say "ccache: none; apt-get install ccache makes the next build fast"
  fi
  say "compiler: $CXX; Python: $("$python" -V); jobs: $jobs"
}

# fetch_nested: the nested submodules that this build needs and that are not there.
fetch_nested() {
  local wanted=(external/FP16 external/PicoSHA2 external/assets) absent line
  [ "$system_deps" = 1 ] || wanted+=(external/spdlog external/eigen)
  if [ "$graphics" = 1 ]; then
    wanted=()
    while read -r line; do
      if [ "$system_deps" = 0 ] || [[ ! $line =~ ^external/(spdlog|eigen)$ ]]; then wanted+=("$line"); fi
    done < <(git -C "$TREE" config --file .gitmodules --get-regexp '\.path$' | cut -d ' ' -f 2)
  fi
  mapfile -t absent < <(git -C "$TREE" submodule status "${wanted[@]}" | sed -n 's/^[-+][0-9a-f]* \([^ ]*\).*/\1/p')
  [ ${#absent[@]} -gt 0 ] || return 0
  say "fetching nested submodules: ${absent[*]}"
  GIT_TERMINAL_PROMPT=0 git -C "$TREE" submodule update --init "${absent[@]}" || {
    [ "$system_deps" = 1 ] || die "a nested submodule cannot be had; for spdlog and eigen there is: make wheel OPTIONS=--system-deps"
    die "a nested submodule cannot be had; git's message is above"
  }
}

cmake_args() {
  local on=OFF flags=""
  [ "$graphics" = 0 ] || on=ON
  printf '%s ' "-DTI_WITH_OPENGL=$on" "-DTI_WITH_VULKAN=$on" -DTI_WITH_CUDA=ON -DTI_WITH_LLVM=ON \
    -DTI_WITH_C_API=OFF -DTI_BUILD_EXAMPLES=OFF -DTI_BUILD_TESTS=OFF
  if [ "$system_deps" = 1 ]; then
    flags="-isystem $ROOT/ci/system_deps/include -isystem $(eigen_dir) -DFMT_HEADER_ONLY"
  fi
  printf "'-DCMAKE_CXX_FLAGS=%s'" "$flags"
}

# compile DIR: leaves the wheel in DIR.
compile() {
  # Stale files must not get into the wheel, and CMake has to look again for
  # files that the series adds; compiled objects stay.
  rm -rf "$TREE"/_skbuild/*/setuptools "$TREE"/_skbuild/*/cmake-install
  rm -f "$TREE"/_skbuild/*/cmake-build/CMakeSpec.json
  (
    cd "$TREE"
    unset RELEASE_VERSION PROJECT_NAME
    export PATH="$BUILD/venv-build/bin:$PATH" BUILD_NUM_THREADS=$jobs
    # Paths below the clone are relative in ccache's keys: another clone hits too.
    export CCACHE_BASEDIR=$ROOT CCACHE_NOHASHDIR=1 CCACHE_STATSLOG=$1/ccache.log
    TAICHI_CMAKE_ARGS=$(cmake_args)
    export TAICHI_CMAKE_ARGS
    python setup.py egg_info --tag-build="+dlpack$(upstream series)" bdist_wheel --dist-dir "$1"
  ) || die "the build failed; the first error is above, and a new run continues where it stopped"
  # scikit-build packs a wheel even when the compilation was interrupted.
  [ -n "$(find "$TREE"/_skbuild/*/cmake-install -name 'taichi_python*.so' -print -quit)" ] ||
    die "the compilation was interrupted; a new run continues where it stopped"
  if [ -f "$1/ccache.log" ]; then CCACHE_STATSLOG=$1/ccache.log ccache --show-log-stats; fi
}

smoke_test() {
  say "smoke test in a fresh environment"
  "$python" -m venv "$2"
  "$2/bin/python" -m pip install --disable-pip-version-check --quiet "$1" ||
    die "the wheel does not install; pip's message is above"
  (cd "$2" && TI_OFFLINE_CACHE_FILE_PATH=$2/cache bin/python "$ROOT/ci/smoke.py" "$(wheel_version)") ||
    die "the wheel fails its smoke test; the error is above"
}

version=$(wheel_version)
parse_options "$@"
python=$(pick_python)
[ -d "$TREE" ] || fetch_source
preflight
download_llvm
[ -n "$tree" ] || "$ROOT/ci/series.sh" ready
one_at_a_time "$TREE"
fetch_nested
make_venv "$BUILD/venv-build" "$python" "$ROOT/requirements/build.txt"
stage=$(mktemp -d "$BUILD/wheel.XXXXXX")
trap 'rm -rf "$stage"' EXIT
SECONDS=0
compile "$stage"
say "compiled in $((SECONDS / 60)) min $((SECONDS % 60)) s"
wheel=$(find "$stage" -maxdepth 1 -name "taichi-$version-*.whl")
[ -n "$wheel" ] || die "the build gave no wheel of version $version: $(ls "$stage")"
[ -n "$tree" ] || smoke_test "$wheel" "$stage/venv"
mkdir -p "$DIST"
mv "$wheel" "$DIST/"
[ -n "$tree" ] || say "done; next: make test-cpu"
printf '%s\n' "$DIST/${wheel##*/}"
