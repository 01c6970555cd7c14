"""Memory of the released core that several own, and that is carried out of the core when it lets go too early."""

import mmap
import sys
import warnings

from taichi._lib.core import taichi_dlpack as ext


class _Owner:
    """One of the owners of a SharedBlock, for as long as it lives."""

    __slots__ = ("_block",)

    def __init__(self, block):
        self._block = block

    def __del__(self):
        self._block.let_go()


class SharedBlock:
    """A block of the core's memory. Its home, an ndarray or an SNode tree, owns it, and so does each export.

    Owners let go on any thread and in the middle of anything else, the garbage collector's. So each step that counts is a
    single one for the interpreter: an entry is added to a list, or taken from it.
    """

    def __init__(self):
        # One entry for each owner but one.
        self._further_owners = []
        self._home = [None]
        # The Pages that are carried out, if it comes to that.
        self.pages = None

    @property
    def is_shared(self):
        """Is there an owner beside the home?"""
        return bool(self._further_owners) or not self._home

    def share(self):
        """One more owner. Only an owner may ask."""
        self._further_owners.append(None)
        return _Owner(self)

    def let_go(self):
        """An owner goes. The last one frees the memory."""
        try:
            self._further_owners.pop()
        except IndexError:
            self._free()
            self.pages = None

    def leave_home(self):
        """The home goes, if it has not gone before."""
        try:
            self._home.pop()
        except IndexError:
            return
        self.let_go()

    @property
    def must_be_kept(self):
        """Must the memory be carried out before its home ends? That is tried once."""
        return self.is_shared and not (self.pages is not None and self.pages.tried)

    def pages_at(self, address, nbytes):
        """The Pages to carry out."""
        self.pages = ext.Pages(address, whole_pages(nbytes))
        return self.pages

    @property
    def is_kept(self):
        """Has the memory been carried out of the core?"""
        return self.pages is not None and self.pages.kept

    def _free(self):
        """Frees what is still the core's."""


def whole_pages(nbytes, page=mmap.PAGESIZE):
    """The bytes in the pages that hold `nbytes`."""
    return -(-nbytes // page) * page


def warn_of_freed(what, reason):
    """Warns that views are about to lose their memory."""
    warnings.warn(
        f"{what} that is shared with another library is freed now, as Taichi lets go of its memory: {reason}. "
        "Do not touch those views again. The source wheel (`make wheel`) keeps the memory alive.",
        RuntimeWarning,
        stacklevel=_level_of_the_caller(),
    )


def _level_of_the_caller():
    """The `stacklevel` at which a warning names the line outside Taichi that led here."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("taichi."):
        level, frame = level + 1, frame.f_back
    return level
