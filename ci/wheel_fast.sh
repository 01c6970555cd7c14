#!/usr/bin/env bash
# make wheel-fast: the released wheel with the series on top. See ci/fast/.
set -euo pipefail
# shellcheck source=ci/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

python=$(pick_python)
exec "$python" "$ROOT/ci/fast/build.py" --python "$python" --out "$DIST" "$@"
