#!/usr/bin/env bash
# make sanitize: the capsule code as a Python extension with AddressSanitizer and
# UndefinedBehaviorSanitizer, under tests/fuzz/test_capsules.py. Taichi is not needed.
set -euo pipefail
# shellcheck source=ci/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

python=$(pick_python)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
preload=$("$python" "$ROOT/ci/sanitizers.py" runtime)
say "building the extension with the sanitizers"
"$python" "$ROOT/ci/sanitizers.py" extension "$scratch" --python "$python"

# Python itself leaves memory behind at exit: the tests count bytes instead. Its own
# allocator would hide its objects from the sanitizer.
say "running the tests of the capsules"
env LD_PRELOAD="$preload" PYTHONPATH="$scratch" PYTHONMALLOC=malloc PYTHONDONTWRITEBYTECODE=1 \
  ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1 \
  "$python" "$ROOT/tests/fuzz/test_capsules.py" "$@" ||
  die "make sanitize failed; run one test again with: ./build.sh sanitize Capsules.NAME"
say "done, no fault; next: make fuzz"
