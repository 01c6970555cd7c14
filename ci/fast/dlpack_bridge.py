"""What the released core lacks for sharing memory, supplied on top of its public bindings.

The Python files of the series call the same names on every wheel. Here they are
implemented with the capsule code of the series, compiled as the extension
`taichi_dlpack`, and with the released core's bindings:

- An export holds the core's ndarray, whose deletion waits for the last export. When the
  program ends first, the pages are carried out of it, to the same addresses. Memory on a
  GPU cannot be carried; a warning says so then.
- Fields: see snode_tree_bridge.py.
- An import is an object that answers as the core's ndarray does. Kernels get its
  memory as they get that of a NumPy array.

What needs the built core is refused or warned about at the moment it matters.
"""

import atexit
import math
import sys
import weakref

import numpy as np

from taichi._lib.core import taichi_dlpack as ext
from taichi._lib.kept_pages import warn_of_freed, whole_pages
from taichi._lib.snode_tree_bridge import NEEDS_SOURCE_WHEEL, TreeBridge

_INT32_MAX = 2**31 - 1

# Core names of the extension that need nothing else.
_EXTENSION_NAMES = (
    "DLPACK_VERSION",
    "DLPACK_FLAG_READ_ONLY",
    "DLPACK_FLAG_IS_COPIED",
    "DLPACK_EXCHANGE_API",
    "ImportedArray",
    "Lifetime",
    "dlpack_method",
    "dlpack_device_method",
    "from_exchange_api",
    "share_view",
    "view_to_capsule",
    "dlpack_typestr",
    "export_dlpack",
    "cuda_device_ordinal",
    "cuda_check_device_memory",
    "cuda_make_stream_wait",
    "cuda_wait_for_stream",
    "cuda_copy_to_host",
)


class _ExportedMemory:
    """Owns a core ndarray on behalf of its exports and, while it lives, of its Python ndarray."""

    def __init__(self, runtime, arr, delete):
        self._runtime = runtime
        # The core's ndarray, or None once its program has ended.
        self.arr = arr
        self._delete = delete
        # Whether the Python ndarray is gone, so that the last export deletes.
        self.orphaned = False
        # The pages that outlived the program: their address and size.
        self._pages = None

    def leave_program(self, prog, address):
        """Takes the memory out of the program, which is about to end and would unmap it."""
        arr, self.arr = self.arr, None
        nbytes = arr.nelement() * arr.element_size()
        if nbytes == 0:
            return
        size = whole_pages(nbytes)
        ext.keep_pages(address, size, lambda: self._delete(prog, arr))
        self._pages = (address, size)

    def __del__(self):
        if self._pages is not None:
            ext.free_pages(*self._pages)
        elif self.arr is not None and self.orphaned and self._runtime.prog is not None:
            self._delete(self._runtime.prog, self.arr)


class _HostElements:
    """The elements of an array in host memory, one by one."""

    def __init__(self, shape, typestr, address):
        self._values = (
            np.asarray(_Described({"shape": shape, "typestr": typestr, "data": (address, False), "version": 3}))
            if address and all(shape)
            # Only the 0s matter. NumPy refuses a product of the other extents that is too large.
            else np.empty([min(extent, 1) for extent in shape], typestr)
        )

    def read(self, key):
        return self._values[key]

    def write(self, key, value):
        self._values[key] = value

    def fill(self, value):
        self._values[...] = value


class _DeviceElements:
    """The elements of an array in the memory of a GPU, copied to the host and back."""

    def __init__(self, shape, typestr, address):
        self._shape = shape
        self._dtype = np.dtype(typestr)
        self._address = address

    def _element(self, key):
        return self._address + int(np.ravel_multi_index(key, self._shape)) * self._dtype.itemsize

    def read(self, key):
        value = np.empty((), self._dtype)
        ext.cuda_copy_to_host(value.ctypes.data, self._element(key), value.nbytes)
        return value[()]

    def write(self, key, value):
        value = np.array(value, self._dtype)
        ext.cuda_copy_to_device(self._element(key), value.ctypes.data, value.nbytes)

    def fill(self, value):
        values = np.full(self._shape, value, self._dtype)
        if values.nbytes:
            ext.cuda_copy_to_device(self._address, values.ctypes.data, values.nbytes)


