"""Control of the simulated CUDA driver: its order of work, its log, its faults, its memory, another library's work.

`load()` puts the simulated libcuda.so into this process, where a later dlopen("libcuda.so") finds it by its name. It
must come before Taichi looks for a driver. Everything else here acts on that library and appears in no call log.
"""

import contextlib
import ctypes
import json
import struct

import build

SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, DEINITIALIZED = 0, 1, 2, 3, 4
NO_DEVICE, INVALID_DEVICE, INVALID_CONTEXT, INVALID_HANDLE, NOT_FOUND = 100, 101, 201, 400, 500
NOT_READY, ILLEGAL_ADDRESS, NOT_PERMITTED, NOT_SUPPORTED, UNKNOWN = 600, 700, 800, 801, 999
CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED, CAPTURE_UNMATCHED, CAPTURE_ISOLATION = 900, 901, 903, 905
CAPTURE_IMPLICIT, CAPTURED_EVENT = 906, 907

# Streams with a number instead of a handle.
NULL, LEGACY, PER_THREAD = 0, 1, 2

_ORDERS = {"program": 0, "late": 1, "random": 2}
_POLICIES = {None: 0, "early": 1, "late": 2}
_KINDS = {"fill": 0, "add": 1}
_TYPES = {"i32": 0, "f32": 1}
_MEMORIES = {"device": 0, "pool": 1, "managed": 2, "pinned": 3}
_FORMATS = {"i32": "i", "f32": "f"}
ITEM_SIZE = 4

_pointer, _size, _stream = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p
_PROTOTYPES = {
    "simCalls": (ctypes.c_void_p, []),
    "simFaults": (ctypes.c_void_p, []),
    "simLive": (ctypes.c_void_p, []),
    "simFreeText": (None, [ctypes.c_void_p]),
    "simLeaveProcess": (None, []),
    "simClearLog": (None, []),
    "simClearFaults": (None, []),
    "simInject": (None, [ctypes.c_char_p, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int]),
    "simClearInjections": (None, []),
    "simConfigure": (ctypes.c_int, [ctypes.c_char_p, ctypes.c_int]),
    "simSetOrder": (None, [ctypes.c_int, ctypes.c_uint]),
    "simSetPolicy": (ctypes.c_int, [_stream, ctypes.c_int, ctypes.c_int]),
    "simClearPolicies": (None, []),
    "simDrain": (None, []),
    "simRun": (ctypes.c_int, [_stream, ctypes.c_int, ctypes.c_int]),
    "simPending": (ctypes.c_int, [_stream, ctypes.c_int]),
    "simStreamCreate": (_stream, [ctypes.c_int, ctypes.c_int]),
    "simKernel": (
        ctypes.c_int,
        [_stream, ctypes.c_int, ctypes.c_int, ctypes.c_int, _pointer, _size, ctypes.c_double],
    ),
    "simCopy": (ctypes.c_int, [_stream, ctypes.c_int, _pointer, _pointer, _size]),
    "simSnapshot": (ctypes.c_int, [_stream, ctypes.c_int, _pointer, _size]),
    "simSnapshotResult": (ctypes.c_int, [ctypes.c_int, ctypes.c_char_p, _size]),
    "simEmulate": (None, [ctypes.c_char_p, ctypes.c_int, ctypes.c_int, _pointer, _size, ctypes.c_double]),
    "simClearEmulations": (None, []),
    "simAllocate": (_pointer, [ctypes.c_int, ctypes.c_int, _size]),
    "simReclaim": (ctypes.c_int, [_pointer]),
    "simPeek": (ctypes.c_int, [_pointer, ctypes.c_char_p, _size]),
    "simPoke": (ctypes.c_int, [_pointer, ctypes.c_char_p, _size]),
}

_loaded = []


def load(hide=()):
    """Builds the library where needed and loads it, once in a process. `hide` names entry points to leave out."""
    if not _loaded:
        library = ctypes.CDLL(str(build.build(hide=hide)))
        for name, (result, arguments) in _PROTOTYPES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        _loaded.append(library)
    return _loaded[0]


def driver():
    """The loaded library; its entry points are the driver's."""
    return _loaded[0]


class DriverError(Exception):
    """A driver call that did not return CUDA_SUCCESS."""

    def __init__(self, name, code):
        super().__init__(f"{name} returned {code}")
        self.code = code


