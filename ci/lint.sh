#!/usr/bin/env bash
# make lint: black, pylint, clang-format, shellcheck, and the headers of the series.
set -euo pipefail
# shellcheck source=ci/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "$ROOT"

python=$(pick_python)
make_venv "$BUILD/venv-lint" "$python" "$ROOT/requirements/lint.txt"
bin=$BUILD/venv-lint/bin
failed=() left_out=()

# check NAME REMEDY COMMAND: goes on after a failure, so that one run shows them all.
check() {
  local name=$1 remedy=$2
  shift 2
  if "$@"; then
    say "$name: right"
  else
    warn "$name failed; $remedy"
    failed+=("$name")
  fi
}

# Files of ours, committed or about to be, that match the patterns.
ours() {
  local file
  git ls-files --cached --others --exclude-standard -- "$@" |
    while read -r file; do [ ! -f "$file" ] || printf '%s\n' "$file"; done
}

# The files of Taichi that the series adds or changes.
series_files() { git -C "$TREE" diff --name-only --diff-filter=d "$(upstream commit)" -- "$@" | sed "s|^|$TREE/|"; }

mapfile -t python_files < <(ours '*.py')
mapfile -t shell_files < <(ours '*.sh' .ci/run)
mapfile -t cpp_files < <(ours '*.c' '*.cpp' '*.h')

check black "mend it with: $bin/black -l 120 FILE" "$bin/black" --quiet --check --diff -l 120 "${python_files[@]}"
# Astroid takes ti.types.ndarray for the class of NumPy: E1120, E1123.
check pylint "its messages are above" "$bin/pylint" --rcfile=ci/pylintrc --disable=E1120,E1123 "${python_files[@]}"
check shellcheck "its messages are above" "$bin/shellcheck" -x "${shell_files[@]}"

style=$SOURCE/.clang-format
if have_source; then
  "$ROOT/ci/series.sh" ready
  mapfile -t -O ${#cpp_files[@]} cpp_files < <(series_files '*.cpp' '*.h')
  mapfile -t series_python < <(series_files '*.py')
  check "clang-format" "mend it with: $bin/clang-format --style=file:$style -i FILE" clang_format "$bin" "${cpp_files[@]}"
  if [ ${#series_python[@]} -gt 0 ]; then
    check "black on the series" "mend it with: $bin/black -l 120 FILE" "$bin/black" --quiet --check --diff -l 120 "${series_python[@]}"
    # As upstream's pre-commit hook: the package, not its tests.
    mapfile -t series_package < <(series_files 'python/taichi/*.py')
    check "pylint on the series" "its messages are above" \
      "$bin/pylint" --rcfile="$SOURCE/.pylintrc" -rn -sn --disable=E1101 "${series_package[@]}"
  fi
else
  left_out+=("clang-format and the files of the series: $(source_is_missing)")
fi
tags=$SOURCE/misc/prtags.json
[ -f "$tags" ] || tags=
check "patch headers" "its messages are above" "$python" ci/check_patches.py "$PATCHES" ${tags:+--tags "$tags"}

check "patch headers of Genesis" "its messages are above" "$python" ci/check_patches.py integrations/genesis

for entry in "${left_out[@]+"${left_out[@]}"}"; do say "left out: $entry"; done
[ ${#failed[@]} -eq 0 ] || die "lint failed: ${failed[*]}"
say "lint is clean; next: make test"
