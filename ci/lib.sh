# shellcheck shell=bash disable=SC2034
# Sourced by every script of this folder: messages, settings, UPSTREAM, the source, environments, wheels.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
SOURCE=$ROOT/taichi
PATCHES=$ROOT/patches
BUILD=$ROOT/build
TREE=$BUILD/taichi
DIST=$ROOT/dist
UPSTREAM_FILE=$ROOT/UPSTREAM
GET_SOURCE="git submodule update --init taichi"

# Status of a check that could not be completed, apart from one that failed.
EXIT_INCOMPLETE=2

say() { printf '== %s\n' "$*"; }
warn() { printf 'warning: %s\n' "$*" >&2; }
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# flag NAME [VALUE]: is the setting NAME on? VALUE is that of $NAME, unless this file has another meaning for the name.
flag() {
  local value=${2-${!1-}}
  case $value in
    1) return 0 ;;
    0 | '') return 1 ;;
    *) die "$1 is '$value', wanted 0 or 1, as in: $1=1" ;;
  esac
}

# check_flags NAME...: a wrong value is told before any work.
check_flags() {
  local name
  for name in "$@"; do flag "$name" || true; done
}

# check_count NAME VALUE EXAMPLE: is the setting a number of things?
check_count() {
  [[ $2 =~ ^[1-9][0-9]*$ ]] || die "$1 is '$2', wanted a whole number above 0, as in: $1=$3"
}

# upstream KEY: the value of KEY in the file UPSTREAM.
upstream() {
  local value
  value=$(sed -n "s/^$1=//p" "$UPSTREAM_FILE")
  [ -n "$value" ] || die "UPSTREAM has no line '$1=...'; restore it with: git checkout UPSTREAM"
  printf '%s\n' "$value"
}

# set_upstream KEY VALUE FILE: writes KEY into FILE, which has UPSTREAM's format.
set_upstream() {
  local edited
  edited=$(sed "s|^$1=.*|$1=$2|" "$3")
  printf '%s\n' "$edited" >"$3"
}

# The version of the source wheel. The fast wheel adds ".fast".
wheel_version() { printf '%s+dlpack%s\n' "$(upstream tag | sed s/^v//)" "$(upstream series)"; }

have_source() {
  [ -e "$SOURCE/.git" ] && git -C "$SOURCE" cat-file -e "$(upstream commit)^{commit}" 2>/dev/null
}

source_is_missing() {
  printf "the source of Taichi is not here; get it with: %s" "$GET_SOURCE"
}

need_source() { have_source || die "$(source_is_missing)"; }

# For verbs that go to the network anyway.
fetch_source() {
  have_source && return
  say "fetching the source of Taichi: $GET_SOURCE"
  (cd "$ROOT" && $GET_SOURCE) || die "$(source_is_missing)"
  need_source
}

# one_at_a_time DIR: waits while another run works in DIR. The lock is the folder itself, so that nothing is left there.
one_at_a_time() {
  local lock
  exec {lock}<"$1"
  flock --nonblock "$lock" && return
  say "another run works in $1; waiting for it"
  flock "$lock"
}

# pick_python: the interpreter that PYTHON or VENV names, else python3.
pick_python() {
  local python=${PYTHON:-${VENV:+$VENV/bin/python}}
  python=$(command -v "${python:-python3}") ||
    die "Python '${PYTHON:-${VENV:-python3}}' not found; install it with: apt-get install python3 python3-venv"
  "$python" -c 'import sys; sys.exit(not (3, 9) <= sys.version_info[:2] <= (3, 13))' ||
    die "$("$python" -V) at $python: Taichi needs CPython 3.9 to 3.13; name one with PYTHON=path"
  printf '%s\n' "$python"
}

# pick_patched_python: sets `python` to that of PYTHON or VENV, else to that of the environment in
# which `make test-cpu`, else `make test`, installed a wheel.
pick_patched_python() {
  local venv
  if [ -n "${PYTHON:-}${VENV:-}" ]; then
    python=$(pick_python)
    return
  fi
  for venv in "$BUILD/venv-test-source" "$BUILD/venv-test-fast"; do
    python=$venv/bin/python
    ! "$python" -c 'import importlib.metadata as m; m.version("taichi")' 2>/dev/null || return 0
  done
  die "no environment has a patched wheel yet; make one with: make test (fast wheel) or make test-cpu (source wheel)"
}