def cu(name, *arguments):
    """Calls the driver as a program would, logged; raises DriverError for an error code.

    Ints are passed as 64 bits: none of these calls tells them from 32.
    """
    wide = [ctypes.c_uint64(argument) if isinstance(argument, int) else argument for argument in arguments]
    code = getattr(driver(), name)(*wide)
    if code != SUCCESS:
        raise DriverError(name, code)


# --- the log --------------------------------------------------------------------------------------


class Call:
    """One call: name, sequence, thread, result, blocking, and its arguments by name (`call.stream`)."""

    def __init__(self, fields):
        self.fields = fields

    def __getattr__(self, name):
        try:
            return self.fields[name]
        except KeyError:
            raise AttributeError(f"{self.fields['name']} has no {name}: {self.fields}") from None

    def __repr__(self):
        hidden = ("name", "sequence", "thread", "result", "blocking")
        shown = ", ".join(f"{key}={value}" for key, value in self.fields.items() if key not in hidden)
        return f"{self.name}({shown})"


class Fault:
    """Something that the program under test must not do. `kind` is one of the README's table."""

    def __init__(self, fields):
        self.kind, self.message, self.call = fields["kind"], fields["message"], fields["call"]

    def __repr__(self):
        return f"{self.kind} in {self.call}: {self.message}"


def _text(name):
    address = getattr(driver(), name)()
    try:
        return json.loads(ctypes.string_at(address))
    finally:
        driver().simFreeText(address)


def calls(*names):
    """The logged calls, oldest first; of these names only, if any are given."""
    return [Call(fields) for fields in _text("simCalls") if not names or fields["name"] in names]


def call_names():
    """The names of the logged calls."""
    return [call.name for call in calls()]


def clear_log():
    driver().simClearLog()


@contextlib.contextmanager
def recording():
    """The calls made in the block: a list that is filled when the block ends."""
    clear_log()
    made = []
    yield made
    made.extend(calls())


def faults():
    return [Fault(fields) for fields in _text("simFaults")]


def clear_faults():
    driver().simClearFaults()


@contextlib.contextmanager
def expect_fault(kind):
    """Fails unless the block makes faults, all of this kind; then forgets them."""
    assert not faults(), f"faults before the expected one: {faults()}"
    yield
    seen = faults()
    clear_faults()
    assert seen and {fault.kind for fault in seen} == {kind}, f"wanted {kind}, got {seen}"


def inject(name, code, nth=1, count=1):
    """From now on the nth call of `name` returns `code` and does nothing; `count` calls do, or all for None."""
    driver().simInject(name.encode(), code, 0, nth, count or 0)


def ignore(name):
    """From now on calls of `name` say success and do nothing."""
    driver().simInject(name.encode(), 0, 1, 1, 0)


def clear_injections():
    driver().simClearInjections()


def configure(**fields):
    """Changes what can be changed in a running process: see the README's table."""
    for name, value in fields.items():
        code = driver().simConfigure(name.encode(), int(value))
        assert code == SUCCESS, f"{name} cannot be changed now"


# --- the order of work ----------------------------------------------------------------------------


def order(name, seed=0):
    """When enqueued work runs: "program" (at once), "late" (when the host waits for it) or "random"."""
    driver().simSetOrder(_ORDERS[name], seed)


def drain():
    """Runs everything that is pending."""
    driver().simDrain()


def _check(code, what):
    if code != SUCCESS:
        raise DriverError(what, code)


class Snapshot:
    """What a stream read when it came to it."""

    def __init__(self, number, count, dtype):
        self._number, self._count, self._dtype = number, count, dtype
        self._bytes = None

    @property
    def taken(self):
        """Whether the stream has come to it."""
        if self._bytes is None:
            buffer = ctypes.create_string_buffer(self._count * ITEM_SIZE)
            if driver().simSnapshotResult(self._number, buffer, len(buffer)):
                self._bytes = buffer.raw
        return self._bytes is not None

    @property
    def values(self):
        """The elements read."""
        assert self.taken, "the read has not run; wait for its stream"
        return unpack(self._bytes, self._dtype)


