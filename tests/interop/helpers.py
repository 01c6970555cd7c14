"""What every test file shares: a producer that can be anything, a reader of capsules, aliasing, memory.

The backend comes from TI_TEST_ARCH (cpu or cuda). Data on the device is reached through ctypes, never
through the library under test.
"""

import ctypes
import gc
import math
import mmap
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import taichi as ti
from taichi.lang import impl

import dl_structs as dl

ARCH = os.environ.get("TI_TEST_ARCH", "cpu")
ON_CUDA = ARCH == "cuda"

# NumPy before 2.1 neither asks for nor gives versioned capsules, so what is read-only has none.
NUMPY_HAS_VERSIONS = tuple(map(int, np.__version__.split(".")[:2])) >= (2, 1)
NO_NUMPY_VERSIONS = f"NumPy {np.__version__} knows legacy capsules only; 2.1 knows both"
needs_numpy_2_1 = pytest.mark.skipif(not NUMPY_HAS_VERSIONS, reason=NO_NUMPY_VERSIONS)

# Python before 3.11 calls the destructor of a fake's capsule, which is Python code, with an error pending.
needs_python_3_11 = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="ctypes of this Python loses an error that is pending in a callback"
)

# name: (Taichi type, NumPy name, DLPack code, bits); the element types of the contract.
DTYPES = {
    "i8": (ti.i8, "int8", dl.INT, 8),
    "i16": (ti.i16, "int16", dl.INT, 16),
    "i32": (ti.i32, "int32", dl.INT, 32),
    "i64": (ti.i64, "int64", dl.INT, 64),
    "u8": (ti.u8, "uint8", dl.UINT, 8),
    "u16": (ti.u16, "uint16", dl.UINT, 16),
    "u32": (ti.u32, "uint32", dl.UINT, 32),
    "u64": (ti.u64, "uint64", dl.UINT, 64),
    "f16": (ti.f16, "float16", dl.FLOAT, 16),
    "f32": (ti.f32, "float32", dl.FLOAT, 32),
    "f64": (ti.f64, "float64", dl.FLOAT, 64),
    "u1": (ti.u1, "bool", dl.BOOL, 8),
}
SHAPES = [(), (5,), (3, 4), (2, 3, 4), (2, 3, 2, 2)]
EMPTY_SHAPES = [(0,), (2, 0, 3)]


def ti_type(name):
    return DTYPES[name][0]


def np_type(name):
    return np.dtype(DTYPES[name][1])


def dl_type(name):
    return (DTYPES[name][2], DTYPES[name][3], 1)


def name_of(dtype):
    """The contract's name of a NumPy type."""
    return next(name for name, row in DTYPES.items() if row[1] == np.dtype(dtype).name)


def init(**options):
    """ti.init for the backend under test, never another one in silence."""
    ti.init(arch=ti.cuda if ON_CUDA else ti.cpu, enable_fallback=False, log_level=ti.ERROR, **options)


def own_device():
    """The DLPack device of the backend under test; the ordinal is asked from the driver."""
    return (dl.CUDA, _driver().ordinal) if ON_CUDA else (dl.CPU, 0)


# --- memory of the backend under test -------------------------------------------------------------


class _CudaDriver:
    """The few driver calls needed to own and to read device memory."""

    def __init__(self):
        self.lib = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        context, device = ctypes.c_void_p(), ctypes.c_int()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxPushCurrent_v2", context)
        self.call("cuCtxGetDevice", ctypes.byref(device))
        self.ordinal = device.value

    def call(self, name, *args):
        code = getattr(self.lib, name)(*args)
        if code != 0:
            raise RuntimeError(f"{name} failed with CUDA error {code}")


_the_driver = []


def _driver():
    if not _the_driver:
        _the_driver.append(_CudaDriver())
    return _the_driver[0]


def _allocate_on_cuda(nbytes):
    pointer = ctypes.c_uint64()
    _driver().call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(nbytes, 1)))
    return pointer.value


class Memory:
    """Bytes on the backend's device, aligned to 256, filled from a NumPy array."""

    def __init__(self, array):
        array = np.ascontiguousarray(array)
        self.nbytes = array.nbytes
        if ON_CUDA:
            self.pointer = _allocate_on_cuda(self.nbytes)
        else:
            self._block = ctypes.create_string_buffer(self.nbytes + 256)
            self.pointer = (ctypes.addressof(self._block) + 255) // 256 * 256
        write_bytes(self.pointer, array.tobytes())

    def __del__(self, is_finalizing=sys.is_finalizing):
        # At exit the driver may be gone, and the names of this module with it.
        if not is_finalizing() and ON_CUDA and hasattr(self, "pointer"):
            _driver().call("cuMemFree_v2", ctypes.c_uint64(self.pointer))


