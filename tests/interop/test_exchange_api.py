"""DLPack's C exchange API (`__dlpack_c_exchange_api__`): offered by Taichi's arrays, and used for those of others."""

import ctypes
import threading

import numpy as np
import pytest
import taichi as ti

import dl_structs as dl
import helpers
from exchange import ATTRIBUTE, Exchanging, api_of, array_of, managed_tensor_of
from helpers import DTYPES, ON_CUDA, Fake, View, assert_aliases, new_ndarray, numbers, own_device, set_values

KINDS = {
    "scalar ndarray": lambda: new_ndarray("f32", (3, 4)),
    "vector ndarray": lambda: new_ndarray("f32", (3,), (4,)),
    "matrix ndarray": lambda: new_ndarray("f32", (3,), (2, 2)),
    "scalar field": lambda: ti.field(ti.f32, (3, 4), order="ji"),
    "vector field": lambda: ti.Vector.field(4, ti.f32, 3, layout=ti.Layout.SOA),
    "matrix field": lambda: ti.Matrix.field(2, 2, ti.f32, 3),
}
each_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


class TestOffered:
    @each_kind
    def test_is_on_the_type_and_one_for_the_process(self, make):
        capsule = getattr(type(make()), ATTRIBUTE)
        assert capsule is getattr(ti.ScalarNdarray, ATTRIBUTE)
        assert dl.capsule_name(capsule) == dl.EXCHANGE_API
        api = api_of(ti.ScalarNdarray)
        assert (api.version.major, api.version.minor) == (1, 3) and api.previous is None
        for name, _ in dl.ExchangeApi._fields_[2:]:
            assert ctypes.cast(getattr(api, name), ctypes.c_void_p).value, name

    @each_kind
    def test_managed_tensor_says_what_a_capsule_says(self, make):
        array = make()
        view, wanted = managed_tensor_of(array), helpers.peek(array.__dlpack__(max_version=(1, 0)))
        for name in ("version", "flags", "data", "byte_offset", "shape", "strides", "dtype", "device"):
            assert getattr(view, name) == getattr(wanted, name), name
        view.delete()

    @each_kind
    def test_first_export_of_an_array_may_be_this(self, make):
        array = make()
        assert array._view is None
        view = managed_tensor_of(array)
        assert view.data == helpers.peek(array.__dlpack__()).data
        view.delete()

    @pytest.mark.parametrize("name", DTYPES)
    def test_element_types(self, name):
        view = managed_tensor_of(new_ndarray(name, (2, 3)))
        assert view.dtype == helpers.dl_type(name)
        view.delete()

    @pytest.mark.cpu_only("tests/cuda/test_outlive.py and tests/cuda_sim have it")
    @pytest.mark.usefixtures("fresh_runtime")
    def test_managed_tensor_outlives_its_array_and_program(self):
        nd = new_ndarray("f32", (5,))
        set_values(nd, numbers((5,), "f32"))
        view = managed_tensor_of(nd)
        del nd
        helpers.collect()
        helpers.init()
        assert view.bytes() == numbers((5,), "f32").tobytes()
        view.delete_on_foreign_thread()

    @pytest.mark.usefixtures("fresh_runtime")
    @each_kind
    def test_array_of_an_ended_program_is_a_buffer_error(self, make):
        exported, fresh = make(), make()
        managed_tensor_of(exported).delete()
        helpers.init()
        for array in (exported, fresh):
            with pytest.raises(BufferError, match="ended"):
                managed_tensor_of(array)

    def test_field_without_a_view_is_a_buffer_error(self):
        field = ti.field(ti.f32)
        ti.root.pointer(ti.i, 4).place(field)
        with pytest.raises(BufferError, match="pointer"):
            managed_tensor_of(field)

    def test_what_is_no_array_is_an_error(self):
        out = ctypes.c_void_p()
        with pytest.raises(AttributeError):
            api_of(ti.ScalarNdarray).from_py_object(object(), ctypes.byref(out))

    def test_read_only_is_said(self):
        nd = ti.from_dlpack(Fake(numbers((4,), "f32"), flags=dl.FLAG_READ_ONLY, capsule="versioned"))
        view = managed_tensor_of(nd)
        assert view.flags == dl.FLAG_READ_ONLY
        view.delete()

    def test_tensors_in_a_loop_leave_nothing(self):
        nd = new_ndarray("f32", (4,))
        assert helpers.growth(lambda: managed_tensor_of(nd).delete(), 20_000) < helpers.FLAT