class BorrowedNdarray:
    """Answers as the core's Ndarray does, on memory of another library."""

    def __init__(self, core, array, data_type, shape, on_cuda):
        self._core = core
        self.dtype = data_type
        self.shape = list(shape)
        self.address = array.address
        self._total_shape = list(array.shape)
        self._element_shape = self._total_shape[len(shape) :]
        self._scalar = getattr(core, f"DataType_{array.dtype}")
        self._nelement = math.prod(map(int, shape))
        self._typestr = typestr = core.dlpack_typestr(array.dtype)
        self._element_size = np.dtype(typestr).itemsize * math.prod(self._element_shape)
        # Kernels ask at each launch.
        self.nbytes = self._nelement * self._element_size
        self.is_countable = _is_countable(self._total_shape)
        address = array.address if array.num_elements else 0
        self._elements = (_DeviceElements if on_cuda else _HostElements)(array.shape, typestr, address)
        self.memory = ext.take_over(array, on_cuda)

    def release(self):
        """Gives the memory back, unless an export holds it too."""
        self.memory = None
        self._elements = None

    def total_shape(self):
        return self._total_shape

    def element_shape(self):
        return self._element_shape

    def element_data_type(self):
        return self._scalar

    def nelement(self):
        return self._nelement

    def element_size(self):
        return self._element_size

    def fill(self, value):
        self._elements.fill(value)

    def read_int(self, key):
        return int(self._elements.read(tuple(key)))

    read_uint = read_int

    def read_float(self, key):
        return float(self._elements.read(tuple(key)))

    def write_int(self, key, value):
        # As the core does: the low bits of the value.
        self._elements.write(tuple(key), np.int64(value).astype(self._typestr))

    def write_float(self, key, value):
        self._elements.write(tuple(key), value)


class _Described:
    """An address and a shape, for NumPy."""

    def __init__(self, interface):
        self.__array_interface__ = interface


