"""Lives through orders of events, each in a process of its own, and checks the values after every step.

    python run_orders.py scalar|vector ORDER...        an ORDER is export:numpy,reset,read,exit
    python run_orders.py scalar|vector < orders.json   a list of lists of steps

This process imports the libraries and never starts Taichi. It forks a child for each order, which starts Taichi,
takes the steps and ends as any Python program does. Right is: exit code 0 and nothing on stderr. Prints one JSON
object a wrong order, and a last one with the count.
"""

import ctypes
import faulthandler
import gc
import json
import mmap
import os
import signal
import sys
import tempfile
from pathlib import Path

os.environ.update(TI_SKIP_VERSION_CHECK="ON", ENABLE_TAICHI_HEADER_PRINT="0")
# A process with threads cannot be forked safely.
os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "interop"))

import numpy as np  # noqa: E402
import taichi as ti  # noqa: E402

import helpers  # noqa: E402

# 4 MiB, so that a block that is still held can be told from what else may lie at its address later.
COUNT = 1 << 20
CHILD_SECONDS = int(os.environ.get("TI_LIFETIME_SECONDS", "120"))
OTHER_CONFIG = {"default_fp": ti.f64, "default_ip": ti.i64, "cpu_max_num_threads": 1, "debug": True}


def new_ndarray(element):
    """An ndarray of COUNT numbers: of scalars, or of vectors of 4."""
    if element == "scalar":
        return ti.ndarray(ti.i32, COUNT)
    return ti.Vector.ndarray(4, ti.f32, COUNT // 4)


def get(nd, index):
    """The number at a flat index, read by Taichi."""
    return nd[index] if len(nd.element_shape) == 0 else nd[index // 4][index % 4]


def put(nd, index, value):
    """Writes the number at a flat index through Taichi."""
    if len(nd.element_shape) == 0:
        nd[index] = value
    else:
        nd[index // 4][index % 4] = value


class NumpyView:
    """What NumPy does with the memory."""

    def __init__(self, owner):
        self.array = np.from_dlpack(owner)

    def values(self):
        return self.array.reshape(-1)

    def write(self, index, value):
        address = self.array.ctypes.data + index * self.array.itemsize
        # NumPy before 2.1 imports DLPack read-only.
        helpers.write_bytes(address, self.array.dtype.type(value).tobytes())


class TorchView:
    """What torch does with the memory."""

    def __init__(self, owner):
        import torch  # pylint: disable=C0415

        self.tensor = torch.from_dlpack(owner)

    def values(self):
        return self.tensor.cpu().numpy().reshape(-1)

    def write(self, index, value):
        self.tensor.view(-1)[index] = value


VIEWS = {"numpy": NumpyView, "torch": TorchView}


def is_resident(address, nbytes):
    """Whether every page of a range is mapped and in memory."""
    pages = -(-nbytes // mmap.PAGESIZE)
    states = (ctypes.c_ubyte * pages)()
    if ctypes.CDLL(None).mincore(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), states) != 0:
        return False
    return all(state & 1 for state in states)


def error_of(action):
    """The error that an action raises, as text."""
    try:
        action()
    except Exception as error:  # pylint: disable=W0718
        return type(error), str(error)
    raise AssertionError("an ndarray from before a reset was used, and nothing was raised")


class Story:
    """One owner, its views, and what each must show."""

    def __init__(self, element):
        self.element = element
        helpers.init()
        self.owner = new_ndarray(element)
        self.owner_works = True
        self.views = {}
        self.strangers = []
        self.writes = 0
        self.expected = np.arange(1, COUNT + 1, dtype=np.int32 if element == "scalar" else np.float32)
        self.address = helpers.Place(self.owner).pointer
        helpers.write_bytes(self.address, self.expected.tobytes())
        self.check()

    def take(self, step):
        """Takes one step, then checks everything."""
        action, _, name = step.partition(":")
        getattr(self, action)(*([name] if name else []))
        self.check()

    def export(self, name):
        self.views[name] = VIEWS[name](self.owner)

    def drop_view(self, name):
        del self.views[name]

    def drop_owner(self):
        self.owner, self.owner_works = None, False
        if self.element == "vector":
            # Taichi's access to an element of a vector ndarray leaves reference cycles.
            gc.collect()

    def reset(self):
        ti.reset()
        self.owner_works = False
        self.strangers.clear()

    def init_again(self):
        ti.init(arch=ti.cpu, log_level=ti.ERROR)
        self._meet_a_stranger()

    def init_other(self):
        helpers.init(**OTHER_CONFIG)
        self._meet_a_stranger()

    def _meet_a_stranger(self):
        """An ndarray of the new program, which must share nothing with the views."""
        self.owner_works = False
        stranger = new_ndarray(self.element)
        put(stranger, 0, 77)
        put(stranger, COUNT - 1, 78)
        self.strangers[:] = [stranger]

    def read(self):
        """Sums up what the views show: every element is touched, by the library that holds it."""
        for view in self.views.values():
            assert view.values().sum(dtype=np.float64) == self.expected.sum(dtype=np.float64)

    def write(self):
        """Writes a new number through each view, and one through the owner where it works."""
        for view in self.views.values():
            view.write(*self._next_write())
        if self.owner_works:
            put(self.owner, *self._next_write())

    def _next_write(self):
        self.writes += 1
        index, value = self.writes * 1234 % COUNT, 1000 + self.writes
        self.expected[index] = value
        return index, value

    def read_after_deleter(self):
        """A fault made on purpose, for `make valgrind`: reads a tensor that its deleter freed."""
        view = helpers.take(self.owner.__dlpack__())
        view.delete()
        ctypes.c_int64.from_address(view.address).value  # pylint: disable=W0106

    def unmap_under_view(self):
        """A fault made on purpose, for `make valgrind`: the views lose their memory, and the check reads it."""
        ctypes.CDLL(None).munmap(ctypes.c_void_p(self.address), ctypes.c_size_t(self.expected.nbytes))

    def check(self):
        """The views and the owner show what was written; others are untouched; what nobody holds is gone."""
        for name, view in self.views.items():
            assert np.array_equal(view.values(), self.expected), f"the {name} view shows other values"
        if self.owner_works:
            for index in [0, COUNT - 1] + [k * 1234 % COUNT for k in range(1, self.writes + 1)]:
                assert get(self.owner, index) == self.expected[index], f"the ndarray has another value at {index}"
        elif self.owner is not None:
            self._check_stale_owner()
        for stranger in self.strangers:
            assert (get(stranger, 0), get(stranger, COUNT - 1)) == (77, 78), "a new ndarray was written to"
        if not self.owner_works and not self.views and not helpers.ON_CUDA:
            assert not self._memory_is_left(), "nobody holds the memory, and it is still there"

    def _memory_is_left(self):
        nbytes = self.expected.nbytes
        reused = any(abs(helpers.Place(stranger).pointer - self.address) < nbytes for stranger in self.strangers)
        return not reused and is_resident(self.address, nbytes)

    def _check_stale_owner(self):
        kind, text = error_of(lambda: self.owner.__dlpack__(max_version=(1, 0)))
        assert kind is BufferError and "reset" in text, f"an export of a stale ndarray said {kind.__name__}: {text}"
        _, text = error_of(lambda: self.owner[0])
        assert "reset" in text, f"a read of a stale ndarray said: {text}"


def become_child(errors):
    """Gives the child its own stderr and no stdout; a child that hangs is killed."""
    os.dup2(errors, 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    faulthandler.enable()
    signal.alarm(CHILD_SECONDS)


def verdict(order, pid, errors):
    """None for a right end of a child, else what it said."""
    status = os.waitpid(pid, 0)[1]
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
    text = os.pread(errors, 20000, 0).decode(errors="replace")
    os.close(errors)
    if code == 0 and not text:
        return None
    return {"order": ",".join(order), "exit_code": code, "stderr": text}


def import_all(orders):
    """Imports what the orders need, before the first fork, and checks that this left a single thread."""
    if any("torch" in step for order in orders for step in order):
        import torch  # pylint: disable=C0415,W0611
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        sys.exit(f"error: {threads} threads after the imports, wanted 1: this process cannot be forked safely")
    # The children need not look at any of this when they collect garbage.
    gc.freeze()


def orders_asked(words):
    """The orders on the command line, else those on standard input."""
    if words:
        return [word.split(",") for word in words]
    return json.load(sys.stdin)


# The child's objects stay in the module until the interpreter ends, as a user's globals do.
STORY = None


def live(element, orders):
    """Forks a child for each order. Returns, in a child, the order that it has to live through; else None."""
    for order in orders:
        with tempfile.TemporaryFile() as file:
            errors = os.dup(file.fileno())
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            become_child(errors)
            return order
        wrong = verdict(order, pid, errors)
        if wrong:
            print(json.dumps({"element": element, **wrong}), flush=True)
    print(json.dumps({"ran": len(orders)}), flush=True)
    return None


if __name__ == "__main__":
    ELEMENT, ORDERS = sys.argv[1], orders_asked(sys.argv[2:])
    import_all(ORDERS)
    MINE = live(ELEMENT, ORDERS)
    if MINE is not None:
        STORY = Story(ELEMENT)
        for STEP in MINE[:-1]:
            STORY.take(STEP)
