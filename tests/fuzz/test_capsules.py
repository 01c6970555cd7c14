"""The capsule code by itself, without Taichi: random lives of capsules, arrays and memory, and random arguments.

`make sanitize` runs this file on an extension that is built with AddressSanitizer and UndefinedBehaviorSanitizer;
`make test` on the core that is under test. Random means the same on every run.
"""

import ctypes
import gc
import itertools
import mmap
import random
import sys
import threading
import unittest
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "interop"))

import dl_structs as dl  # noqa: E402

try:
    import taichi_dlpack as core  # built with the sanitizers
except ImportError:
    try:
        from taichi._lib.core import taichi_dlpack as core  # the fast wheel
    except ImportError:
        from taichi._lib import core  # the source wheel

SEED = 20250711
# The source wheel holds imported memory in its programs alone.
HOLDS_MEMORY = hasattr(core, "take_over")

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_size_t]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
MAP_PRIVATE_ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
dying_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)

# Taichi's name, the array interface's, the standard's code, bytes.
TYPES = [
    ("f16", "<f2", dl.FLOAT, 2),
    ("f32", "<f4", dl.FLOAT, 4),
    ("f64", "<f8", dl.FLOAT, 8),
    ("i8", "|i1", dl.INT, 1),
    ("i16", "<i2", dl.INT, 2),
    ("i32", "<i4", dl.INT, 4),
    ("i64", "<i8", dl.INT, 8),
    ("u8", "|u1", dl.UINT, 1),
    ("u16", "<u2", dl.UINT, 2),
    ("u32", "<u4", dl.UINT, 4),
    ("u64", "<u8", dl.UINT, 8),
    ("u1", "|b1", dl.BOOL, 1),
]
SIZES = {type_[0]: type_[3] for type_ in TYPES}


class Owner:
    """What an export keeps alive. Counts those that live."""

    alive = 0

    def __init__(self, nbytes):
        self.memory = (ctypes.c_uint8 * (nbytes + 8))(*(i % 251 for i in range(nbytes + 8)))
        self.address = ctypes.addressof(self.memory)
        self.address += -self.address % 8
        Owner.alive += 1

    def __del__(self):
        Owner.alive -= 1


# The memory of tensors whose own life is not the matter.
STATIC = (ctypes.c_uint64 * 512)(*range(512))
STATIC.address = ctypes.addressof(STATIC)


class Producer:
    """Another library's capsules. Each struct is a heap block, freed by its deleter: a later look is a fault."""

    made = 0
    deleted = 0

    @staticmethod
    def capsule(versioned, shape, strides, type_, data, version=(1, 3), flags=0, has_deleter=True, byte_offset=0):
        struct = dl.ManagedVersioned if versioned else dl.Managed
        managed = struct.from_address(Producer._allocate(ctypes.sizeof(struct)))
        tensor = managed.tensor
        tensor.data = data
        tensor.device = dl.Device(dl.CPU, 0)
        tensor.ndim = len(shape)
        tensor.dtype = dl.DataType(type_[2], 8 * type_[3], 1)
        tensor.shape = Producer._extents(shape)
        tensor.strides = Producer._extents(strides)
        tensor.byte_offset = byte_offset
        if versioned:
            managed.version = dl.Version(*version)
            managed.flags = flags
        if has_deleter:
            managed.deleter = _delete_versioned if versioned else _delete_legacy
            Producer.made += 1
        name = dl.VERSIONED if versioned else dl.LEGACY
        return dl.capsule_new(ctypes.addressof(managed), name, _destroy_capsule)

    @staticmethod
    def _allocate(size):
        address = libc.malloc(size)
        ctypes.memset(address, 0, size)
        return address

    @staticmethod
    def _extents(values):
        if values is None:
            return None
        address = Producer._allocate(8 * len(values))
        for i, value in enumerate(values):
            ctypes.c_int64.from_address(address + 8 * i).value = value
        return ctypes.cast(address, ctypes.POINTER(ctypes.c_int64))