# Linux has it, Python's mmap module does not name it.
_MAP_NORESERVE = 0x4000


def anonymous_mapping(nbytes):
    """Zeros on the host. Only the pages that are touched take memory, whatever the machine has."""
    return mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)


class SparseMemory(Memory):
    """Zeros on the backend's device; on the CPU only the pages that are touched take memory."""

    def __init__(self, nbytes):  # pylint: disable=W0231
        self.nbytes = nbytes
        if ON_CUDA:
            self.pointer = _allocate_on_cuda(nbytes)
            _driver().call("cuMemsetD8_v2", ctypes.c_uint64(self.pointer), ctypes.c_ubyte(0), ctypes.c_size_t(nbytes))
        else:
            self._block = anonymous_mapping(nbytes)
            self.pointer = ctypes.addressof(ctypes.c_char.from_buffer(self._block))


def write_bytes(pointer, data):
    """Writes to the backend's memory at an address."""
    if not data:
        return
    if ON_CUDA:
        _driver().call("cuMemcpyHtoD_v2", ctypes.c_uint64(pointer), data, ctypes.c_size_t(len(data)))
    else:
        ctypes.memmove(pointer, data, len(data))


def read_bytes(pointer, count):
    """Reads the backend's memory at an address."""
    if ON_CUDA:
        out = ctypes.create_string_buffer(count)
        _driver().call("cuMemcpyDtoH_v2", out, ctypes.c_uint64(pointer), ctypes.c_size_t(count))
        return out.raw
    return ctypes.string_at(pointer, count)


# --- the fake producer ----------------------------------------------------------------------------


class UnknownKeyword(TypeError):
    """What a producer says that does not know a keyword: a TypeError that tests can tell apart."""


_open_tensors = {}  # address of the managed tensor -> what its deleter gives up


@dl.Deleter
def _fake_deleter(address):
    owner, _keep = _open_tensors.pop(address, (None, None))
    if owner is None:
        _double_deletes.append(address)
    else:
        owner.deleted += 1


_double_deletes = []


def _destructor_of(versioned):
    """The destructor that a Fake's capsules get.

    A capsule may die while an exception is on its way. NumPy's destructors set it aside, which a function written in
    Python cannot do; the one below stands in where NumPy has none (versioned capsules before NumPy 2.1).
    """
    asked = {"max_version": (1, 0)} if versioned else {}
    try:
        capsule = np.zeros(1).__dlpack__(**asked)
    except TypeError:
        return _python_destructor
    return dl.CapsuleDestructor(dl.capsule_destructor(capsule))


@dl.CapsuleDestructor
def _python_destructor(capsule):
    for name, managed in ((dl.LEGACY, dl.Managed), (dl.VERSIONED, dl.ManagedVersioned)):
        if dl.dying_capsule_is_valid(capsule, name):
            pointer = _dying_pointer(capsule, name)
            managed.from_address(pointer).deleter(pointer)


_dying_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


_DESTRUCTORS = {versioned: _destructor_of(versioned) for versioned in (False, True)}


def check_no_double_delete():
    """Fails when a deleter of a fake producer ran twice since the last call."""
    seen, _double_deletes[:] = list(_double_deletes), []
    assert not seen, f"a deleter was called twice for {seen}"