class TestBorrowed:
    @each_kind
    def test_says_what_a_capsule_says(self, make):
        array, tensor = make(), dl.Tensor()
        assert api_of(type(array)).borrow_tensor(array, ctypes.byref(tensor)) == 0
        wanted = helpers.peek(array.__dlpack__())
        extents = [tuple(pointer[i] for i in range(tensor.ndim)) for pointer in (tensor.shape, tensor.strides)]
        assert (tensor.data, *extents) == (wanted.data, wanted.shape, wanted.strides)

    def test_costs_no_memory(self):
        nd, tensor = new_ndarray("f32", (4,)), dl.Tensor()
        borrow = api_of(ti.ScalarNdarray).borrow_tensor
        borrow(nd, ctypes.byref(tensor))
        shape = ctypes.cast(tensor.shape, ctypes.c_void_p).value
        borrow(nd, ctypes.byref(tensor))
        assert ctypes.cast(tensor.shape, ctypes.c_void_p).value == shape

    def test_of_a_read_only_array_is_a_buffer_error(self):
        nd = ti.from_dlpack(Fake(numbers((4,), "f32"), flags=dl.FLAG_READ_ONLY, capsule="versioned"))
        with pytest.raises(BufferError, match="read-only"):
            api_of(ti.ScalarNdarray).borrow_tensor(nd, ctypes.byref(dl.Tensor()))


class TestTakenOver:
    def managed(self, fake):
        return helpers.take(fake.make_capsule(True)).address

    def test_becomes_an_ndarray_on_the_memory(self):
        fake = Fake(numbers((4,), "f32"))
        nd = array_of(ti.ScalarNdarray, self.managed(fake))
        assert isinstance(nd, ti.ScalarNdarray)
        assert_aliases(nd, fake)
        assert fake.open == 1
        del nd
        helpers.check_released(fake)

    @pytest.mark.parametrize("claims", [{"device": (dl.METAL, 0)}, {"shape": (2,), "strides": (2,)}])
    def test_refused_is_deleted(self, claims):
        fake = Fake(numbers((4,), "f32"), **claims)
        with pytest.raises(BufferError):
            array_of(ti.ScalarNdarray, self.managed(fake))
        helpers.check_released(fake)


