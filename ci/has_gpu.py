"""Exit status 0 if the CUDA driver is here and sees a GPU, else 1 and one line that says why not."""

import ctypes
import sys


def problem():
    """Why no GPU can be used, or None."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no CUDA driver on this machine (libcuda.so.1)"
    count = ctypes.c_int(0)
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if status != 0:
        return f"the CUDA driver does not start (error {status})"
    return None if count.value else "the CUDA driver sees no GPU"


def main():
    """Prints the problem."""
    reason = problem()
    if reason:
        print(f"error: {reason}; this needs a real GPU, without one run: make test-cpu, or make bench", file=sys.stderr)
    return 1 if reason else 0


if __name__ == "__main__":
    sys.exit(main())
