"""Sections 1, 3, 4, 5 and 6 of the contract, for fields: export, array interface, conversion, life."""

import gc
import mmap
import weakref

import numpy as np
import pytest
import taichi as ti
from taichi.lang import impl
from taichi.lang.mesh import MeshReorderedScalarFieldProxy

import dl_structs as dl
import helpers
from helpers import numbers, own_device, peek

pytestmark = pytest.mark.usefixtures("room")

VERSIONED = {"max_version": (1, 0)}


def filled(dtype="f32", shape=(3, 4), **options):
    field = ti.field(helpers.ti_type(dtype), shape, **options)
    field.from_numpy(numbers(shape, dtype))
    return field


def sparse():
    """A field below a pointer node, with one element."""
    field = ti.field(ti.f32)
    ti.root.pointer(ti.i, 4).dense(ti.i, 2).place(field)
    field[3] = 5
    return field


def tree_of(size=4):
    """A field in a tree of its own, and the tree."""
    field = ti.field(ti.f32)
    builder = ti.FieldsBuilder()
    builder.dense(ti.i, size).place(field)
    return field, builder.finalize()


def values_in(array):
    """The elements of another library's array as lists."""
    return array.tolist() if hasattr(array, "tolist") else array.numpy().tolist()


def bytes_of(view, count):
    return np.frombuffer(helpers.read_bytes(view.data, 4 * count), np.float32).tolist()


class TestExport:
    def test_gives_the_device(self):
        assert filled().__dlpack_device__() == own_device()

    @pytest.mark.parametrize("asked, name", [({}, dl.LEGACY), (VERSIONED, dl.VERSIONED)])
    def test_gives_the_kind_of_capsule_that_is_asked_for(self, asked, name):
        view = peek(filled().__dlpack__(**asked))
        assert view.name == name and view.flags in (None, 0) and view.byte_offset == 0

    def test_aliases(self):
        field = filled()
        view = peek(field.__dlpack__())
        helpers.write_bytes(view.data, np.float32(77).tobytes())
        assert field[0, 0] == 77
        field[0, 0] = 78
        assert bytes_of(view, 1) == [78]

    def test_copy_is_independent_and_compact(self):
        field = ti.Vector.field(2, ti.f32, 3, offset=(5,), layout=ti.Layout.SOA)
        field.from_numpy(numbers((3, 2), "f32"))
        view = peek(field.__dlpack__(copy=True, **VERSIONED))
        assert view.flags == dl.FLAG_IS_COPIED and view.strides == (2, 1)
        field.fill(0)
        assert view.bytes() == numbers((3, 2), "f32").tobytes()

    def test_copy_of_a_sparse_field_has_its_values(self):
        assert (
            np.frombuffer(peek(sparse().__dlpack__(copy=True)).bytes(), np.float32).tolist() == [0] * 3 + [5] + [0] * 4
        )

    def test_copy_of_a_quantised_field_is_refused(self):
        field, packer = ti.field(ti.types.quant.int(5)), ti.BitpackedFields(max_num_bits=32)
        packer.place(field)
        ti.root.dense(ti.i, 4).place(packer)
        with pytest.raises(BufferError, match="qi5"):
            field.__dlpack__(copy=True)

    @pytest.mark.parametrize("arguments", [{"stream": 1.5}, {"copy": 1}, {"max_version": 1}, {"dl_device": "cpu"}])
    def test_wrong_arguments_are_type_errors(self, arguments):
        with pytest.raises(TypeError):
            filled().__dlpack__(**arguments)

    def test_other_device_is_refused(self):
        with pytest.raises(BufferError):
            filled().__dlpack__(dl_device=(10, 0))

    @pytest.mark.parametrize("name", ["torch", "numpy", "jax", "warp"])
    def test_transposed_view_reaches_other_libraries(self, name, peer):
        library, expected = peer(name), numbers((3, 4), "f32")
        if name == "jax":
            page = np.frombuffer(mmap.mmap(-1, mmap.PAGESIZE), np.float32)[:12].reshape(4, 3).T
            page[:] = expected
            if values_in(library.take(page)) != expected.tolist():
                pytest.skip("this JAX reads NumPy's transposed arrays wrongly, where it aliases them")
        assert values_in(library.take(filled(order="ji"))) == expected.tolist()

    # JAX takes no array with gaps between its elements.
    @pytest.mark.parametrize("name", ["torch", "numpy", "warp"])
    def test_view_with_gaps_reaches_other_libraries(self, name, peer):
        x, y = ti.field(ti.f32), ti.field(ti.f32)
        ti.root.dense(ti.i, 5).place(x, y)
        x.fill(1)
        y.from_numpy(numbers((5,), "f32"))
        assert values_in(peer(name).take(y)) == [1, 2, 3, 4, 5]

    def test_scalar_behind_other_fields_reaches_torch(self, torch):
        ti.field(ti.i8, 3)
        field = ti.field(ti.f32, ())
        field[None] = 7
        tensor = torch.from_dlpack(field)
        assert tensor.shape == () and tensor.item() == 7
        tensor += 1
        assert field[None] == 8

    def test_runs_no_kernel_twice_and_walks_no_tree_twice(self, monkeypatch):
        field = filled()
        first = peek(field.__dlpack__()).data
        other = field._layout
        refuse = lambda *_: pytest.fail("a second export did the work of the first")  # noqa: E731
        for name in ("launch_kernel", "compile_kernel", "get_snode_root"):
            monkeypatch.setattr(type(impl.get_runtime().prog), name, refuse)
        monkeypatch.setattr(type(field.vars[0].ptr), "snode", refuse)
        assert peek(field.__dlpack__()).data == first and field._layout is other

    def test_is_on_no_tape(self):
        x, loss = ti.field(ti.f32, 3, needs_grad=True), ti.field(ti.f32, (), needs_grad=True)

        @ti.kernel
        def total():
            for i in x:
                loss[None] += 2 * x[i]

        with ti.ad.Tape(loss):
            x.__dlpack__()
            total()
        assert x.grad.to_numpy().tolist() == [2, 2, 2]

    def test_reordered_mesh_attribute_is_refused(self):
        proxy = MeshReorderedScalarFieldProxy(filled(), None, None, filled("i32", (4,)))
        with pytest.raises(BufferError, match="reordered"):
            proxy.__dlpack__()