def _deleter_of(struct):
    def delete(address):
        managed = struct.from_address(address)
        for extents in (managed.tensor.shape, managed.tensor.strides):
            libc.free(ctypes.cast(extents, ctypes.c_void_p))
        libc.free(address)
        Producer.deleted += 1

    return dl.Deleter(delete)


_delete_legacy = _deleter_of(dl.Managed)
_delete_versioned = _deleter_of(dl.ManagedVersioned)


def _destroy(capsule):
    for name, struct in ((dl.LEGACY, dl.Managed), (dl.VERSIONED, dl.ManagedVersioned)):
        if dl.dying_capsule_is_valid(capsule, name):
            managed = struct.from_address(dying_capsule_pointer(capsule, name))
            if managed.deleter:
                managed.deleter(ctypes.addressof(managed))


_destroy_capsule = dl.CapsuleDestructor(_destroy)


def consume(capsule):
    """Takes a capsule over as another library would. Returns what calls its deleter, on any thread, without the GIL."""
    versioned = dl.capsule_name(capsule) == dl.VERSIONED
    name, used = (dl.VERSIONED, dl.USED_VERSIONED) if versioned else (dl.LEGACY, dl.USED_LEGACY)
    struct = dl.ManagedVersioned if versioned else dl.Managed
    managed = struct.from_address(dl.capsule_pointer(capsule, name))
    dl.capsule_rename(capsule, used)

    def release():
        if managed.deleter:
            managed.deleter(ctypes.addressof(managed))

    return release


def call_on_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def is_unused(capsule):
    return dl.capsule_name(capsule) in (dl.LEGACY, dl.VERSIONED)


def product(shape):
    count = 1
    for extent in shape:
        count *= extent
    return count


def compact_strides(shape):
    return [product(shape[i + 1 :]) for i in range(len(shape))]


def random_shape(rng):
    shape = [rng.choice((1, 1, 2, 3, 4)) for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4)))]
    if shape and rng.random() < 0.1:
        # Empty arrays may have any other extents.
        shape += [rng.choice((0, 2**31 - 1)) for _ in range(4)] + [0]
        rng.shuffle(shape)
    return shape


def read_all(array):
    """Every property, of an array that may be imported."""
    return (array.device, array.dtype, array.shape, array.address, array.num_elements) + (
        array.is_compact,
        array.read_only,
        array.is_copied,
    )


def must_raise(error, function, *arguments):
    try:
        function(*arguments)
    except error:
        return
    raise AssertionError(f"{function} took {arguments}, wanted {error.__name__}")


def random_extent(rng):
    return rng.choice((0, 1, 1, 2, 3, 4, 8, -1, -4, 2**31 - 1, 2**31, 2**63 - 1, -(2**63), rng.randrange(2**63)))


def random_text(rng):
    return "".join(rng.choice("<>|=fiubcV1248\0é") for _ in range(rng.randrange(5)))


def random_object(rng):
    return rng.choice(
        (None, True, -1, 2**64, 2**63, 1.5, "", "f32", random_text(rng), b"", [], (), (1,), (1, 0), [0], [None])
        + ([-1], {}, object(), [2**31 - 1, 2], dl.Device, Owner, float("nan"), ["2"])
    )


def copied(array, nbytes):
    """The array's elements. The copy has a block of its own size, whose ends the sanitizer guards."""
    address = libc.malloc(nbytes)
    try:
        array.copy_to_host(address)
        return ctypes.string_at(address, nbytes)
    finally:
        libc.free(address)


