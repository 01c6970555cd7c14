"""What the released core lacks for sharing memory, supplied on top of its public bindings.

The Python files of the series call the same names on every wheel. Here they are
implemented with the capsule code of the series, compiled as the extension
`taichi_dlpack`, and with the released core's bindings:

- An export is one more owner of the core's ndarray, which the last owner deletes. When the
  program ends first, the pages are carried out of it, to the same addresses. Memory on a
  GPU cannot be carried; a warning says so then.
- Fields: see snode_tree_bridge.py.
- An import is an object that answers as the core's ndarray does. Kernels get its
  memory as they get that of a NumPy array.

What needs the built core is refused or warned about at the moment it matters.
"""

import math
import operator
import sys
import weakref
from functools import partial

import numpy as np

from taichi._lib.core import taichi_dlpack as ext
from taichi._lib.kept_pages import SharedBlock, warn_of_freed
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


# What takes ndarrays and is no kernel: methods of the program, of sparse matrices and of their solvers.
_TAKES_OWN_NDARRAYS = {
    "make_sparse_matrix_from_ndarray",
    "nd_spmv",
    "set_b_ndarray",
    "set_x_ndarray",
    "solve",
    "solve_rf",
    "spmv",
}


class _ExportedNdarray(SharedBlock):
    """A core ndarray that was exported. It lives until its Python ndarray and all exports are gone."""

    def __init__(self, bridge, runtime, arr):
        super().__init__()
        self._bridge = bridge
        # At exit the runtime must go, and end its program.
        self._runtime = weakref.ref(runtime)
        # Until its program ends. After that pybind11 would take this object for another ndarray at the same address.
        self.arr = arr
        self.key = id(arr)

    @property
    def nbytes(self):
        return self.arr.nelement() * self.arr.element_size()

    def _free(self):
        # Once the program has ended, the ndarray is the core's no more.
        runtime = self._runtime()
        if self._bridge.forget_export(self) and runtime is not None and runtime.prog is not None:
            self._bridge.delete_ndarray(runtime.prog, self.arr)


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
        return int(self._elements.read(_indices(key)))

    read_uint = read_int

    def read_float(self, key):
        return float(self._elements.read(_indices(key)))

    def write_int(self, key, value):
        value = _to_int(value)
        if not -(2**63) <= value < 2**63:
            raise TypeError(f"Cannot write {value}, which is beyond int64")
        # As the core does: the low bits of the value.
        self._elements.write(_indices(key), np.int64(value).astype(self._typestr))

    def write_float(self, key, value):
        self._elements.write(_indices(key), _to_float(value))


# Numbers as pybind11 takes them for the core: an int of what is no float, a float of all that has one.


def _to_int(value):
    if isinstance(value, float) or not (hasattr(value, "__index__") or hasattr(value, "__int__")):
        raise TypeError(f"Got {value!r}, wanted an int")
    return int(value)


def _to_float(value):
    if not (hasattr(value, "__float__") or hasattr(value, "__index__")):
        raise TypeError(f"Got {value!r}, wanted a number")
    return float(value)


def _indices(key):
    return tuple(map(operator.index, key))


class _Described:
    """An address and a shape, for NumPy."""

    def __init__(self, interface):
        self.__array_interface__ = interface