def compact_strides(shape):
    """C-contiguous strides of a shape, in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


class Fake:
    """A DLPack producer that hands out whatever it is told to, and counts what comes back.

    Args:
        data: NumPy array whose bytes are copied to the backend's device.
        shape, strides, dtype, byte_offset: what the tensor claims; default: those of `data`, compact.
            strides None is a NULL pointer; dtype is (code, bits, lanes).
        device: (type, id) that both the tensor and `__dlpack_device__` claim.
        flags, version: of a versioned capsule.
        capsule: "asked" (versioned when max_version asks for it), "legacy" or "versioned".
        accepts: the keywords `__dlpack__` knows; another one is a TypeError.
        raises: an exception that `__dlpack__` raises instead of answering.
        null: the data pointer is NULL.
        ndim: overrides len(shape).
        null_deleter: the tensor has no deleter, which the standard allows.
    """

    def __init__(
        self,
        data=None,
        *,
        shape=None,
        strides="compact",
        dtype=None,
        byte_offset=0,
        device=None,
        flags=0,
        version=(1, 3),
        capsule="asked",
        accepts=("stream", "max_version", "dl_device", "copy"),
        raises=None,
        null=False,
        ndim=None,
        null_deleter=False,
    ):
        data = np.zeros(1, np.float32) if data is None else np.asarray(data)
        self.memory = Memory(data)
        self.shape = data.shape if shape is None else tuple(shape)
        self.strides = compact_strides(self.shape) if strides == "compact" else strides
        self.dtype = dl_type(name_of(data.dtype)) if dtype is None else dtype
        self.byte_offset = byte_offset
        self.device = own_device() if device is None else device
        self.flags, self.version = flags, version
        self.kind, self.accepts, self.raises = capsule, accepts, raises
        self.null, self.ndim, self.null_deleter = null, ndim, null_deleter
        self.asked = []  # the keywords of every call
        self.made = self.deleted = 0

    @property
    def open(self):
        """Tensors handed out whose deleter has not run."""
        return self.made - self.deleted

    @property
    def pointer(self):
        """Where the first element lies."""
        return self.memory.pointer + self.byte_offset

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **keywords):
        self.asked.append(dict(keywords))
        for name in keywords:
            if name not in self.accepts:
                raise UnknownKeyword(f"__dlpack__() got an unexpected keyword argument '{name}'")
        if self.raises is not None:
            raise self.raises
        versioned = self.kind == "versioned"
        if self.kind == "asked":
            versioned = (keywords.get("max_version") or (0, 0))[0] >= 1
        return self.make_capsule(versioned)

    def make_capsule(self, versioned):
        """A capsule of either kind."""
        ints = ctypes.c_int64 * max(len(self.shape), 1)
        shape = ints(*self.shape)
        strides = None if self.strides is None else ints(*self.strides)
        managed = dl.ManagedVersioned() if versioned else dl.Managed()
        tensor = managed.tensor
        tensor.data = None if self.null else self.memory.pointer
        tensor.device = dl.Device(*self.device)
        tensor.ndim = len(self.shape) if self.ndim is None else self.ndim
        tensor.dtype = dl.DataType(*self.dtype)
        tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
        if strides is not None:
            tensor.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
        tensor.byte_offset = self.byte_offset
        if not self.null_deleter:
            managed.deleter = _fake_deleter
        if versioned:
            managed.version = dl.Version(*self.version)
            managed.flags = self.flags
        address = ctypes.addressof(managed)
        _open_tensors[address] = (self, (managed, shape, strides, self.memory))
        self.made += 1
        name = dl.VERSIONED if versioned else dl.LEGACY
        destructor = dl.CapsuleDestructor(0) if self.null_deleter else _DESTRUCTORS[versioned]
        return dl.capsule_new(address, name, destructor)


def check_released(fake):
    """Fails unless every tensor that a Fake handed out came back; collects as little garbage as that takes."""
    for generation in range(3):
        if fake.open:
            gc.collect(generation)
    if fake.open:
        collect()
    assert fake.open == 0, f"{fake.open} of {fake.made} tensors were never given back"
    assert fake.made == fake.deleted


class Wrapped:
    """A producer that gives a ready capsule, for consumers that take no bare one."""

    def __init__(self, capsule):
        self.capsule = capsule

    def __dlpack__(self, **_keywords):
        return self.capsule

    def __dlpack_device__(self):
        return own_device()


# --- reading capsules -----------------------------------------------------------------------------


class View:
    """What the struct behind a capsule says."""

    def __init__(self, name, pointer):
        self.name, self.address = name, pointer
        self.versioned = name.endswith(b"versioned")
        managed = (dl.ManagedVersioned if self.versioned else dl.Managed).from_address(pointer)
        tensor = managed.tensor
        self.version = (managed.version.major, managed.version.minor) if self.versioned else None
        self.flags = managed.flags if self.versioned else None
        self.data, self.byte_offset, self.ndim = tensor.data, tensor.byte_offset, tensor.ndim
        self.shape = tuple(tensor.shape[i] for i in range(self.ndim))
        self.strides = tuple(tensor.strides[i] for i in range(self.ndim)) if tensor.strides else None
        self.dtype = (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes)
        self.device = (tensor.device.type, tensor.device.id)
        self.deleter = ctypes.cast(managed.deleter, ctypes.c_void_p).value

    @property
    def count(self):
        return math.prod(self.shape)

    def bytes(self):
        """The bytes of a contiguous tensor."""
        return read_bytes(self.data + self.byte_offset, self.count * self.dtype[1] // 8)

    def delete(self):
        """Calls the deleter as a consumer would: from this thread, without the GIL."""
        dl.Deleter(self.deleter)(self.address)

    def delete_on_foreign_thread(self):
        """Calls the deleter on a thread that Python has never seen."""
        thread = ctypes.c_void_p()
        libc = ctypes.CDLL(None)
        code = libc.pthread_create(
            ctypes.byref(thread), None, ctypes.c_void_p(self.deleter), ctypes.c_void_p(self.address)
        )
        assert code == 0, f"pthread_create failed with {code}"
        assert libc.pthread_join(thread, None) == 0


def peek(capsule):
    """Reads a capsule of either kind and leaves it as it is."""
    name = dl.capsule_name(capsule)
    return View(name, dl.capsule_pointer(capsule, name))


_USED = {dl.LEGACY: dl.USED_LEGACY, dl.VERSIONED: dl.USED_VERSIONED}


def take(capsule):
    """Consumes a capsule: renames it; the caller owes one call of the deleter."""
    view = peek(capsule)
    assert dl.capsule_rename(capsule, _USED[view.name]) == 0
    return view


# --- aliasing -------------------------------------------------------------------------------------


def library_of(x):
    """The library an array belongs to, by the package its type lives in."""
    package = type(x).__module__.split(".")[0]
    return {"jaxlib": "jax"}.get(package, package)


class Place:
    """Where an array lies: pointer of the first element, shape, strides in elements, NumPy type."""

    def __init__(self, x):
        library = library_of(x)
        if library == "numpy":
            self.dtype, self.shape, self.pointer = x.dtype, x.shape, x.__array_interface__["data"][0]
            self.strides = tuple(s // x.itemsize for s in x.strides)
            return
        versioned = {"max_version": (1, 0)} if library == "taichi" else {}
        view = peek(x.__dlpack__(**versioned))
        self.pointer, self.shape, self.strides = (view.data or 0) + view.byte_offset, view.shape, view.strides
        if self.strides is None:
            self.strides = compact_strides(self.shape)
        name = next(n for n, row in DTYPES.items() if (row[2], row[3], 1) == view.dtype)
        self.dtype = np_type(name)

    def relevant_strides(self):
        return [(size, stride) for size, stride in zip(self.shape, self.strides) if size > 1]

    def address(self, index):
        offset = sum(i * stride for i, stride in zip(index, self.strides))
        return self.pointer + offset * self.dtype.itemsize


def values_of(x):
    """A compact array's elements as NumPy, read from its memory."""
    place = Place(x)
    count = math.prod(place.shape)
    if count == 0:
        return np.zeros(place.shape, place.dtype)
    data = read_bytes(place.pointer, count * place.dtype.itemsize)
    return np.frombuffer(data, place.dtype).reshape(place.shape)