class Session:
    """A random life of many objects, that ends with nothing left."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        # Arrays go with their capsule, or with None.
        self.capsules, self.arrays, self.memories, self.releases = [], [], [], []
        self.steps = [
            self.export,
            self.produce,
            self.describe,
            self.import_capsule,
            self.look,
            self.copy,
            self.consume_elsewhere,
            self.release_elsewhere,
            self.drop,
        ] + ([self.take_over] if HOLDS_MEMORY else [])

    def run(self, number):
        for _ in range(number):
            self.rng.choice(self.steps)()
        for objects in (self.arrays, self.memories, self.capsules):
            self.rng.shuffle(objects)
            objects.clear()
        for release in self.releases:
            release()
        self.releases.clear()

    def pick(self, objects):
        """Takes a random one out, or None."""
        return objects.pop(self.rng.randrange(len(objects))) if objects else None

    def export(self):
        type_, shape = self.rng.choice(TYPES), random_shape(self.rng)
        owner = Owner(product(shape) * type_[3])
        flags = self.rng.choice((0, dl.FLAG_READ_ONLY, dl.FLAG_IS_COPIED))
        versioned = self.rng.random() < 0.5
        self.capsules.append(
            core.export_dlpack(owner.address, type_[0], shape, None, (dl.CPU, 0), flags, versioned, owner)
        )

    def produce(self):
        type_, shape = self.rng.choice(TYPES), random_shape(self.rng)
        strides = self.rng.choice((None, compact_strides(shape), compact_strides(shape[::-1])[::-1]))
        versioned, flags = self.rng.random() < 0.5, self.rng.randrange(4)
        self.capsules.append(Producer.capsule(versioned, shape, strides, type_, STATIC.address, flags=flags))

    def describe(self):
        type_, shape = self.rng.choice(TYPES), random_shape(self.rng)
        owner = Owner(product(shape) * type_[3])
        strides = [type_[3] * stride for stride in compact_strides(shape)]
        if self.rng.random() < 0.5 or max(strides, default=0) >= 2**63:
            strides = None
        read_only = self.rng.random() < 0.5
        arguments = (owner.address, shape, strides, type_[1], (dl.CPU, 0), read_only, owner)
        self.arrays.append((core.ImportedArray.from_array_interface(*arguments), None))

    def import_capsule(self):
        if not self.capsules:
            return
        capsule = self.rng.choice(self.capsules)
        if is_unused(capsule):
            self.arrays.append((core.ImportedArray.from_capsule(capsule), capsule))
        else:
            must_raise(ValueError, core.ImportedArray.from_capsule, capsule)

    def look(self):
        if not self.arrays:
            return
        array, capsule = self.rng.choice(self.arrays)
        # A struct that somebody else consumed may be gone.
        if capsule is None or is_unused(capsule):
            array.check_importable()
            read_all(array)

    def copy(self):
        array, capsule = self.pick(self.arrays) or (None, None)
        if array is None:
            return
        if capsule is not None and not is_unused(capsule):
            must_raise(ValueError, array.copy_to_host, STATIC.address)
            return
        nbytes = array.num_elements * SIZES[array.dtype]
        expected = ctypes.string_at(array.address, nbytes) if array.is_compact else None
        got = copied(array, nbytes)
        assert expected in (None, got), (expected, got)
        must_raise(ValueError, array.copy_to_host, STATIC.address)

    def take_over(self):
        array, capsule = self.pick(self.arrays) or (None, None)
        if array is None:
            return
        if capsule is None or is_unused(capsule):
            self.memories.append(core.take_over(array))
        must_raise(ValueError, core.take_over, array)

    def consume_elsewhere(self):
        capsule = self.pick(self.capsules)
        if capsule is not None and is_unused(capsule):
            self.releases.append(consume(capsule))

    def release_elsewhere(self):
        release = self.pick(self.releases)
        if release is not None:
            call_on_thread(release)

    def drop(self):
        self.pick(self.rng.choice((self.capsules, self.arrays, self.memories)))


class Capsules(unittest.TestCase):
    """Every fault that the sanitizers find ends the process."""

    def assert_nothing_is_left(self):
        gc.collect()
        self.assertEqual(Owner.alive, 0)
        self.assertEqual(Producer.deleted, Producer.made)

    def test_random_lives_leave_nothing(self):
        for seed in range(300):
            Session(SEED + seed).run(100)
            self.assert_nothing_is_left()

    def test_exports_say_what_was_given(self):
        for versioned, type_, shape in itertools.product((False, True), TYPES, ([], [0, 3], [2, 3, 4])):
            owner = Owner(product(shape) * type_[3])
            flags = dl.FLAG_READ_ONLY if versioned else 0
            array = core.ImportedArray.from_capsule(
                core.export_dlpack(owner.address, type_[0], shape, None, (dl.CPU, 0), flags, versioned, owner)
            )
            address = owner.address if product(shape) else 0
            expected = ((dl.CPU, 0), type_[0], tuple(shape), address, product(shape), True, versioned, False)
            self.assertEqual(read_all(array), expected)
            self.assertEqual(core.dlpack_typestr(type_[0]), type_[1])
        del array, owner
        self.assert_nothing_is_left()

    def test_a_newer_major_version_is_refused_and_deleted(self):
        for major in (2, 3, 2**32 - 1):
            capsule = Producer.capsule(True, [3], None, TYPES[0], STATIC.address, version=(major, 0))
            must_raise(BufferError, core.ImportedArray.from_capsule, capsule)
            self.assertEqual(Producer.deleted, Producer.made)
            must_raise(ValueError, core.ImportedArray.from_capsule, capsule)

    def test_a_producer_without_a_deleter_is_taken(self):
        for versioned in (False, True):
            capsule = Producer.capsule(versioned, [2], None, TYPES[1], STATIC.address, has_deleter=False)
            self.assertEqual(len(copied(core.ImportedArray.from_capsule(capsule), 8)), 8)

    def test_tensors_that_taichi_cannot_address_are_refused(self):
        f32 = TYPES[1]
        tensors = [
            {"shape": [2, -1]},
            {"shape": [2**31]},
            {"shape": [2**31 - 1] * 3},
            {"shape": [1] * 13},
            {"data": None},
            {"byte_offset": 2},
            {"type_": ("", "", dl.BFLOAT, 2)},
            {"type_": ("", "", dl.BOOL, 4)},
        ]
        for versioned, changed in itertools.product((False, True), tensors):
            tensor = {"shape": [2], "strides": None, "type_": f32, "data": STATIC.address, **changed}
            array = core.ImportedArray.from_capsule(Producer.capsule(versioned, **tensor))
            with self.subTest(changed):
                must_raise(BufferError, array.check_importable)
        del array
        self.assert_nothing_is_left()

    def test_random_array_interfaces_are_taken_or_refused(self):
        rng = random.Random(SEED)
        taken = 0
        for _ in range(20000):
            shape = [random_extent(rng) for _ in range(rng.randrange(5))]
            strides = None if rng.random() < 0.3 else [random_extent(rng) for _ in range(rng.randrange(5))]
            typestr = rng.choice((rng.choice(TYPES)[1], random_text(rng)))
            address = rng.choice((0, STATIC.address, STATIC.address + rng.randrange(9), rng.getrandbits(64)))
            arguments = (address, shape, strides, typestr, (rng.randrange(20), 0), rng.random() < 0.5, Owner(0))
            try:
                array = core.ImportedArray.from_array_interface(*arguments)
                array.check_importable()
            except BufferError as error:
                self.assertGreater(len(str(error)), 10)
                continue
            read_all(array)
            taken += 1
        self.assertGreater(taken, 100)
        del array, arguments
        self.assert_nothing_is_left()

    def test_random_arguments_are_refused_by_an_exception(self):
        rng = random.Random(SEED)
        owner = Owner(64)
        valid = {
            core.export_dlpack: (owner.address, "f32", [2, 3], [3, 1], (dl.CPU, 0), 0, True, owner),
            core.ImportedArray.from_array_interface: (owner.address, [2], None, "<f4", (dl.CPU, 0), False, owner),
            core.ImportedArray.from_capsule: (None,),
            core.dlpack_typestr: ("f32",),
        }
        refused = 0
        for _ in range(20000):
            function = rng.choice(list(valid))
            arguments = [random_object(rng) if rng.random() < 0.3 else given for given in valid[function]]
            if rng.random() < 0.1:
                arguments.append(random_object(rng))
            try:
                function(*arguments)
            except (TypeError, ValueError, BufferError):
                refused += 1
        self.assertGreater(refused, 5000)
        del owner, arguments, valid
        self.assert_nothing_is_left()

    def test_a_capsule_of_another_name_is_left_alone(self):
        foreign = dl.capsule_new(STATIC.address, b"somebody", dl.CapsuleDestructor())
        must_raise(TypeError, core.ImportedArray.from_capsule, foreign)
        self.assertEqual(dl.capsule_name(foreign), b"somebody")

    @unittest.skipUnless(
        hasattr(libc, "__sanitizer_get_current_allocated_bytes"), "only AddressSanitizer counts the bytes"
    )
    def test_the_bytes_of_the_heap_stay_the_same(self):
        count = getattr(libc, "__sanitizer_get_current_allocated_bytes")
        count.restype = ctypes.c_size_t

        def lives():
            for seed in range(20):
                Session(seed).run(100)
            gc.collect()
            return count()

        first = [lives() for _ in range(3)][-1]
        self.assertLess(max(lives() for _ in range(5)) - first, 1024)

    @unittest.skipUnless(hasattr(core, "carry_out"), "the source wheel moves no pages")
    def test_pages_outlive_their_mapping(self):
        size = 3 * mmap.PAGESIZE
        blocks = []
        for _ in range(3):
            address = libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, MAP_PRIVATE_ANONYMOUS, -1, 0)
            ctypes.memset(address, 7, size)
            blocks.append((core.Pages(address, size), address))

        def forget(address, error=None):
            if error is not None:
                raise error
            libc.munmap(address, size)

        def fails(address):
            forget(address, KeyError("lamp"))

        forgets = [forget, fails, forget]
        reasons = core.carry_out([(pages, partial(f, address)) for (pages, address), f in zip(blocks, forgets)])
        self.assertEqual([reason is None for reason in reasons], [True, False, True])
        self.assertIn("lamp", reasons[1])
        self.assertEqual([pages.kept for pages, _ in blocks], [True, False, True])
        self.assertTrue(all(pages.tried for pages, _ in blocks))
        # One that failed is still the core's, and is where it was.
        for _, address in blocks:
            self.assertEqual(ctypes.string_at(address, size), b"\7" * size)
        (_, freed), (_, still_mapped), _ = blocks
        blocks = None
        gc.collect()
        # Nothing is mapped there any more.
        (reason,) = core.carry_out([(core.Pages(freed, size), self.fail)])
        self.assertIn("OSError", reason)
        libc.munmap(still_mapped, size)

    @unittest.skipUnless(hasattr(core, "uninterrupted"), "the source wheel is interrupted in C++ only")
    def test_an_interrupt_comes_when_the_method_is_done(self):
        done = []
        errors = [KeyboardInterrupt, KeyboardInterrupt]

        def before(_):
            if errors:
                raise errors.pop()
            return "found"

        class Lamp:
            switch = core.uninterrupted(before, lambda _: done.append("method"), done.append)

        must_raise(KeyboardInterrupt, Lamp().switch)
        self.assertEqual(done, ["method"])
        Lamp().switch()
        self.assertEqual(done, ["method", "method", "found"])
        errors.append(ValueError)
        must_raise(ValueError, Lamp().switch)
        self.assertEqual((len(errors), done[3:]), (0, ["method"]))


if __name__ == "__main__":
    unittest.main()