class Bridge:
    """Adds the missing names to the core, once."""

    def __init__(self, core):
        self._core = core
        self._arch_cuda = core.Arch.cuda
        # By the identity of the core's ndarray, which each of them keeps alive as long as the program runs.
        self._exports = {}
        # The core ndarrays that consumers use on CUDA streams other than Taichi's.
        self._on_any_stream = weakref.WeakSet()
        # Those of them that could not be waited for yet.
        self._undeleted = []
        self._core_delete = core.Program.delete_ndarray
        # A name of a module may be gone at exit.
        self._carry_out = ext.carry_out
        self._trees = TreeBridge(core)
        self._data_ptr = core.Program.get_ndarray_data_ptr_as_int
        self._watches_exit = False

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
        self._refuse_imports(core)

    def _data_address(self, prog, arr):
        return arr.address if isinstance(arr, BorrowedNdarray) else self._data_ptr(prog, arr)

    def _on_cuda(self, prog):
        return prog.config().arch == self._arch_cuda

    def _share_ndarray_memory(self, arr, on_any_stream):
        if isinstance(arr, BorrowedNdarray):
            if on_any_stream:
                arr.memory.use_on_any_stream()
            return arr.memory
        if on_any_stream:
            self._on_any_stream.add(arr)
        return self._exported(arr).share()

    def delete_ndarray(self, prog, arr):
        """Has the core free an ndarray."""
        undeleted, self._undeleted = self._undeleted, []
        for each in [*undeleted, arr]:
            # The core frees in the order of its own stream. While a graph is captured, the driver refuses to wait.
            if each in self._on_any_stream and not ext.cuda_wait_for_device():
                self._undeleted.append(each)
            else:
                self._delete_now(prog, each)

    def _delete_now(self, prog, arr):
        if self._on_cuda(prog):
            # The last export may go on a thread that has another context, or none.
            ext.cuda_in_taichi_context(lambda: self._core_delete(prog, arr))
        else:
            self._core_delete(prog, arr)

    def _exported(self, arr):
        from taichi.lang import impl  # pylint: disable=C0415

        found = self._exports.get(id(arr))
        # One step for the interpreter: several threads may export at once.
        return found or self._exports.setdefault(id(arr), _ExportedNdarray(self, impl.get_runtime(), arr))

    def forget_export(self, exported):
        """Takes an export from the table. Was it there?"""
        if self._exports.get(exported.key) is not exported:
            return False
        return self._exports.pop(exported.key, None) is not None

    def _view_of_ndarray(self, prog, arr, device, flags, lifetime):
        self._watch_exit()
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
        exported = self._exports.get(id(arr))
        if exported is None:
            self.delete_ndarray(prog, arr)
        else:
            exported.leave_home()

    def _keep_exports(self, prog):
        """Hands the memory that other libraries hold over to them, before `prog` ends.

        May be called again where it was interrupted.

        Returns:
            List[Tuple[str, str]]: What cannot be kept, and why.
        """
        exports = list(self._exports.values())
        if self._on_cuda(prog):
            reason = "memory of a GPU ends with its program"
            freed = [("An ndarray", reason) for exported in exports if exported.is_shared]
            self._undeleted = []
            ext.cuda_finish_releases()
        else:
            blocks = []
            for exported in exports:
                if exported.must_be_kept and exported.nbytes:
                    pages = exported.pages_at(self._data_ptr(prog, exported.arr), exported.nbytes)
                    blocks.append(("An ndarray", (pages, partial(self._core_delete, prog, exported.arr))))
            blocks += [("A field", block) for block in self._trees.pages_to_keep(prog)]
            reasons = self._carry_out([block for _, block in blocks])
            freed = [(what, why) for (what, _), why in zip(blocks, reasons) if why is not None]
        self._exports = {}
        for exported in exports:
            exported.arr = None
            exported.leave_home()
        self._trees.forget_all()
        return freed

    def _watch_exit(self):
        """At exit the program goes when its runtime object does, after everything that may still use it."""
        if self._watches_exit:
            return
        from taichi.lang import impl  # pylint: disable=C0415

        def end(runtime):
            # Its making may have been interrupted.
            prog = getattr(runtime, "prog", None)
            if prog is not None:
                prog.finalize()

        impl.PyTaichi.__del__ = end
        self._watches_exit = True

    def _patch_program(self, program):
        create_ndarray = program.create_ndarray
        synchronize = program.synchronize

        # The core counts elements in int: it would allocate less than the shape says.
        def create_countable(prog, dtype, shape, *args, **keywords):
            _check_count(shape)
            return create_ndarray(prog, dtype, shape, *args, **keywords)

        # At exit the modules may be half gone.
        def warn(freed, warn_of=warn_of_freed, is_finalizing=sys.is_finalizing):
            if not is_finalizing():
                for what, reason in freed:
                    warn_of(what, reason)

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

        def filling(fill, to_number):
            def fill_any(prog, arr, value):
                if not isinstance(arr, BorrowedNdarray):
                    fill(prog, arr, value)
                    return
                try:
                    arr.fill(to_number(value))
                except OverflowError as error:
                    raise TypeError(str(error)) from None

            return fill_any

        program.create_ndarray = create_countable
        program.finalize = ext.uninterrupted(self._keep_exports, program.finalize, warn)
        program.synchronize = synchronize_and_release
        program.delete_ndarray = delete_any
        program.get_ndarray_data_ptr_as_int = data_address_of_any
        for name, to_number in (("fill_float", _to_float), ("fill_int", _to_int), ("fill_uint", _to_int)):
            setattr(program, name, filling(getattr(program, name), to_number))

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
    def _refuse_imports(core):
        """The core's sparse matrices take its own ndarrays only, and say so badly."""

        def refusing(method):
            def call(*args):
                if any(isinstance(arg, BorrowedNdarray) for arg in args):
                    raise RuntimeError(
                        f"A sparse matrix or its solver was given an imported ndarray. {NEEDS_SOURCE_WHEEL}"
                    )
                return method(*args)

            return call

        for kind in [kind for kind in vars(core).values() if isinstance(kind, type)]:
            for name in vars(kind).keys() & _TAKES_OWN_NDARRAYS:
                setattr(kind, name, refusing(getattr(kind, name)))

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
