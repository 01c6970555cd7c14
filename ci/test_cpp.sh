#!/usr/bin/env bash
# make test-cpp: the C++ tests of the series, built in the folder that `make wheel` left.
#   ci/test_cpp.sh [--tree DIR]    DIR: what `make wheel` built with the same option
set -euo pipefail
# shellcheck source=ci/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# The test suites in the files that the series adds, as a filter of GoogleTest.
filter() {
  local file
  git -C "$TREE" diff --name-only --diff-filter=A "$(upstream commit)" -- tests/cpp | while read -r file; do
    sed -n 's/^TEST(\([A-Za-z0-9_]*\),.*/\1.*/p' "$TREE/$file"
  done | sort -u | paste -sd :
}

need_source
[ "${1:-}" != --tree ] || TREE=${2:?}
folder=$(find "$TREE"/_skbuild/*/cmake-build -maxdepth 1 -name build.ninja -printf '%h\n' -quit 2>/dev/null) ||
  die "$TREE is not built; build it with: make wheel"
library=$(find "$TREE"/_skbuild/*/cmake-install -type d -name runtime -print -quit)
export PATH="$BUILD/venv-build/bin:$PATH" CCACHE_BASEDIR=$ROOT CCACHE_NOHASHDIR=1
git -C "$TREE" submodule update --init external/googletest
# The next wheel is built without the tests again.
trap 'cmake -DTI_BUILD_TESTS=OFF "$folder" >/dev/null' EXIT
cmake -DTI_BUILD_TESTS=ON "$folder" >/dev/null
cmake --build "$folder" --target taichi_cpp_tests
cd "$TREE"
TI_LIB_DIR=$library build/taichi_cpp_tests --gtest_filter="$(filter)" --gtest_brief=1
say "done; next: make test-cpu"