# The lines of a .pth file that shows the packages of an outer environment. addsitedir
# also follows the .pth files there, as a plain path would not.
OUTER_SITES='
import sys, sysconfig
own = [] if sys.prefix == sys.base_prefix else [sysconfig.get_path("purelib")]
seen = [path for path in sys.path if path.endswith("-packages")]
for path in seen if sys.argv[1] == "all" else own:
    print("import site; site.addsitedir(%r)" % path)
'

# make_venv [--on-top[=all]] [--without-pip] DIR PYTHON [REQUIREMENTS]: an environment in DIR
# that follows its requirements file. With --on-top it sees, without changing it, what
# PYTHON's own environment has installed; with --on-top=all also what a PYTHON that is no
# environment has, or sees of others.
make_venv() {
  local on_top=0 pip=() dir python requirements stamp
  while [[ $1 == --* ]]; do
    case $1 in
      --on-top) on_top=1 ;;
      --on-top=all) on_top=all ;;
      --without-pip) pip=(--without-pip) ;;
    esac
    shift
  done
  dir=$1 python=$2 requirements=${3:-}
  stamp=$on_top$("$python" -c 'import sys; print(sys.version, sys.prefix)')
  stamp+=$(cat ${requirements:+"$requirements"} </dev/null)
  [ "$(cat "$dir/.stamp" 2>/dev/null)" = "$stamp" ] && return
  say "making the environment $dir" >&2
  rm -rf "$dir"
  mkdir -p "$(dirname "$dir")"
  "$python" -m venv "${pip[@]+"${pip[@]}"}" "$dir" >&2 ||
    die "$python cannot make an environment; install the module with: apt-get install python3-venv"
  if [ "$on_top" != 0 ]; then
    "$python" -c "$OUTER_SITES" "$on_top" \
      >"$("$dir/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/outer.pth"
  fi
  if [ -n "$requirements" ]; then
    say "installing $requirements into $dir" >&2
    "$dir/bin/python" -m pip install --disable-pip-version-check -r "$requirements" >&2 ||
      die "the packages of $requirements cannot be installed for $("$python" -V); pip's message is above"
  fi
  printf '%s' "$stamp" >"$dir/.stamp"
}

# make_wheel_venv VENV WHEEL: a thin environment with WHEEL. The peers are installed once, below all of these.
make_wheel_venv() {
  make_venv --on-top "$BUILD/venv-peers" "$python" "$ROOT/requirements/test.txt" &&
    make_venv --on-top "$1" "$BUILD/venv-peers/bin/python" &&
    install_wheel_into "$1" "$2"
}

# has_wheel PYTHON WHEEL: is exactly this file what was installed last, and completely?
has_wheel() {
  "$1" - "$2" <<'END' 2>/dev/null
import hashlib, importlib.metadata, sys
found = importlib.metadata.distribution("taichi")
digest = hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest()
sys.exit(not (found.read_text("RECORD") and digest in (found.read_text("direct_url.json") or "")))
END
}

# install_wheel_into VENV WHEEL: unless it is there. What it needs comes first, so that a cut run is not taken for a
# whole one. The same version built anew counts as installed for pip.
install_wheel_into() {
  local pip=("$1/bin/python" -m pip install --disable-pip-version-check --quiet)
  ! has_wheel "$1/bin/python" "$2" || return 0
  say "installing ${2##*/} into $1"
  { "${pip[@]}" "$2" &&
    { has_wheel "$1/bin/python" "$2" || "${pip[@]}" --no-deps --force-reinstall "$2"; }; } ||
    die "${2##*/} cannot be installed into $1, pip's message is above. Without a package index:" \
      "set PIP_INDEX_URL or the proxy (https_proxy); then run the same command again"
}

# install_into_venv ARGUMENTS: pip install into `venv`, by the pip that it sees in PYTHON's environment, else by its own.
install_into_venv() {
  "$venv/bin/python" -m pip --version >/dev/null 2>&1 || "$venv/bin/python" -m ensurepip >/dev/null 2>&1 ||
    die "$python has no pip; install it with: apt-get install python3-pip python3-venv"
  "$venv/bin/python" -m pip install --disable-pip-version-check --quiet --no-warn-script-location "$@"
}