def _write(x, index, value):
    library = library_of(x)
    if library == "taichi":
        head, tail = index[: len(x.shape)], index[len(x.shape) :]
        if not tail:
            x[head] = value
        else:
            x[head][tail if len(tail) > 1 else tail[0]] = value
    elif library in ("torch", "numpy"):
        x[index] = value
    else:
        place = Place(x)
        write_bytes(place.address(index), np.array(value, place.dtype).tobytes())


def _read(x, index):
    library = library_of(x)
    if library == "taichi":
        head, tail = index[: len(x.shape)], index[len(x.shape) :]
        return x[head] if not tail else x[head][tail if len(tail) > 1 else tail[0]]
    if library in ("torch", "numpy"):
        return x[index].item()
    if library == "warp" and not ON_CUDA:
        return x.numpy()[index].item()
    if library == "jax" and not ON_CUDA:  # there it keeps a copy on the host, and shows it again
        return np.asarray(x)[index].item()
    place = Place(x)
    return np.frombuffer(read_bytes(place.address(index), place.dtype.itemsize), place.dtype)[0].item()


def assert_aliases(a, b):
    """Fails unless both arrays are one memory: pointer, shape, strides, then a write each way.

    JAX arrays and NumPy's read-only ones are only read.
    """
    here, there = Place(a), Place(b)
    assert here.shape == there.shape and here.dtype == there.dtype
    assert here.relevant_strides() == there.relevant_strides() or math.prod(here.shape) == 0
    if math.prod(here.shape) == 0:
        return
    assert here.pointer == there.pointer, f"{here.pointer:#x} is not {there.pointer:#x}: the data was copied"
    last = tuple(size - 1 for size in here.shape)
    first = tuple(0 for _ in here.shape)
    for source, other in ((a, b), (b, a)):
        if not writable(source):
            continue
        for index in (first, last):
            value = 0 if _read(other, index) else 1
            _write(source, index, value)
            _sync()
            assert _read(other, index) == value, f"a write to {type(source)} is not seen in {type(other)}"