class TestMaterializing:
    def test_export_materializes(self):
        field = ti.field(ti.f32, 4)
        assert bytes_of(peek(field.__dlpack__()), 4) == [0] * 4

    def test_finalized_tree_needs_no_root(self):
        field, _tree = tree_of()
        assert bytes_of(peek(field.__dlpack__()), 4) == [0] * 4

    def test_unfinalized_builder_is_named(self):
        field = ti.field(ti.f32)
        builder = ti.FieldsBuilder()
        builder.dense(ti.i, 4).place(field)
        with pytest.raises(BufferError, match=r"finalize\(\)"):
            field.__dlpack__()
        builder.finalize()
        field.__dlpack__()

    @pytest.mark.parametrize("asked", [{}, {"copy": True}])
    def test_field_that_was_never_placed_is_refused(self, asked):
        with pytest.raises(BufferError, match="not placed"):
            ti.field(ti.f32).__dlpack__(**asked)

    def test_gradient_that_was_not_asked_for_is_refused(self):
        with pytest.raises(BufferError, match="needs_grad"):
            filled().grad.__dlpack__()

    def test_failed_export_may_be_repeated(self):
        field = ti.field(ti.f32)
        with pytest.raises(BufferError):
            field.__dlpack__()
        ti.root.dense(ti.i, 4).place(field)
        field.__dlpack__()

    def test_address_and_values_stay_while_the_program_grows(self):
        field = filled()
        before = peek(field.__dlpack__())
        for size in range(1, 6):
            other = ti.field(ti.i32, size)
            other.fill(size)
            other.__dlpack__()
        after = peek(field.__dlpack__())
        assert after.data == before.data and after.bytes() == numbers((3, 4), "f32").tobytes()