class TestAllocator:
    def allocate(self, dtype=None, shape=(2, 3), device=None):
        """A View, or the (kind, message) of the error."""
        errors = []
        set_error = dl.SetError(lambda _context, kind, message: errors.append((kind.decode(), message.decode())))
        extents = (ctypes.c_int64 * max(len(shape), 1))(*shape)
        prototype = dl.Tensor(
            device=dl.Device(*(device or own_device())),
            ndim=len(shape),
            dtype=dl.DataType(*(dtype or helpers.dl_type("f32"))),
            shape=ctypes.cast(extents, ctypes.POINTER(ctypes.c_int64)),
        )
        out = ctypes.c_void_p()
        status = api_of(ti.ScalarNdarray).allocate(ctypes.byref(prototype), ctypes.byref(out), None, set_error)
        if status == 0:
            assert not errors
            return View(dl.VERSIONED, out.value)
        assert status == -1 and len(errors) == 1
        return errors[0]

    @pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4), (0,), (2, 0)], ids=str)
    @pytest.mark.parametrize("name", DTYPES)
    def test_gives_a_tensor_of_that_form(self, name, shape):
        view = self.allocate(helpers.dl_type(name), shape)
        assert (view.dtype, view.shape, view.device) == (helpers.dl_type(name), shape, own_device())
        if view.count:
            helpers.write_bytes(view.data, b"\1" * (view.count * view.dtype[1] // 8))
        view.delete()

    def test_refuses_what_taichi_has_not(self):
        assert self.allocate(dtype=(dl.COMPLEX, 64, 1)) == ("BufferError", "Taichi has no arrays of complex64")
        assert self.allocate(shape=(1,) * 13) == ("BufferError", "Taichi has no arrays of 13 dimensions")
        kind, message = self.allocate(shape=(2, -1))
        assert kind == "BufferError" and "(2, -1)" in message
        kind, message = self.allocate(device=(dl.METAL, 0))
        assert kind == "BufferError" and "not on" in message

    def test_needs_no_gil(self):
        found = []
        thread = threading.Thread(target=lambda: found.append(self.allocate()))
        thread.start()
        thread.join()
        found[0].delete()

    def test_in_a_loop_leaves_nothing(self):
        assert helpers.growth(lambda: self.allocate().delete(), 5_000) < helpers.FLAT


def test_work_stream_is_the_legacy_default_stream():
    out = ctypes.c_void_p(1)
    assert api_of(ti.ScalarNdarray).current_work_stream(*own_device(), ctypes.byref(out)) == 0
    assert out.value is None


class TestTvmFfi:
    """A consumer of the API that is not ours."""

    @each_kind
    def test_takes_our_arrays_without_a_call_of_python(self, peer, make, monkeypatch):
        tvm_ffi, array = peer("tvm_ffi").module, make()
        for name in ("__dlpack__", "__dlpack_device__"):
            monkeypatch.setattr(type(array), name, lambda *_, **__: pytest.fail("was called"))
        tensor = tvm_ffi.from_dlpack(array)
        assert tuple(tensor.shape) == helpers.Place(tensor).shape
        monkeypatch.undo()
        assert helpers.Place(tensor).pointer == helpers.Place(array).pointer


# --- used for the arrays of others ----------------------------------------------------------------


@pytest.fixture(name="fake")
def fake_fixture():
    fake = Fake(numbers((4,), "f32"))
    yield fake
    helpers.check_released(fake)


class TestUsed:
    def test_in_place_of_the_protocol(self, fake):
        producer = Exchanging(fake)
        nd = ti.from_dlpack(producer.cls())
        assert_aliases(nd, fake)
        assert (producer.calls, producer.protocol_calls, fake.open) == (1, 0, 1)

    def test_with_copy(self, fake):
        nd = ti.from_dlpack(Exchanging(fake).cls(), copy=True)
        assert fake.open == 0 and helpers.values_of(nd).tolist() == [1, 2, 3, 4]

    def test_with_elements(self):
        fake = Fake(numbers((2, 3), "f32"))
        nd = ti.from_dlpack(Exchanging(fake).cls(), dtype=ti.math.vec3)
        assert nd.shape == (2,) and nd[1].to_list() == [4, 5, 6]

    def test_as_a_kernel_argument(self, fake):
        @ti.kernel
        def add_one(x: ti.types.ndarray()):
            for i in x:
                x[i] += 1

        producer = Exchanging(fake)
        add_one(producer.cls())
        ti.sync()
        assert producer.calls == 1 and helpers.read_bytes(fake.pointer, 4) == np.float32(2).tobytes()

    def test_not_where_a_copy_from_elsewhere_is_wanted(self):
        fake = Fake(numbers((4,), "f32"), device=(dl.METAL, 0), flags=dl.FLAG_IS_COPIED)
        producer = Exchanging(fake)
        with pytest.raises(BufferError):  # this one was asked, but does not copy
            ti.from_dlpack(producer.cls(), device=own_device())
        assert producer.calls == 0 and fake.asked[-1]["dl_device"] == own_device()

    def test_not_where_it_fails(self, fake):
        producer = Exchanging(fake, status=-1)
        nd = ti.from_dlpack(producer.cls())
        assert (producer.calls, producer.protocol_calls) == (1, 1) and nd[3] == 4

    def test_not_of_a_base_class(self, fake):
        producer = Exchanging(fake)

        class Own(producer.cls):
            pass

        ti.from_dlpack(Own())
        assert (producer.calls, producer.protocol_calls) == (0, 1)

    def test_not_of_a_later_version(self, fake):
        producer = Exchanging(fake, version=(2, 0))
        ti.from_dlpack(producer.cls())
        assert (producer.calls, producer.protocol_calls) == (0, 1)

    def test_of_the_version_that_is_understood(self, fake):
        older = Exchanging(fake)
        newer = Exchanging(fake, version=(2, 0), previous=older.table)
        ti.from_dlpack(newer.cls())
        assert (older.calls, newer.calls, newer.protocol_calls) == (1, 0, 0)

    def test_attribute_that_is_no_table_is_ignored(self, fake):
        producer = Exchanging(fake)
        setattr(producer.cls, ATTRIBUTE, 5)
        ti.from_dlpack(producer.cls())
        assert producer.protocol_calls == 1

    @pytest.mark.parametrize(
        "claims",
        [
            {"version": (2, 0)},
            {"strides": (2,), "shape": (2,)},
            {"device": (dl.METAL, 0)},
            {"dtype": (dl.FLOAT, 32, 2)},
        ],
    )
    def test_refused_tensors_are_given_back(self, claims):
        fake = Fake(numbers((4,), "f32"), **claims)
        with pytest.raises(BufferError):
            ti.from_dlpack(Exchanging(fake).cls())
        helpers.check_released(fake)


class TestTorch:
    def tensor(self, torch, **options):
        return torch.arange(4, dtype=torch.float32, device="cuda" if ON_CUDA else "cpu", **options)

    def test_is_taken_without_a_call_of_python(self, torch, monkeypatch):
        tensor = self.tensor(torch)
        if ATTRIBUTE not in vars(torch.Tensor):
            pytest.skip(f"torch {torch.__version__} has no exchange API")
        for name in ("__dlpack__", "__dlpack_device__"):
            monkeypatch.setattr(torch.Tensor, name, lambda *_, **__: pytest.fail("was called"))
        nd = ti.from_dlpack(tensor)
        monkeypatch.undo()
        assert_aliases(nd, tensor)

    def test_own_refusals_pass_unchanged(self, torch):
        with pytest.raises(BufferError, match="require gradient"):
            ti.from_dlpack(self.tensor(torch, requires_grad=True))

    @pytest.mark.parametrize("make", ["to_sparse", "conj"])
    def test_strange_tensors_are_buffer_errors(self, torch, make):
        tensor = (
            self.tensor(torch).to_sparse() if make == "to_sparse" else self.tensor(torch).to(torch.complex64).conj()
        )
        with pytest.raises(BufferError):
            ti.from_dlpack(tensor)

    def test_parameters_and_other_subclasses_are_asked(self, torch):
        parameter = torch.nn.Parameter(self.tensor(torch), requires_grad=False)
        assert_aliases(ti.from_dlpack(parameter), parameter.data)
