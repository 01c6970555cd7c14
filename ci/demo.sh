#!/usr/bin/env bash
# make demo: builds the fast wheel, installs it into an environment and runs examples/demo there.
#
#   ci/demo.sh [options of the demo]     all options: ci/demo.sh --help
#
#   (neither)     makes build/venv-demo and installs requirements/demo.txt into it
#   PYTHON=path   the same from this interpreter, whose own packages (torch) are used, not changed
#   VENV=path     uses this environment, and installs the wheel and what is missing into it
set -euo pipefail
# shellcheck source=ci/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

REQUIREMENTS=$ROOT/requirements/demo.txt
OWN_VENV=$BUILD/venv-demo

usage() {
  sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
  cat <<'END'
Options: --particles N (10800)   --generations N (10)   --seed N (1)   --threads N (all cores)
         --out PATH (build/demo/demo.png)
END
}

# All that is missing is named at once, before any work.
check_tools() {
  local python=$1 include version missing=()
  version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
  command -v "${CXX:-g++}" >/dev/null || missing+=("a C++ compiler (${CXX:-g++}): apt-get install g++")
  command -v git >/dev/null || missing+=("git, which applies the patches: apt-get install git")
  [ -e "$include/Python.h" ] || missing+=("Python.h of $python: apt-get install python$version-dev")
  if [ -n "${VENV:-}" ]; then
    "$python" -m pip --version >/dev/null 2>&1 || missing+=("pip in $VENV: $python -m ensurepip")
  else
    "$python" -c 'import venv, ensurepip' 2>/dev/null ||
      missing+=("the module venv of $python: apt-get install python$version-venv")
  fi
  [ ${#missing[@]} -eq 0 ] && return
  printf 'missing: %s\n' "${missing[@]}" >&2
  die "install what is missing, then again: make demo"
}

# own_venv PYTHON: makes OWN_VENV if it is not there, half made, or made from another interpreter.
own_venv() {
  local on_top=()
  [ -z "${PYTHON:-}" ] || on_top=(--on-top=all)
  make_venv "${on_top[@]+"${on_top[@]}"}" "$OWN_VENV" "$1"
}

# fast_wheel PYTHON: sets `wheel` to the wheel for this Python, built if it is missing or outdated.
fast_wheel() {
  local python=$1
  mkdir -p "$DIST"
  find_fast_wheel build_fast_wheel ||
    die "the fast wheel was not built, the message above tells why. If pip found no package index: set PIP_INDEX_URL" \
      "or the proxy (https_proxy). Then again: make demo"
}

build_fast_wheel() {
  say "building the fast wheel (a minute at most, after the download of Taichi's release)"
  "$python" "$ROOT/ci/fast/build.py" --python "$python" --out "$DIST"
}

# install PYTHON ARGUMENTS...: pip install, with the next step if it fails.
install() {
  local python=$1
  shift
  "$python" -m pip install --disable-pip-version-check "$@" ||
    die "pip failed, its message is above. Without a package index: set PIP_INDEX_URL or the proxy" \
      "(https_proxy), or take an environment that has the packages: make demo VENV=path"
}

# needed PYTHON: the lines of REQUIREMENTS to install. What another environment has of them stays as it is.
needed() {
  local line
  if [ -z "${VENV:-}${PYTHON:-}" ]; then
    cmp -s "$REQUIREMENTS" "$OWN_VENV/.installed" || cat "$REQUIREMENTS"
    return
  fi
  grep -v '^#' "$REQUIREMENTS" | while read -r line; do
    has "$1" "${line%%==*}" || printf '%s\n' "$line"
  done
}

# has PYTHON NAME: whether the distribution is installed.
has() { "$1" -c 'import sys, importlib.metadata as m; m.version(sys.argv[1])' "$2" 2>/dev/null; }

install_requirements() {
  local python=$1 lines list=$BUILD/demo/requirements.txt
  lines=$(needed "$python")
  [ -n "$lines" ] || return 0
  mkdir -p "$BUILD/demo"
  printf '%s\n' "$lines" >"$list"
  say "installing what the demo needs (torch is large; VENV=path or PYTHON=path takes one that is there)"
  install "$python" -r "$list"
  [ -n "${VENV:-}${PYTHON:-}" ] || cp "$REQUIREMENTS" "$OWN_VENV/.installed"
}

# run_demo PYTHON OPTIONS...
run_demo() {
  local python=$1 status=0
  shift
  say "running the demo"
  PYTHONSAFEPATH=1 PYTHONPATH=$ROOT/examples${PYTHONPATH:+:$PYTHONPATH} "$python" -m demo "$@" || status=$?
  case $status in
    0) ;;
    130) exit 130 ;;
    2) die "the demo does not take these options; all of them: ci/demo.sh --help" ;;
    *) die "the demo stopped (status $status), its message is above. To start afresh:" \
      "rm -rf '$BUILD/venv-demo' '$DIST'; make demo" ;;
  esac
}

main() {
  local python wheel
  case ${1:-} in -h | --help) usage && return ;; esac
  [ -z "${VENV:-}" ] || [ -z "${PYTHON:-}" ] || die "got both VENV and PYTHON, wanted one: make demo VENV=path"
  if [ -n "${VENV:-}" ] && [ ! -x "$VENV/bin/python" ]; then
    die "VENV=$VENV has no bin/python; make it with: python3 -m venv $VENV"
  fi
  python=$(pick_python)
  check_tools "$python"
  if [ -z "${VENV:-}" ]; then
    own_venv "$python"
    python=$OWN_VENV/bin/python
  fi
  fast_wheel "$python"
  install_requirements "$python"
  [ -z "${VENV:-}" ] || say "$VENV gets the wheel of this repository in place of its Taichi"
  install_wheel_into "${VENV:-$OWN_VENV}" "$wheel"
  run_demo "$python" "$@"
  say "now: make test"
}

main "$@"
