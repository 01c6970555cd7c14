"""Whole pages of host memory, carried out of the released core, and the warning where that fails."""

import mmap
import sys
import warnings


def whole_pages(nbytes):
    """The bytes in the pages that hold `nbytes`."""
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE


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