class Bridge:
    """Adds the missing names to the core, once."""

    def __init__(self, core):
        self._core = core
        # The live exports of each core ndarray. Neither side is kept alive by the table.
        self._exports = weakref.WeakKeyDictionary()
        # The core ndarrays that consumers use on CUDA streams other than Taichi's.
        self._on_any_stream = weakref.WeakSet()
        self._core_delete = core.Program.delete_ndarray
        self._trees = TreeBridge(core)
        self._data_ptr = core.Program.get_ndarray_data_ptr_as_int

    def install(self):
        core = self._core
        for name in _EXTENSION_NAMES:
            setattr(core, name, getattr(ext, name))
        core.view_of_ndarray = self._view_of_ndarray
        core.import_ndarray = self._import_ndarray
        self._patch_program(core.Program)
        self._trees.install()
        self._patch_launch_context(core.KernelLaunchContext)
        self._patch_graph(core.CompiledGraph)

    def _data_address(self, prog, arr):
        return arr.address if isinstance(arr, BorrowedNdarray) else self._data_ptr(prog, arr)

    def _on_cuda(self, prog):
        return prog.config().arch == self._core.Arch.cuda

    def _share_ndarray_memory(self, arr, on_any_stream):
        if isinstance(arr, BorrowedNdarray):
            if on_any_stream:
                arr.memory.use_on_any_stream()
            return arr.memory
        if on_any_stream:
            self._on_any_stream.add(arr)
        return self._exported_memory(arr)

    def _delete_ndarray(self, prog, arr):
        if arr in self._on_any_stream:
            # The core frees in the order of its own stream.
            ext.cuda_wait_for_device()
        if self._on_cuda(prog):
            # The last export may go on a thread that has another context, or none.
            ext.cuda_in_taichi_context(lambda: self._core_delete(prog, arr))
        else:
            self._core_delete(prog, arr)

    def _live_memory(self, arr):
        """What the live exports of `arr` hold, or None."""
        reference = self._exports.get(arr)
        return reference() if reference is not None else None

    def _exported_memory(self, arr):
        from taichi.lang import impl  # pylint: disable=C0415

        memory = self._live_memory(arr)
        if memory is None:
            memory = _ExportedMemory(impl.get_runtime(), arr, self._delete_ndarray)
            self._exports[arr] = weakref.ref(memory)
        return memory

    def _view_of_ndarray(self, prog, arr, device, flags, lifetime):
        # A view that is left from an ended program must not hold on to the core's ndarray: its address may be another's.
        reference = weakref.ref(arr)

        def share(on_any_stream):
            alive = reference()
            if alive is None:
                raise BufferError("The memory of this array was freed")
            return self._share_ndarray_memory(alive, on_any_stream)

        return ext.make_view(
            self._data_address(prog, arr),
            self._core.data_type_name(arr.element_data_type()),
            arr.total_shape(),
            None,
            device,
            flags,
            lifetime,
            share,
        )

    def _import_ndarray(self, prog, array, data_type, shape, layout):  # pylint: disable=unused-argument
        ext.cuda_release_finished()
        return BorrowedNdarray(self._core, array, data_type, shape, self._on_cuda(prog))

    def _delete(self, prog, arr):
        if isinstance(arr, BorrowedNdarray):
            arr.release()
            return
        memory = self._live_memory(arr)
        if memory is None:
            self._delete_ndarray(prog, arr)
        else:
            memory.orphaned = True

    def _keep_exports(self, prog):
        """Hands the memory that other libraries hold over to them, before `prog` ends."""
        for reference in list(self._exports.values()):
            memory = reference()
            if memory is None or memory.arr is None:
                continue
            if self._on_cuda(prog):
                memory.arr = None
                warn_of_freed("An ndarray", "memory of a GPU ends with its program")
                continue
            try:
                memory.leave_program(prog, self._data_ptr(prog, memory.arr))
            except OSError as error:
                warn_of_freed("An ndarray", error)
        self._trees.keep_exports(prog)

    def _keep_exports_at_exit(self):
        from taichi.lang import impl  # pylint: disable=C0415

        prog = impl.get_runtime().prog
        if prog is not None:
            self._keep_exports(prog)

    def _patch_program(self, program):
        create_ndarray = program.create_ndarray
        finalize = program.finalize
        synchronize = program.synchronize

        # The core counts elements in int: it would allocate less than the shape says.
        def create_countable(prog, dtype, shape, *args, **keywords):
            _check_count(shape)
            return create_ndarray(prog, dtype, shape, *args, **keywords)

        def finalize_and_keep_exports(prog):
            self._keep_exports(prog)
            if self._on_cuda(prog):
                ext.cuda_finish_releases()
            finalize(prog)

        def synchronize_and_release(prog):
            synchronize(prog)
            ext.cuda_release_finished()

        # A class makes methods of functions, but not of bound methods.
        def delete_any(prog, arr, is_finalizing=sys.is_finalizing):
            # At exit the modules may be half gone. What is left goes with the process.
            if not is_finalizing():
                self._delete(prog, arr)

        def data_address_of_any(prog, arr):
            return self._data_address(prog, arr)

        def filling(fill, kinds):
            def fill_any(prog, arr, value):
                if not isinstance(arr, BorrowedNdarray):
                    fill(prog, arr, value)
                    return
                # What the core takes, and no other type.
                if not isinstance(value, kinds):
                    raise TypeError(f"Cannot fill an ndarray of {arr.dtype.to_string()} with {value!r}")
                try:
                    arr.fill(value)
                except OverflowError as error:
                    raise TypeError(str(error)) from None

            return fill_any

        program.create_ndarray = create_countable
        program.finalize = finalize_and_keep_exports
        program.synchronize = synchronize_and_release
        atexit.register(self._keep_exports_at_exit)
        program.delete_ndarray = delete_any
        program.get_ndarray_data_ptr_as_int = data_address_of_any
        ints = (int, np.integer)
        for name, kinds in (("fill_float", ints + (float, np.floating)), ("fill_int", ints), ("fill_uint", ints)):
            setattr(program, name, filling(getattr(program, name), kinds))

    def _patch_launch_context(self, context):
        set_arg_ndarray = context.set_arg_ndarray
        set_arg_ndarray_with_grad = context.set_arg_ndarray_with_grad

        def set_any(launch, indices, arr):
            if isinstance(arr, BorrowedNdarray):
                # A kernel would compute its index in 32 bits, and leave the memory.
                if not arr.is_countable:
                    _check_count(arr.total_shape())
                launch.set_arg_external_array_with_shape(indices, arr.address, arr.nbytes, arr.shape, 0)
            else:
                set_arg_ndarray(launch, indices, arr)

        def set_any_with_grad(launch, indices, arr, grad):
            if not isinstance(arr, BorrowedNdarray) and not isinstance(grad, BorrowedNdarray):
                set_arg_ndarray_with_grad(launch, indices, arr, grad)
                return
            from taichi.lang import impl  # pylint: disable=C0415

            prog = impl.get_runtime().prog
            _check_count(arr.total_shape())
            nbytes = arr.nelement() * arr.element_size()
            launch.set_arg_external_array_with_shape(
                indices, self._data_address(prog, arr), nbytes, arr.shape, self._data_address(prog, grad)
            )

        context.set_arg_ndarray = set_any
        context.set_arg_ndarray_with_grad = set_any_with_grad

    @staticmethod
    def _patch_graph(graph):
        jit_run = graph.jit_run

        def run(compiled, config, args):
            for name, value in args.items():
                if isinstance(value, BorrowedNdarray):
                    raise RuntimeError(f"Graph argument {name} is an imported ndarray. {NEEDS_SOURCE_WHEEL}")
            jit_run(compiled, config, args)

        graph.jit_run = run


def _is_countable(shape):
    return math.prod(map(int, shape)) <= _INT32_MAX


def _check_count(shape):
    """Raises for more elements than the released core can count."""
    if not _is_countable(shape):
        raise RuntimeError(
            f"An ndarray of shape {tuple(shape)} has more than {_INT32_MAX} elements. {NEEDS_SOURCE_WHEEL}"
        )


def install(core):
    """Adds the missing names to the released core module."""
    Bridge(core).install()
