#!/usr/bin/env bash
# make genesis: Genesis with a Taichi that shares its memory, in an environment of its own or in yours.
# make genesis-undo: the released Taichi and Genesis' own files again.
# make genesis-tree: Genesis' files in build/genesis, with each patch as a commit.
# make genesis-export: the commits of build/genesis become the patches.
# make genesis-check: are the patches whole? Exports again, and compares byte for byte.
#
#   ci/genesis.sh install|undo|stock|tree|export|check
#
#   stock          build/venv-genesis-stock: the same environment with the released Taichi and Genesis, to compare with
#   (neither)      the environment is build/venv-genesis
#   VENV=path      this environment; it is made if it is not there, and packages that it has stay as they are
#   PYTHON=path    makes build/venv-genesis from this interpreter
#   SOURCE=1       takes the newest source wheel of dist/ in place of the fast one
#   WHEEL=path     takes this wheel
set -euo pipefail
wants_source=${SOURCE:-} # lib.sh has another meaning for the name
# shellcheck source=ci/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=ci/worktree.sh
source "$ROOT/ci/worktree.sh"

FOLDER=$ROOT/integrations/genesis
PATCHER=$ROOT/ci/genesis_patch.py
WORK=$BUILD/genesis
OWN_VENV=$BUILD/venv-genesis
RELEASE=$(upstream tag | sed s/^v//)

# wanted KEY: the value of KEY in integrations/genesis/UPSTREAM.
wanted() { sed -n "s/^$1=//p" "$FOLDER/UPSTREAM"; }

no_index() {
  die "pip failed, its message is above; run the same command again to go on from here. Without a package index: set" \
    "PIP_INDEX_URL or the proxy (https_proxy), or take an environment that has torch, genesis-world $(wanted version)" \
    "and matplotlib: make genesis VENV=path"
}

pip_install() { "$python" -m pip install --disable-pip-version-check "$@" || no_index; }

# version_of NAME: the version of a distribution in the environment, or nothing. One that pip was
# installing when it was cut short has no RECORD yet; its remains are removed, so that pip sees them no more.
version_of() {
  "$python" - "$1" <<'END'
import importlib.metadata as m, pathlib, shutil, sys
for found in m.distributions(name=sys.argv[1]):
    folder = pathlib.Path(found._path)
    by_pip = folder.suffix == ".dist-info" and (found.read_text("INSTALLER") or "pip").strip() == "pip"
    if found.read_text("RECORD") or not by_pip:
        print(found.version)
        break
    if pathlib.Path(sys.prefix).resolve() in folder.resolve().parents:
        shutil.rmtree(folder)
END
}

# genesis_site: the folder in which the environment has Genesis.
genesis_site() {
  "$python" - <<'END'
import importlib.metadata, pathlib, sys
site = pathlib.Path(importlib.metadata.distribution("genesis-world").locate_file("")).resolve()
if pathlib.Path(sys.prefix).resolve() not in site.parents:
    sys.exit(f"error: {sys.prefix} sees the Genesis of another environment, in {site}, wanted one of its own: "
             "make genesis VENV=path with a new path")
print(site)
END
}

check_python() {
  "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' ||
    die "got $("$1" -V) at $1, wanted 3.10 to 3.13: Genesis $(wanted version) has no other; name one with PYTHON=path"
}

check_tools() {
  command -v git >/dev/null || die "git is missing, which applies the patches; install it with: apt-get install git"
  "$1" -c 'import venv, ensurepip' 2>/dev/null ||
    die "$1 has no module venv; install it with: apt-get install python3-venv"
}

# choose_environment: sets venv and python. A half made environment of our own is made anew.
choose_environment() {
  local base
  [ -z "${VENV:-}" ] || [ -z "${PYTHON:-}" ] || die "got both VENV and PYTHON, wanted one: make genesis VENV=path"
  venv=${VENV:-$OWN_VENV}
  python=$venv/bin/python
  if [ -x "$python" ] && "$python" -m pip --version >/dev/null 2>&1; then
    check_python "$python"
    return
  fi
  if [ "$venv" != "$OWN_VENV" ] && [ -x "$python" ] && "$python" -c '' 2>/dev/null; then
    check_python "$python"
    say "$venv has no pip; adding it with: $python -m ensurepip"
    "$python" -m ensurepip >/dev/null 2>&1 ||
      die "$venv has no pip, and no module ensurepip; install pip there, as with: uv pip install --python $python pip"
    return
  fi
  [ ! -e "$venv" ] || [ "$venv" = "$OWN_VENV" ] || [ -f "$venv/pyvenv.cfg" ] || [ -z "$(ls -A "$venv")" ] ||
    die "VENV=$venv is a folder with other things in it, wanted an environment or a new path"
  base=$(VENV='' pick_python)
  check_python "$base"
  check_tools "$base"
  say "making the environment $venv"
  "$base" -m venv "$venv" || die "$base -m venv failed, its message is above; name another one: make genesis PYTHON=path"
}

# refuse_other_genesis: before anything is installed.
refuse_other_genesis() {
  local site
  [ -n "$(version_of genesis-world)" ] || return 0
  site=$(genesis_site)
  "$python" "$PATCHER" check "$venv" "$site" --version "$(wanted version)"
}

# torch first, by itself: Genesis does not ask for it, and its index may be another one.
install_genesis() {
  local torch
  torch=$(version_of torch)
  if [ -z "$torch" ]; then
    say "installing torch $(wanted torch) (large)"
    pip_install "torch==$(wanted torch)"
  elif [[ $torch != $(wanted torch)* ]]; then
    warn "torch is $torch here; this was tested with $(wanted torch)"
  fi
  if [ -z "$(version_of genesis-world)" ]; then
    say "installing Genesis $(wanted version)"
    # A Taichi that is there stays: ours satisfies it too.
    pip_install "genesis-world==$(wanted version)" "taichi==$RELEASE"
  fi
  # Genesis imports it, and does not say so.
  [ -n "$(version_of matplotlib)" ] || pip_install matplotlib
}

# choose_wheel: sets WHEEL.
choose_wheel() {
  local wheel
  if [ -n "${WHEEL:-}" ]; then
    [ -f "$WHEEL" ] || die "WHEEL=$WHEEL is not there; build one with: make wheel-fast, or: make wheel"
    return
  fi
  if flag SOURCE "$wants_source"; then
    find_source_wheel
  else
    find_fast_wheel env VENV= PYTHON="$python" "$ROOT/build.sh" wheel-fast ||
      die "the fast wheel was not built; then again: make genesis"
  fi
  WHEEL=$wheel
}

install_wheel() {
  ! has_wheel "$python" "$WHEEL" || return 0
  version_of taichi >/dev/null # removes what a cut installation left
  say "installing ${WHEEL##*/} into $venv, in place of any other Taichi there"
  pip_install --quiet --force-reinstall --no-deps "$WHEEL"
}

patch_genesis() {
  local patches site
  site=$(genesis_site)
  mapfile -t patches < <(list_patches "$FOLDER")
  "$python" "$PATCHER" patch "$venv" "$site" --version "$(wanted version)" "${patches[@]}"
}

# try_it: the parts find each other.
try_it() {
  "$python" - "$(wanted version)" "$RELEASE" <<'END' || die "what was installed does not work together, see above"
import importlib.metadata as m, sys
import genesis, taichi
from genesis.utils import zero_copy
assert m.version("genesis-world") == sys.argv[1], m.version("genesis-world")
assert m.version("taichi").startswith(sys.argv[2] + "+dlpack"), m.version("taichi")
assert hasattr(taichi.ScalarField, "__dlpack__"), taichi.__file__
END
}

install() {
  flag SOURCE "$wants_source" || true # a wrong value is told before any work
  choose_environment
  one_at_a_time "$venv"
  refuse_other_genesis
  install_genesis
  refuse_other_genesis
  choose_wheel
  install_wheel
  patch_genesis
  try_it
  say "$venv has torch $(version_of torch), Genesis $(version_of genesis-world), Taichi $(version_of taichi)"
  say "use it with: source $venv/bin/activate; test it with: make test-genesis; undo it with: make genesis-undo" \
    "${VENV:+VENV=$VENV}"
}

undo() {
  local taichi site
  venv=${VENV:-$OWN_VENV}
  python=$venv/bin/python
  [ -x "$python" ] || die "there is no environment in $venv; name one: make genesis-undo VENV=path"
  one_at_a_time "$venv"
  if [ -n "$(version_of genesis-world)" ]; then
    site=$(genesis_site)
    "$python" "$PATCHER" undo "$venv" "$site"
  fi
  taichi=$(version_of taichi)
  if [ "$taichi" != "$RELEASE" ]; then
    say "installing the released Taichi $RELEASE in place of ${taichi:-none}"
    pip_install --quiet --force-reinstall --no-deps "taichi==$RELEASE"
  fi
  say "$venv has the released Taichi $(version_of taichi) and Genesis $(version_of genesis-world) as it comes;" \
    "again: make genesis${VENV:+ VENV=$VENV}"
}

# stock: an environment on top of the patched one in which Taichi and Genesis are the released ones.
stock() {
  local stock=$BUILD/venv-genesis-stock
  python=${VENV:-$OWN_VENV}/bin/python
  [ -x "$python" ] || die "there is no environment in ${VENV:-$OWN_VENV}; make it with: make genesis"
  make_venv --on-top=all "$stock" "$python"
  [ ! -f "$stock/.complete" ] || return 0
  say "installing the released Taichi and Genesis into $stock"
  "$stock/bin/python" -m pip install --disable-pip-version-check --quiet --no-deps --ignore-installed \
    "taichi==$RELEASE" "genesis-world==$(wanted version)" ||
    die "pip failed, its message is above. The comparison needs the released wheels of Taichi and Genesis: set" \
      "PIP_INDEX_URL or the proxy (https_proxy); then run the same command again"
  touch "$stock/.complete"
}

# ---- the patches themselves: a repository of the wheel's files, with fixed names and dates

# genesis_wheel: the wheel that UPSTREAM names, from the index, by its hash.
genesis_wheel() {
  local wheel
  wheel=$BUILD/download/genesis_world-$(wanted version)-py3-none-any.whl
  mkdir -p "$BUILD/download"
  if [ "$(sha256sum "$wheel" 2>/dev/null | cut -d ' ' -f 1)" != "$(wanted wheel)" ]; then
    "$python" -m pip download --disable-pip-version-check --quiet --no-deps -d "$BUILD/download" \
      "genesis-world==$(wanted version)" >&2 || no_index
    [ "$(sha256sum "$wheel" | cut -d ' ' -f 1)" = "$(wanted wheel)" ] ||
      die "got a wheel of Genesis with the hash $(sha256sum "$wheel"), wanted $(wanted wheel)"
  fi
  printf '%s\n' "$wheel"
}

# make_tree DIR: the files of the wheel as a commit, the patches on top of it.
make_tree() {
  local wheel patches
  python=$(pick_python)
  wheel=$(genesis_wheel)
  rm -rf "$1"
  mkdir -p "$1"
  "$python" -m zipfile -e "$wheel" "$1"
  find "$1" -mindepth 1 -maxdepth 1 ! -name genesis -exec rm -rf {} +
  plain_git -C "$1" init --quiet
  find "$1/genesis" -name '*.py' -printf 'genesis/%P\0' | sort -z |
    plain_git -C "$1" add --force --pathspec-from-file=- --pathspec-file-nul
  GIT_AUTHOR_DATE='2026-01-01T00:00:00Z' GIT_COMMITTER_DATE='2026-01-01T00:00:00Z' plain_git -C "$1" \
    commit --quiet --author "Taichi DLPack series <series@example.invalid>" -m "Genesis $(wanted version)"
  plain_git -C "$1" tag base
  mapfile -t patches < <(list_patches "$FOLDER")
  [ ${#patches[@]} -eq 0 ] || plain_git -C "$1" am --quiet --keep-non-patch --keep-cr \
    --committer-date-is-author-date "${patches[@]}" || die "the patch named above does not apply; mend it in $FOLDER"
}

tree() {
  [ ! -e "$WORK" ] || die "$WORK is there; export it with: make genesis-export, or remove it"
  make_tree "$WORK"
  say "build/genesis has Genesis with the patches as commits; after changes: make genesis-export"
}

export_patches() {
  [ -d "$WORK/.git" ] || die "there is no build/genesis; make it with: make genesis-tree"
  [ -z "$(plain_git -C "$WORK" status --porcelain --untracked-files=no)" ] ||
    die "build/genesis has changes that are not committed; commit them there first"
  find "$FOLDER" -maxdepth 1 -name '[0-9]*.patch' -delete
  format_patches "$WORK" base..HEAD "$FOLDER"
  say "integrations/genesis has $(list_patches "$FOLDER" | wc -l) patches; next: make genesis-check"
}

check() {
  local scratch
  scratch=$(mktemp -d)
  # shellcheck disable=SC2064
  trap "rm -rf '$scratch'" EXIT
  make_tree "$scratch/tree"
  "$python" "$ROOT/ci/check_patches.py" "$FOLDER"
  format_patches "$scratch/tree" base..HEAD "$scratch/again"
  diff -r -x README.md -x UPSTREAM "$FOLDER" "$scratch/again" ||
    die "a new export differs as shown above; write it with: make genesis-tree; make genesis-export"
  say "the patches of Genesis are whole, byte for byte; next: make genesis"
}

verb=${1:-}
case $verb in
  install | undo | stock | tree | check) "$verb" ;;
  export) export_patches ;;
  *) die "usage: ci/genesis.sh install|undo|stock|tree|export|check" ;;
esac