class TestArrayInterface:
    @pytest.mark.cpu_only("on CUDA it is the other interface")
    def test_shares_with_numpy(self):
        field = filled(order="ji")
        array = np.asarray(field)
        assert array.strides == (4, 12) and (array == numbers((3, 4), "f32")).all()
        array[1, 2] = 50
        assert field[1, 2] == 50
        assert not hasattr(field, "__cuda_array_interface__")

    @pytest.mark.cuda_only("on the CPU it is the other interface")
    def test_describes_device_memory(self):
        interface = filled(order="ji").__cuda_array_interface__
        assert interface["strides"] == (4, 12) and interface["stream"] == 1

    def test_is_absent_without_a_view(self):
        for field in (sparse(), ti.field(ti.f32)):
            assert not hasattr(field, "__array_interface__") and not hasattr(field, "__cuda_array_interface__")

    @pytest.mark.cpu_only("NumPy reads host memory")
    def test_outlives_the_program(self):
        array = np.asarray(filled())
        helpers.init()
        assert (array == numbers((3, 4), "f32")).all()


@pytest.mark.cpu_only("NumPy reads host memory")
class TestToNumpy:
    @helpers.needs_numpy_2_1
    @pytest.mark.parametrize("copy", [False, None])
    def test_aliases(self, copy):
        field = filled(order="ji")
        array = field.to_numpy(copy=copy)
        array[1, 2] = 50
        assert field[1, 2] == 50 and array.strides == (4, 12)

    def test_copies_by_default(self):
        field = filled()
        for array in (field.to_numpy(), field.to_numpy(copy=True)):
            array[1, 2] = 50
            assert field[1, 2] == 7 and array.flags.c_contiguous

    def test_copies_where_it_must(self):
        field = sparse()
        with pytest.raises(BufferError, match="pointer.*copy=None"):
            field.to_numpy(copy=False)
        assert field.to_numpy(copy=None).tolist() == [0] * 3 + [5] + [0] * 4

    def test_other_type_needs_a_copy(self):
        field = filled()
        with pytest.raises(BufferError, match="float32.*float64"):
            field.to_numpy(dtype=np.float64, copy=False)
        assert field.to_numpy(dtype=np.float64, copy=None).dtype == np.float64
        assert field.to_numpy(dtype=np.float32, copy=False).dtype == np.float32

    @pytest.mark.parametrize("element", [(3,), (3, 1), (1, 3), (2, 3), (1,), (1, 1)])
    @pytest.mark.parametrize("keep_dims", [False, True])
    def test_has_the_shape_of_a_copy(self, element, keep_dims):
        make = ti.Vector.field if len(element) == 1 else ti.Matrix.field
        field = make(*element, ti.f32, 4)
        field.from_numpy(numbers((4,) + element, "f32"))
        copied, alias = (field.to_numpy(keep_dims=keep_dims, copy=copy) for copy in (True, False))
        assert alias.shape == copied.shape and (alias == copied).all()
        field.fill(0)
        assert not alias.any() and copied.any()

    def test_struct_gives_its_members(self):
        struct = ti.Struct.field({"a": ti.f32, "b": ti.math.vec2}, shape=3)
        views = struct.to_numpy(copy=False)
        views["b"][1] = [5, 6]
        assert struct[1].b.to_list() == [5, 6] and views["a"].shape == (3,)

    def test_judges_copy(self):
        with pytest.raises(TypeError, match="copy"):
            filled().to_numpy(copy="no")


@pytest.mark.cuda_only("on the CPU NumPy shares the memory")
class TestToNumpyOnCuda:
    def test_alias_is_refused_and_none_copies(self):
        field = filled(order="ji")
        with pytest.raises(BufferError, match="GPU"):
            field.to_numpy(copy=False)
        assert (field.to_numpy(copy=None) == numbers((3, 4), "f32")).all()


