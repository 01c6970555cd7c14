"""What the released core lacks for sharing memory, supplied on top of its public bindings.

The Python files of the series call the same names on every wheel. Here they are
implemented with the capsule code of the series, compiled as the extension
`taichi_dlpack`, and with the released core's bindings:

- An export holds the core's ndarray, whose deletion waits for the last export. When the
  program ends first, the pages are carried out of it, to the same addresses.
- An import is an object that answers as the core's ndarray does. Kernels get its
  memory as they get that of a NumPy array.

What needs the built core is refused or warned about at the moment it matters.
"""

import atexit
import mmap
import sys
import warnings
import weakref

import numpy as np

from taichi._lib.core import taichi_dlpack as ext

_NEEDS_SOURCE_WHEEL = "The fast wheel cannot do this; build the source wheel (`make wheel`) for it."

# Core names of the extension that need nothing else.
_CAPSULE_NAMES = (
    "DLPACK_VERSION",
    "DLPACK_FLAG_READ_ONLY",
    "DLPACK_FLAG_IS_COPIED",
    "ImportedArray",
    "dlpack_typestr",
    "export_dlpack",
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
        size = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        ext.keep_pages(address, size, lambda: self._delete(prog, arr))
        self._pages = (address, size)

    def __del__(self):
        if self._pages is not None:
            ext.free_pages(*self._pages)
        elif self.arr is not None and self.orphaned and self._runtime.prog is not None:
            self._delete(self._runtime.prog, self.arr)


class BorrowedNdarray:
    """Answers as the core's Ndarray does, on memory of another library."""

    def __init__(self, core, array, data_type, shape):
        self._core = core
        self.dtype = data_type
        self.shape = list(shape)
        self.address = array.address
        self._total_shape = list(array.shape)
        self._element_shape = self._total_shape[len(shape) :]
        self._scalar = getattr(core, f"DataType_{array.dtype}")
        self._nelement = int(np.prod(shape, dtype=np.int64))
        self._values = _host_view(array, core.dlpack_typestr(array.dtype))
        self.memory = ext.take_over(array)

    def release(self):
        """Gives the memory back, unless an export holds it too."""
        self.memory = None
        self._values = None

    def total_shape(self):
        return self._total_shape

    def element_shape(self):
        return self._element_shape

    def element_data_type(self):
        return self._scalar

    def nelement(self):
        return self._nelement

    def element_size(self):
        return self._values.itemsize * int(np.prod(self._element_shape, dtype=np.int64))

    @property
    def nbytes(self):
        return self._values.nbytes

    def fill(self, value):
        self._values[...] = value

    def read_int(self, key):
        return int(self._values[tuple(key)])

    read_uint = read_int

    def read_float(self, key):
        return float(self._values[tuple(key)])

    def write_int(self, key, value):
        # As the core does: the low bits of the value.
        self._values[tuple(key)] = np.int64(value).astype(self._values.dtype)

    def write_float(self, key, value):
        self._values[tuple(key)] = value


class _Described:
    """An address and a shape, for NumPy."""

    def __init__(self, interface):
        self.__array_interface__ = interface


def _host_view(array, typestr):
    if array.num_elements == 0:
        return np.empty(array.shape, np.dtype(typestr))
    return np.asarray(
        _Described({"shape": array.shape, "typestr": typestr, "data": (array.address, False), "version": 3})
    )


class Bridge:
    """Adds the missing names to the core, once."""

    def __init__(self, core):
        self._core = core
        # The live exports of each core ndarray. Neither side is kept alive by the table.
        self._exports = weakref.WeakKeyDictionary()
        self._delete_ndarray = core.Program.delete_ndarray
        self._data_ptr = core.Program.get_ndarray_data_ptr_as_int

    def install(self):
        core = self._core
        for name in _CAPSULE_NAMES:
            setattr(core, name, getattr(ext, name))
        core.ndarray_to_dlpack = self._ndarray_to_dlpack
        core.import_ndarray = self._import_ndarray
        core.share_ndarray_memory = self._share_ndarray_memory
        core.cuda_device_ordinal = _refuse_cuda
        self._patch_program(core.Program)
        self._patch_launch_context(core.KernelLaunchContext)
        self._patch_graph(core.CompiledGraph)

    def _data_address(self, prog, arr):
        return arr.address if isinstance(arr, BorrowedNdarray) else self._data_ptr(prog, arr)

    def _share_ndarray_memory(self, arr):
        if isinstance(arr, BorrowedNdarray):
            return arr.memory
        return self._exported_memory(arr)

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

    def _ndarray_to_dlpack(self, prog, arr, device, flags, versioned):
        return ext.export_dlpack(
            self._data_address(prog, arr),
            self._core.data_type_name(arr.element_data_type()),
            arr.total_shape(),
            device,
            flags,
            versioned,
            self._share_ndarray_memory(arr),
        )

    def _import_ndarray(self, prog, array, data_type, shape, layout):  # pylint: disable=unused-argument
        return BorrowedNdarray(self._core, array, data_type, shape)

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
            try:
                memory.leave_program(prog, self._data_ptr(prog, memory.arr))
            except OSError as error:
                warnings.warn(
                    f"An ndarray that is shared with another library is freed now, by ti.reset() or ti.init(): {error}. "
                    "Do not touch those views again. The source wheel (`make wheel`) keeps the memory alive.",
                    RuntimeWarning,
                    stacklevel=_level_of_the_caller(),
                )

    def _keep_exports_at_exit(self):
        from taichi.lang import impl  # pylint: disable=C0415

        prog = impl.get_runtime().prog
        if prog is not None:
            self._keep_exports(prog)

    def _patch_program(self, program):
        finalize = program.finalize

        def finalize_and_keep_exports(prog):
            self._keep_exports(prog)
            finalize(prog)

        # A class makes methods of functions, but not of bound methods.
        def delete_any(prog, arr):
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

        program.finalize = finalize_and_keep_exports
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
                launch.set_arg_external_array_with_shape(indices, arr.address, arr.nbytes, arr.shape, 0)
            else:
                set_arg_ndarray(launch, indices, arr)

        def set_any_with_grad(launch, indices, arr, grad):
            if not isinstance(arr, BorrowedNdarray) and not isinstance(grad, BorrowedNdarray):
                set_arg_ndarray_with_grad(launch, indices, arr, grad)
                return
            from taichi.lang import impl  # pylint: disable=C0415

            prog = impl.get_runtime().prog
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
                    raise RuntimeError(f"Graph argument {name} is an imported ndarray. {_NEEDS_SOURCE_WHEEL}")
            jit_run(compiled, config, args)

        graph.jit_run = run


def _level_of_the_caller():
    """The `stacklevel` at which a warning names the line outside Taichi that led here."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("taichi."):
        level, frame = level + 1, frame.f_back
    return level


def _refuse_cuda():
    raise BufferError(f"Sharing memory on CUDA was asked for. {_NEEDS_SOURCE_WHEEL}")


def install(core):
    """Adds the missing names to the released core module."""
    Bridge(core).install()
