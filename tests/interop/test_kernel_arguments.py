"""Arrays of other libraries as arguments of kernels (contract, section 5, under the rules of section 2)."""

import numpy as np
import pytest
import taichi as ti

import dl_structs as dl
import helpers
import peers
from helpers import DTYPES, ON_CUDA, Fake, numbers, values_of

vec3 = ti.types.vector(3, ti.f32)

# Those that come in through a protocol. NumPy and torch keep their own way.
FOREIGN = tuple(name for name in peers.NAMES if name not in ("numpy", "torch"))


@ti.kernel
def add_one(x: ti.types.ndarray()):
    for I in ti.grouped(x):
        x[I] += 1


@ti.kernel
def flip(x: ti.types.ndarray()):
    for I in ti.grouped(x):
        x[I] = not x[I]


@ti.kernel
def dot(x: ti.types.ndarray(), y: ti.types.ndarray()) -> ti.f32:
    total = 0.0
    for i in x:
        total += x[i] * y[i]
    return total


@ti.kernel
def scale(x: ti.types.ndarray(dtype=vec3, ndim=1), by: ti.f32):
    for i in x:
        x[i] *= by


@ti.kernel
def sum_elements(x: ti.types.ndarray(element_dim=1)) -> ti.f32:
    total = 0.0
    for i in x:
        total += x[i].sum()
    return total


def memory_of(fake):
    """What lies in a Fake's memory now."""
    ti.sync()
    return values_of(ti.from_dlpack(fake))


class Interface:
    """Offers an array interface only: that of the backend."""

    def __init__(self, array):
        self.memory = helpers.Memory(array)
        self.described = {
            "shape": array.shape,
            "typestr": array.dtype.str,
            "data": (self.memory.pointer, False),
            "version": 3,
        }

    @property
    def __array_interface__(self):
        if ON_CUDA:
            raise AttributeError("on CUDA it is the other one")
        return self.described

    @property
    def __cuda_array_interface__(self):
        if not ON_CUDA:
            raise AttributeError("on the CPU it is the other one")
        return self.described

    def values(self):
        ti.sync()
        return np.frombuffer(helpers.read_bytes(self.memory.pointer, self.memory.nbytes), self.described["typestr"])


class TestAnyArray:
    @pytest.mark.parametrize("who", FOREIGN)
    def test_of_a_peer_is_read(self, peer, who):
        array = peer(who).make(numbers((4,), "f32"))
        assert dot(array, array) == 30

    @pytest.mark.parametrize("who", [name for name in FOREIGN if name != "jax"])
    def test_of_a_peer_is_written_in_place(self, peer, who):
        array = peer(who).make(numbers((4,), "f32"))
        add_one(array)
        ti.sync()
        assert values_of(ti.from_dlpack(array)).tolist() == [2, 3, 4, 5]

    def test_with_an_array_interface_only_is_used_in_place(self):
        array = Interface(numbers((4,), "f32"))
        add_one(array)
        assert array.values().tolist() == [2, 3, 4, 5]

    @pytest.mark.parametrize("name", DTYPES)
    def test_of_any_element_type_is_used_in_place(self, name):
        fake = Fake(numbers((2, 3), name))
        (flip if name == "u1" else add_one)(fake)
        expected = (
            ~numbers((2, 3), name) if name == "u1" else numbers((2, 3), name) + np.dtype(helpers.np_type(name)).type(1)
        )
        assert (memory_of(fake) == expected).all()

    def test_without_dimensions_is_used_in_place(self):
        fake = Fake(np.float32(6).reshape(()))
        add_one(fake)
        assert memory_of(fake) == 7

    def test_gives_vectors_where_the_parameter_wants_them(self):
        fake = Fake(numbers((2, 3), "f32"))
        scale(fake, 2)
        assert (memory_of(fake) == 2 * numbers((2, 3), "f32")).all()

    def test_gives_vectors_of_its_own_size_where_the_parameter_leaves_it_open(self):
        for size in (2, 4):
            assert sum_elements(Fake(np.ones((3, size), np.float32))) == 3 * size

    def test_stands_beside_ndarrays_numpy_and_torch(self, torch):
        own = ti.ndarray(ti.f32, 4)
        own.fill(2)
        fake = Fake(numbers((4,), "f32"))
        for other in (own, np.full(4, 2, np.float32), torch.full((4,), 2.0)):
            assert dot(fake, other) == dot(other, fake) == 20

    def test_may_be_given_by_keyword(self):
        fake = Fake(numbers((4,), "f32"))
        assert dot(y=fake, x=fake) == 30

    def test_is_asked_as_from_dlpack_asks(self):
        fake = Fake(numbers((4,), "f32"))
        add_one(fake)
        assert fake.asked == [{"max_version": (1, 3), **({"stream": 1} if ON_CUDA else {})}]

    def test_compiles_no_kernel_of_its_own(self):
        own = ti.ndarray(ti.f32, 4)
        add_one(own)
        compiled = len(add_one._primal.compiled_kernels)
        add_one(Fake(numbers((4,), "f32")))
        assert len(add_one._primal.compiled_kernels) == compiled

    def test_of_a_method_kernel(self):
        @ti.data_oriented
        class Adder:
            @ti.kernel
            def add(self, x: ti.types.ndarray()):
                for i in x:
                    x[i] += 1

        fake = Fake(numbers((4,), "f32"))
        Adder().add(fake)
        assert memory_of(fake).tolist() == [2, 3, 4, 5]