def assert_independent(a, b):
    """Fails when a write to `a` is seen in `b`."""
    here, there = Place(a), Place(b)
    assert here.shape == there.shape
    if math.prod(here.shape) == 0:
        return
    assert here.pointer != there.pointer, "both arrays start at one address"
    first = tuple(0 for _ in here.shape)
    before = _read(b, first)
    _write(a, first, 0 if before else 1)
    _sync()
    assert _read(b, first) == before, "a write to one array is seen in the other"


def writable(x):
    """Whether an array may be written through its own library."""
    library = library_of(x)
    if library == "numpy":
        return x.flags.writeable
    if library == "taichi":
        return not x.read_only
    return library != "jax"


def _sync():
    if ON_CUDA:
        ti.sync()


# --- arrays to test with --------------------------------------------------------------------------


def numbers(shape, name, start=1):
    """A NumPy array of small distinct numbers (bool: alternating) of a contract type."""
    count = math.prod(shape)
    values = np.arange(start, start + count)
    values = values % 2 if name == "u1" else values % 100
    return values.astype(np_type(name)).reshape(shape)


def new_ndarray(name, shape, element=()):
    """A Taichi ndarray of zeros: scalar, vector (n,) or matrix (n, m) elements.

    Taichi itself makes no zero-size ndarray: those are imported with copy=True.
    """
    dtype = ti_type(name)
    if math.prod(shape) == 0:
        wanted = element_type(name, element) if element else None
        return ti.from_dlpack(Fake(np.zeros(tuple(shape) + tuple(element), np_type(name))), dtype=wanted, copy=True)
    if not element:
        return ti.ndarray(dtype, shape)
    if len(element) == 1:
        return ti.Vector.ndarray(element[0], dtype, shape)
    return ti.Matrix.ndarray(element[0], element[1], dtype, shape)


def element_type(name, element):
    """The Taichi vector or matrix type of an element shape."""
    if len(element) == 1:
        return ti.types.vector(element[0], ti_type(name))
    return ti.types.matrix(element[0], element[1], ti_type(name))


def set_values(nd, array):
    """Writes a NumPy array straight into an ndarray's memory."""
    view = peek(nd.__dlpack__(max_version=(1, 0)))
    write_bytes(view.data, np.ascontiguousarray(array).tobytes())


# --- growth and other processes -------------------------------------------------------------------


def collect():
    """Collects garbage. What was borrowed on CUDA goes back only when Taichi's launches are done: waits for them."""
    gc.collect()
    if ON_CUDA and impl.get_runtime().prog is not None:
        ti.sync()


def available_memory():
    """Bytes that programs can still get, as Linux tells it."""
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))


def resident():
    """Resident bytes of this process, garbage collected and returned to the system first."""
    collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * mmap.PAGESIZE


def growth(step, count):
    """Bytes by which `count` calls of `step` grow this process, after a warm-up of a tenth."""
    for _ in range(max(count // 10, 1)):
        step()
    before = resident()
    for _ in range(count):
        step()
    return resident() - before


# What may be left after 100,000 rounds: under 21 bytes a round, so that no object, slot or struct fits. The CUDA driver
# keeps pools of its own on the host.
FLAT = (4 if ON_CUDA else 2) * 1024 * 1024

PRELUDE = """
import os, sys
sys.path.insert(0, {here!r})
import numpy as np
import taichi as ti
import helpers
helpers.init()
"""


def run_python(code, init_first=True, timeout=120):
    """Runs code in a fresh interpreter, after ti.init; returns the finished process with its output."""
    here = os.path.dirname(os.path.abspath(__file__))
    program = (PRELUDE.format(here=here) if init_first else "") + textwrap.dedent(code)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=timeout, check=False, env=os.environ
    )


def assert_quiet_exit(result, output=None):
    """Fails unless a process ended with 0 and said nothing on stderr."""
    assert result.returncode == 0, f"exit code {result.returncode}\n{result.stdout}\n{result.stderr}"
    assert result.stderr == "", result.stderr
    if output is not None:
        assert output in result.stdout, result.stdout