class TestToTorch:
    @pytest.mark.parametrize("copy", [False, None])
    def test_aliases(self, copy, torch):
        field = filled(order="ji")
        tensor = field.to_torch(copy=copy)
        tensor[1, 2] = 50
        ti.sync()
        assert field[1, 2] == 50 and tensor.stride() == (1, 3)
        assert field.to_torch(tensor.device, copy=copy).data_ptr() == tensor.data_ptr()
        assert isinstance(tensor, torch.Tensor)

    def test_copies_by_default(self, torch):  # pylint: disable=W0613
        field = filled()
        tensor = field.to_torch()
        tensor[1, 2] = 50
        assert field[1, 2] == 7

    def test_other_device_needs_a_copy(self, torch):
        field = filled()
        other = "meta" if not helpers.ON_CUDA else "cpu"
        with pytest.raises(BufferError, match=other):
            field.to_torch(other, copy=False)
        assert isinstance(field.to_torch(copy=None), torch.Tensor)

    def test_a_copy_is_on_the_device_that_is_asked_for(self, torch):
        """Which is not where torch makes new tensors."""
        for field in (filled(), ti.Matrix.field(2, 2, ti.f32, 3), sparse()):
            for options in ({}, {"copy": True}, {"copy": None}):
                with torch.device("meta"):
                    tensor = field.to_torch("cpu", **options)
                assert tensor.device.type == "cpu" and (tensor.numpy() == field.to_numpy()).all()

    def test_struct_gives_its_members(self, torch):  # pylint: disable=W0613
        struct = ti.Struct.field({"a": ti.f32, "b": ti.math.vec2}, shape=3)
        views = struct.to_torch(copy=False)
        views["b"][1, 0] = 5
        assert struct[1].b.to_list() == [5, 0]

    def test_matrix_has_the_shape_of_a_copy(self, torch):  # pylint: disable=W0613
        field = ti.Matrix.field(3, 1, ti.f32, 4)
        for keep_dims in (False, True):
            shapes = {tuple(field.to_torch(keep_dims=keep_dims, copy=copy).shape) for copy in (True, False)}
            assert len(shapes) == 1


