"""Does an installed wheel share memory at all? Needs NumPy only: smoke.py VERSION [--no-sharing].

With --no-sharing it only has to run a kernel: for the series' first patches, which share nothing yet.
"""

import sys
from importlib.metadata import version

import numpy as np

import taichi as ti


def check(true, what):
    """Ends the program with a message unless `true`."""
    if not true:
        sys.exit(f"error: {what}")


def main():
    """Aliases both ways, through both protocols, and runs a kernel between."""
    wanted = sys.argv[1]
    check(version("taichi") == wanted, f"the installed version is {version('taichi')}, wanted {wanted}")
    ti.init(arch=ti.cpu, log_level=ti.WARN)
    plain = np.zeros((3, 4), np.float32)

    @ti.kernel
    def add_one(a: ti.types.ndarray()):
        for i in ti.grouped(a):
            a[i] += 1

    add_one(plain)
    check((plain == 1).all(), "a kernel does not write its argument")
    if "--no-sharing" in sys.argv[2:]:
        print(f"== taichi {wanted}: a kernel runs")
        return

    nd = ti.ndarray(ti.f32, (3, 4))
    views = {"__array_interface__": np.asarray(nd), "__dlpack__": np.from_dlpack(nd)}
    add_one(nd)
    for protocol, view in views.items():
        check((view == 1).all(), f"{protocol} of an ndarray does not alias it")
    for protocol, view in views.items():
        # NumPy before 2.1 imports DLPack read-only.
        if view.flags.writeable:
            view[0, 0] = 5
            check(nd[0, 0] == 5, f"a write through {protocol} does not reach the ndarray")
            nd[0, 0] = 1

    host = np.zeros((3, 4), np.float32)
    add_one(ti.from_dlpack(host))
    check((host == 1).all(), "ti.from_dlpack of a NumPy array does not alias it")
    print(f"== taichi {wanted}: ndarrays and NumPy arrays share memory both ways")


if __name__ == "__main__":
    main()