# make_offline_venv DIR WHEEL: sets `venv` to a fresh environment in DIR that sees all of `python`'s packages, and
# installs WHEEL and the wheels of the folder WHEELS there, without an index.
make_offline_venv() {
  local wheel=$2 others=()
  venv=$1
  rm -rf "$venv"
  make_venv --on-top=all --without-pip "$venv" "$python"
  if [ -n "${WHEELS:-}" ]; then
    [ -d "$WHEELS" ] || die "WHEELS=$WHEELS: no such folder"
    mapfile -t others < <(find "$WHEELS" -maxdepth 1 -name '*.whl' ! -name "${wheel##*/}" | sort)
  fi
  say "installing ${wheel##*/}${others[*]+ and ${#others[@]} more} into $venv"
  install_into_venv --no-index --no-deps --ignore-installed "$wheel" "${others[@]+"${others[@]}"}" ||
    die "${wheel##*/} cannot be installed for $("$python" -V); pip's message is above"
}

# newest_wheel VERSION PYTHON: the newest wheel in dist/ of that version for that Python, or nothing.
newest_wheel() {
  local tag
  [ -d "$DIST" ] || return 0
  tag=$("$2" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
  find "$DIST" -maxdepth 1 -name "taichi-$1-$tag-*.whl" -printf '%T@ %p\n' | sort -n | tail -n 1 | cut -d ' ' -f 2-
}

# find_source_wheel: sets `wheel` to the newest source wheel for `python`.
find_source_wheel() {
  wheel=$(newest_wheel "$(wheel_version)" "$python")
  [ -n "$wheel" ] || die "dist/ has no taichi-$(wheel_version) wheel for $("$python" -V); build it with: make wheel"
}

# pick_wheel: sets `wheel` to that of WHEEL, else to the newest source wheel.
pick_wheel() {
  wheel=${WHEEL:-}
  [ -n "$wheel" ] || find_source_wheel
  [ -f "$wheel" ] || die "WHEEL=$wheel: no such file; build one with: make wheel"
}

# is_outdated WHEEL: has something that it is made from changed since? ci/fast is in the fast wheel only.
is_outdated() {
  local made_from=("$PATCHES" "$UPSTREAM_FILE")
  [[ ${1##*/} != *.fast-* ]] || made_from+=("$ROOT/ci/fast")
  [ -n "$(find "${made_from[@]}" -type f ! -name '*.pyc' ! -name '*.md' -newer "$1" -print -quit)" ]
}

# warn_if_outdated WHEEL VERB
warn_if_outdated() {
  ! is_outdated "$1" || warn "patches/ is younger than $1; build it again with: make $2"
}

# find_fast_wheel COMMAND: sets `wheel` to the fast wheel for `python`. COMMAND builds it where there is none, or an
# outdated one.
find_fast_wheel() {
  local version
  version=$(wheel_version).fast
  wheel=$(newest_wheel "$version" "$python")
  [ -z "$wheel" ] || is_outdated "$wheel" || return 0
  "$@" && wheel=$(newest_wheel "$version" "$python") && [ -n "$wheel" ]
}

# clang_format BIN FILES: are they as upstream's style wants them? BIN has the tools of requirements/lint.txt.
clang_format() {
  local bin=$1 status=0 file
  shift
  for file in "$@"; do
    "$bin/clang-format" --style="file:$SOURCE/.clang-format" --dry-run --Werror "$file" || status=1
  done
  return "$status"
}

# Upstream's tests of what the series touches: ndarrays, external arrays, the public names; and the files that it
# adds. Paths in the patched tree.
upstream_tests() {
  printf 'tests/python/test_%s.py\n' api ndarray ad_ndarray numpy numpy_io torch_io torch_ad \
    get_external_tensor_shape graph callable_template_mapper memory gc copy_from shared_array kernel_arg_errors
  git -C "$TREE" diff --name-only --diff-filter=A "$(upstream commit)" -- 'tests/python/test_*.py'
}