class Stream:
    """A stream of another library. Its work appears in no call log.

    Args:
        non_blocking: it and the legacy default stream do not wait for each other.
        device: as the driver numbers it; the stream is one of its primary context.
        handle: an existing stream, or NULL, LEGACY or PER_THREAD.
    """

    def __init__(self, non_blocking=False, device=0, handle=None):
        self.device = device
        self.handle = driver().simStreamCreate(device, non_blocking) if handle is None else handle

    def order(self, policy):
        """Its work runs "early" (as soon as it may), "late" (when waited for), or as all (None)."""
        _check(driver().simSetPolicy(self.handle, self.device, _POLICIES[policy]), "order")
        return self

    def _kernel(self, kind, ptr, count, value, dtype):
        code = driver().simKernel(self.handle, self.device, _KINDS[kind], _TYPES[dtype], ptr, count, value)
        _check(code, f"a foreign {kind}")

    def fill(self, ptr, count, value, dtype="i32"):
        """A kernel that sets `count` elements."""
        self._kernel("fill", ptr, count, value, dtype)

    def add(self, ptr, count, value, dtype="i32"):
        """A kernel that adds to `count` elements."""
        self._kernel("add", ptr, count, value, dtype)

    def copy(self, to, source, nbytes):
        """A kernel that copies."""
        _check(driver().simCopy(self.handle, self.device, to, source, nbytes), "a foreign copy")

    def snapshot(self, ptr, count, dtype="i32"):
        """A kernel that reads `count` elements."""
        return Snapshot(driver().simSnapshot(self.handle, self.device, ptr, count * ITEM_SIZE), count, dtype)

    @property
    def pending(self):
        """The number of its operations that have not run."""
        return driver().simPending(self.handle, self.device)

    def run(self, count=1 << 30):
        """Runs its first `count` pending operations, with what they wait for."""
        _check(driver().simRun(self.handle, self.device, count), "run")

    def begin_capture(self, mode=0):
        cu("cuStreamBeginCapture_v2", self.handle, mode)

    def end_capture(self):
        """Ends a capture; raises DriverError where something spoilt it."""
        cu("cuStreamEndCapture", self.handle, ctypes.byref(ctypes.c_void_p()))


def legacy_stream(device=0):
    """The legacy default stream of a device's primary context."""
    return Stream(device=device, handle=LEGACY)


def emulate(part, kind, ptr, count, value, dtype="i32"):
    """A launch of a kernel with `part` in its name does `kind`, "fill" or "add", on `count` elements at `ptr`."""
    driver().simEmulate(part.encode(), _KINDS[kind], _TYPES[dtype], ptr, count, value)


def clear_emulations():
    driver().simClearEmulations()


# --- memory ---------------------------------------------------------------------------------------


def unpack(data, dtype="i32"):
    return list(struct.unpack(f"{len(data) // ITEM_SIZE}{_FORMATS[dtype]}", data))


def read(ptr, nbytes):
    """The bytes in memory as they are now: no call, no wait."""
    buffer = ctypes.create_string_buffer(nbytes)
    _check(driver().simPeek(ptr, buffer, nbytes), "read")
    return buffer.raw


def values(ptr, count, dtype="i32"):
    """The elements in memory as they are now."""
    return unpack(read(ptr, count * ITEM_SIZE), dtype)


def write(ptr, data):
    """Writes bytes to memory now: no call, no wait."""
    _check(driver().simPoke(ptr, data, len(data)), "write")


def allocate(nbytes, kind="device", device=0):
    """Memory of another library's own cache, of a kind that `live_allocations` names."""
    ptr = driver().simAllocate(_MEMORIES[kind], device, nbytes)
    assert ptr, "the device has no memory left"
    return ptr


def reclaim(ptr):
    """The library takes memory back, for whomever it likes: a fault while anything uses it."""
    _check(driver().simReclaim(ptr), "reclaim")


def live_allocations(kind=None):
    """The allocations that were not freed: dicts of kind, ptr, size, device."""
    return [row for row in _text("simLive") if kind in (None, row["kind"])]


def leave_process():
    """As if the process were ending: reports, after which every call of the driver fails."""
    driver().simLeaveProcess()


def restore():
    """Gives up every choice of a test but `configure`, runs what is pending and forgets the log; faults stay."""
    clear_injections()
    clear_emulations()
    driver().simClearPolicies()
    order("program")
    drain()
    clear_log()