class TestRefusal:
    """What `ti.from_dlpack` refuses a kernel refuses too, before anything runs, and gives it back."""

    REFUSED = {
        "a stride": {"shape": (2,), "strides": (2,)},
        "a transposed array": {"shape": (2, 2), "strides": (1, 2)},
        "a device": {"device": (dl.METAL, 0)},
        "lanes": {"dtype": (dl.FLOAT, 32, 2)},
        "an element type": {"dtype": (dl.BFLOAT, 16, 1)},
        "a misaligned pointer": {"byte_offset": 2, "shape": (3,)},
        "a pointer that is NULL": {"null": True},
        "a major version": pytest.param({"version": (2, 0), "capsule": "versioned"}, marks=helpers.needs_python_3_11),
    }

    @pytest.mark.parametrize("claims", REFUSED.values(), ids=REFUSED)
    def test_is_a_buffer_error(self, claims):
        own = ti.ndarray(ti.f32, 4)
        fake = Fake(numbers((4,), "f32"), **claims)
        with pytest.raises(BufferError):
            dot(own, fake)
        with pytest.raises(BufferError):
            add_one(fake)
        helpers.check_released(fake)
        if "device" not in claims:
            assert helpers.read_bytes(fake.memory.pointer, 16) == numbers((4,), "f32").tobytes()

    def test_elements_that_do_not_match_are_a_buffer_error(self):
        with pytest.raises(BufferError, match="trailing dimensions"):
            scale(Fake(numbers((3, 2), "f32")), 2)
        with pytest.raises(BufferError, match="wanted f32"):
            scale(Fake(numbers((3, 3), "f64")), 2)

    def test_a_producer_s_own_error_passes_unchanged(self):
        error = BufferError("it requires grad")
        with pytest.raises(BufferError) as caught:
            add_one(Fake(raises=error))
        assert caught.value is error

    def test_what_is_no_array_is_refused_as_before(self):
        with pytest.raises(ti.TaichiRuntimeTypeError):
            add_one("no array")


class TestOwnWays:
    """NumPy and torch do as they did: their arrays are not imported."""

    def test_numpy_arrays_and_tensors_are_not_asked(self, torch, monkeypatch):
        from taichi.lang import _dlpack  # pylint: disable=C0415

        monkeypatch.setattr(_dlpack, "from_dlpack", lambda *_, **__: pytest.fail("was imported"))
        array, tensor = numbers((4,), "f32"), torch.ones(4)
        add_one(array)
        add_one(tensor)
        ti.sync()
        assert array.tolist() == [2, 3, 4, 5] and tensor.tolist() == [2] * 4

    def test_a_subclass_of_an_array_is_one(self, monkeypatch):
        from taichi.lang import _dlpack  # pylint: disable=C0415

        class Own(np.ndarray):
            pass

        monkeypatch.setattr(_dlpack, "from_dlpack", lambda *_, **__: pytest.fail("was imported"))
        array = numbers((4,), "f32").view(Own)
        add_one(array)
        ti.sync()
        assert array.tolist() == [2, 3, 4, 5]


class TestLife:
    def test_the_memory_goes_back_after_the_launch(self):
        fake = Fake(numbers((4,), "f32"))
        add_one(fake)
        helpers.check_released(fake)

    def test_the_memory_goes_back_when_another_argument_is_refused(self):
        fake, wrong = Fake(numbers((4,), "f32")), Fake(numbers((4,), "f32"), device=(dl.METAL, 0))
        with pytest.raises(BufferError):
            dot(fake, wrong)
        helpers.check_released(fake)

    def test_launches_in_a_loop_grow_nothing(self):
        fake = Fake(numbers((4,), "f32"))
        assert helpers.growth(lambda: add_one(fake), 5_000) < helpers.FLAT
        helpers.check_released(fake)