class TestLife:
    @pytest.mark.parametrize("end", ["reset", "init", "destroy"])
    def test_view_outlives_its_tree(self, end):
        field, tree = tree_of()
        field.from_numpy(numbers((4,), "f32"))
        capsule = field.__dlpack__()
        view = peek(capsule)
        _end(end, tree)
        others = [ti.ndarray(ti.f32, 4) for _ in range(20)] if end != "reset" else []
        more = [tree_of()[0] for _ in others]
        assert bytes_of(view, 4) == [1, 2, 3, 4]
        helpers.write_bytes(view.data, np.full(4, 9, np.float32).tobytes())
        assert all((nd.to_numpy() == 0).all() for nd in others + more)

    def test_view_outlives_its_tree_and_then_its_program(self):
        field, tree = tree_of()
        field.fill(3)
        capsule = field.__dlpack__()
        tree.destroy()
        helpers.init()
        assert bytes_of(peek(capsule), 4) == [3] * 4

    @pytest.mark.parametrize("end", ["reset", "init", "destroy"])
    @pytest.mark.parametrize("exported", [True, False])
    @pytest.mark.parametrize("asked", [{}, {"copy": True}])
    def test_field_is_refused_after_its_tree(self, end, exported, asked):
        field, tree = tree_of()
        if exported:
            field.__dlpack__()
        _end(end, tree)
        if end != "reset":
            # Takes the place of the destroyed tree, so that its nodes are freed.
            successor, _tree = tree_of()
            assert bytes_of(peek(successor.__dlpack__()), 4) == [0] * 4
        gc.collect()
        with pytest.raises(BufferError, match="destroyed" if end == "destroy" else "ended"):
            field.__dlpack__(**asked)
        assert not hasattr(field, "__array_interface__")
        for copy in (False, None):
            with pytest.raises(BufferError, match="destroyed|ended"):
                field.to_numpy(copy=copy)

    @pytest.mark.parametrize("end", ["init", "destroy"])
    def test_all_that_hangs_on_a_field_is_refused_with_it(self, end):
        vector, struct, x = ti.Vector.field(2, ti.f32), ti.Struct.field({"a": ti.f32}), ti.field(ti.f32)
        builder = ti.FieldsBuilder()
        builder.dense(ti.i, 4).place(vector, struct, x)
        builder.lazy_grad()
        tree = builder.finalize()
        fields = (vector, vector.get_scalar_field(1), struct.get_member_field("a"), x.grad, vector.grad)
        _end(end, tree)
        successor, _tree = tree_of()
        successor.__dlpack__()
        gc.collect()
        for field in fields:
            with pytest.raises(BufferError, match="destroyed|ended"):
                field.__dlpack__()

    def test_other_trees_stay_when_one_is_destroyed(self):
        first, first_tree = tree_of()
        second, _tree = tree_of()
        second.from_numpy(numbers((4,), "f32"))
        view = peek(second.__dlpack__())
        first.__dlpack__()
        first_tree.destroy()
        assert peek(second.__dlpack__()).data == view.data and bytes_of(view, 4) == [1, 2, 3, 4]

    def test_destroyed_trees_number_is_used_again(self):
        first, first_tree = tree_of(4)
        before = first.__dlpack__()
        first_tree.destroy()
        second, _tree = tree_of(4)
        assert second._layout is None and peek(second.__dlpack__()).data != peek(before).data
        second.fill(3)
        assert bytes_of(peek(before), 4) == [0] * 4

    def test_export_keeps_neither_field_nor_program(self):
        # Filled by no kernel: Taichi's kernels keep the fields that they were compiled for.
        field = ti.field(ti.f32, 4)
        capsule = field.__dlpack__()
        helpers.write_bytes(peek(capsule).data, numbers((4,), "f32").tobytes())
        gone = [weakref.ref(field), weakref.ref(impl.get_runtime()), weakref.ref(impl.get_runtime().prog)]
        helpers.init()
        assert field._layout is not None
        gc.collect()
        assert [reference() is None for reference in gone[1:]] == [True, True]
        del field
        gc.collect()
        assert gone[0]() is None
        assert peek(capsule).bytes() == numbers((4,), "f32").tobytes()

    @pytest.mark.cpu_only("counts host memory")
    @pytest.mark.parametrize("end", ["init", "destroy"])
    def test_nothing_stays_when_the_last_view_goes(self, end):
        size = 2**22  # 16 MiB

        def cycle():
            field, tree = tree_of(size)
            capsule = field.__dlpack__()
            _end(end, tree)
            assert bytes_of(peek(capsule), 1) == [0]

        cycle()
        before = helpers.resident()
        for _ in range(4):
            cycle()
        assert helpers.resident() - before < 16 * 2**20

    def test_exports_in_a_loop_leave_nothing(self):
        field = filled()

        def step():
            field.__dlpack__()
            field.__dlpack__(**VERSIONED)

        assert helpers.growth(step, 20000) < helpers.FLAT

    def test_refusals_in_a_loop_leave_nothing(self):
        field = sparse()

        def step():
            try:
                field.__dlpack__()
            except BufferError:
                return
            pytest.fail("not refused")

        assert helpers.growth(step, 5000) < helpers.FLAT

    def test_view_kept_on_its_field_is_collected(self):
        field, tree = tree_of()
        field.view = field.__dlpack__()
        gone = weakref.ref(field)
        del field
        tree.destroy()
        gc.collect()
        assert gone() is None

    @pytest.mark.parametrize("tail", ["", "ti.reset()", "ti.init(arch=ti.cpu, log_level=ti.ERROR)"])
    def test_exit_is_quiet(self, tail):
        result = helpers.run_python(
            f"""
            x = ti.field(ti.f32, 4)
            x.fill(2)
            x.view = x.__dlpack__()
            capsule = x.__dlpack__()
            {tail}
            print(helpers.peek(capsule).bytes() == np.full(4, 2, np.float32).tobytes())
            """
        )
        helpers.assert_quiet_exit(result, "True")


def _end(how, tree):
    if how == "destroy":
        tree.destroy()
    elif how == "reset":
        ti.reset()
    else:
        helpers.init()
