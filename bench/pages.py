"""Memory that is mapped but not used: arrays of 1 GB need not take 1 GB."""

import ctypes
import mmap
import sys


def give_back(tensor):
    """Gives the pages of a new array back to the system, which makes empty ones when somebody asks for them.

    Taichi writes zeros to its arrays. The exchange reads none of them, so the zeros need not stay in memory.

    Args:
        tensor: Torch's view of the array, in the host's memory. A part of a page stays.
    """
    if sys.platform != "linux":
        return
    size = mmap.PAGESIZE
    begin = -(-tensor.data_ptr() // size) * size
    end = (tensor.data_ptr() + tensor.nbytes) // size * size
    if end > begin:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED):
            raise OSError(ctypes.get_errno(), "madvise")
