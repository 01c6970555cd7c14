"""An imported ndarray is an ordinary ndarray (contract, section 2, row "use")."""

import copy

import numpy as np
import pytest
import taichi as ti
from taichi.lang.exception import TaichiIndexError

import helpers
from helpers import DTYPES, ON_CUDA, Fake, assert_aliases, element_type, growth, numbers, peek, set_values, values_of


def imported(name="f32", shape=(4,), element=()):
    """An ndarray over a Fake's memory with known numbers, and the Fake."""
    fake = Fake(numbers(shape + element, name))
    return ti.from_dlpack(fake, dtype=element_type(name, element) if element else None), fake


def memory_of(fake):
    """What lies in a Fake's memory now."""
    ti.sync()
    return values_of(ti.from_dlpack(fake))


@ti.kernel
def add_one(x: ti.types.ndarray(dtype=ti.f32, ndim=1)):
    for i in x:
        x[i] += 1


@ti.kernel
def any_add_one(x: ti.types.ndarray()):
    for I in ti.grouped(x):
        x[I] += 1


@ti.kernel
def total(x: ti.types.ndarray(dtype=ti.f32, ndim=1)) -> ti.f32:
    result = 0.0
    for i in x:
        result += x[i]
    return result


@ti.kernel
def size_of(x: ti.types.ndarray(dtype=ti.f32, ndim=2)) -> ti.i32:
    return x.shape[0] * 100 + x.shape[1]


@ti.kernel
def square_sum(x: ti.types.ndarray(dtype=ti.f32, ndim=1), loss: ti.types.ndarray(dtype=ti.f32, ndim=0)):
    for i in x:
        loss[None] += x[i] * x[i]


NUMBERS = [3, True, 2.5, np.int64(3), np.array(4), np.True_, np.float32(2.5), np.float64(2.5), "3", None]


class TestKernels:
    def test_write_the_shared_memory(self):
        nd, fake = imported()
        for _ in range(3):
            add_one(nd)
        assert memory_of(fake).tolist() == [4, 5, 6, 7]

    def test_read_the_shared_memory(self):
        nd, fake = imported()
        helpers.write_bytes(fake.pointer, np.float32([10, 20, 30, 40]).tobytes())
        assert total(nd) == 100

    @pytest.mark.parametrize("name", sorted(set(DTYPES) - {"u1"}))
    def test_run_on_each_type(self, name):
        nd, fake = imported(name, (2, 3))
        any_add_one(nd)
        assert (memory_of(fake) == numbers((2, 3), name) + 1).all()

    def test_run_on_bool(self):
        @ti.kernel
        def invert(x: ti.types.ndarray(dtype=ti.u1, ndim=1)):
            for i in x:
                x[i] = not x[i]

        nd, fake = imported("u1", (5,))
        invert(nd)
        assert (memory_of(fake) == ~numbers((5,), "u1")).all()

    @pytest.mark.parametrize("element", [(3,), (2, 3)])
    def test_run_on_elements(self, element):
        nd, fake = imported("f32", (4,), element)
        any_add_one(nd)
        assert (memory_of(fake) == numbers((4,) + element, "f32") + 1).all()

    def test_see_the_shape(self):
        assert size_of(imported("f32", (7, 9))[0]) == 709

    def test_run_on_zero_size(self):
        nd = ti.from_dlpack(Fake(np.zeros((0,), np.float32), null=True))
        add_one(nd)
        assert total(nd) == 0

    def test_run_on_zero_dimensions(self):
        nd, fake = imported("f32", ())
        any_add_one(nd)
        assert memory_of(fake) == 2

    def test_mix_own_and_imported(self):
        @ti.kernel
        def add(a: ti.types.ndarray(dtype=ti.f32, ndim=1), b: ti.types.ndarray(dtype=ti.f32, ndim=1)):
            for i in a:
                a[i] += b[i]

        nd, fake = imported()
        own = ti.ndarray(ti.f32, 4)
        own.fill(10)
        add(nd, own)
        add(own, nd)
        assert memory_of(fake).tolist() == [11, 12, 13, 14] and own.to_numpy().tolist() == [21, 22, 23, 24]

    def test_one_kernel_is_compiled_for_both(self):
        @ti.kernel
        def touch(x: ti.types.ndarray(dtype=ti.f32, ndim=1)):
            x[0] = 1

        touch(ti.ndarray(ti.f32, 4))
        before = len(touch._primal.compiled_kernels)
        touch(imported()[0])
        assert before == len(touch._primal.compiled_kernels) == 1


class TestGraphs:
    @staticmethod
    def graph():
        builder = ti.graph.GraphBuilder()
        builder.dispatch(add_one, ti.graph.Arg(ti.graph.ArgKind.NDARRAY, "x", ti.f32, ndim=1))
        return builder.compile()

    @pytest.mark.needs_core("a graph takes an imported ndarray only with the series' core")
    def test_run_on_an_import(self):
        nd, fake = imported()
        graph = self.graph()
        for _ in range(3):
            graph.run({"x": nd})
        assert memory_of(fake).tolist() == [4, 5, 6, 7]

    @pytest.mark.needs_core("a graph takes an imported ndarray only with the series' core")
    def test_run_on_imported_elements(self):
        builder = ti.graph.GraphBuilder()
        builder.dispatch(add_to_vectors, ti.graph.Arg(ti.graph.ArgKind.NDARRAY, "x", ti.math.vec3, ndim=1))
        nd, fake = imported("f32", (4,), (3,))
        builder.compile().run({"x": nd})
        assert (memory_of(fake) == numbers((4, 3), "f32") + 1).all()

    def test_still_run_on_an_own_array(self):
        nd = ti.ndarray(ti.f32, 4)
        self.graph().run({"x": nd})
        assert nd.to_numpy().tolist() == [1] * 4

    @pytest.mark.cpu_only("on CUDA sparse matrices are cuSPARSE's")
    @pytest.mark.needs_core("a sparse matrix takes an imported ndarray only with the series' core")
    def test_a_sparse_matrix_is_built_of_it_multiplies_it_and_is_solved_for_it(self):
        # A page of its own: what is read past the end is not zero.
        fake = Fake(np.array([[0, 0, 4], [1, 1, 2], [2, 2, 8], [0, 2, 1]], np.float32))
        matrix = ti.linalg.SparseMatrix(n=3, m=3, dtype=ti.f32)
        matrix.build_from_ndarray(ti.from_dlpack(fake))
        dense = [[matrix[i, j] for j in range(3)] for i in range(3)]
        assert dense == [[4, 0, 1], [0, 2, 0], [0, 0, 8]]
        right = ti.from_dlpack(Fake(np.array([1, 2, 8], np.float32)))
        assert (matrix @ right).to_numpy().tolist() == [12, 4, 64]
        solver = ti.linalg.SparseSolver(solver_type="LU")
        solver.analyze_pattern(matrix)
        solver.factorize(matrix)
        assert np.allclose(solver.solve(right).to_numpy(), np.linalg.solve(dense, [1, 2, 8]))

    @pytest.mark.fast_only("the built core takes imported ndarrays in graphs")
    def test_refused_in_plain_words_by_the_fast_wheel(self):
        with pytest.raises(Exception, match="(?i)graph") as caught:
            self.graph().run({"x": imported()[0]})
        assert "import" in str(caught.value)


@ti.kernel
def add_to_vectors(x: ti.types.ndarray(dtype=ti.math.vec3, ndim=1)):
    for i in x:
        x[i] += 1.0


class TestMethods:
    @pytest.mark.parametrize("element", [(), (3,), (2, 3)], ids=str)
    @pytest.mark.parametrize("name", DTYPES)
    def test_fill(self, name, element):
        nd, fake = imported(name, (3,), element)
        nd.fill(1)
        assert (memory_of(fake) == np.ones((3,) + element, helpers.np_type(name))).all()

    @pytest.mark.parametrize("name", ["i32", "u8", "f32"])
    @pytest.mark.parametrize("value", NUMBERS, ids=[f"{type(value).__name__}-{value}" for value in NUMBERS])
    @pytest.mark.parametrize("write", [lambda nd, value: nd.fill(value), lambda nd, value: nd.__setitem__(0, value)])
    def test_takes_the_numbers_that_an_own_one_takes(self, name, value, write):
        def outcome(nd):
            try:
                write(nd, value)
            except Exception as error:  # pylint: disable=W0718
                return type(error)
            return nd[0]

        own = ti.ndarray(helpers.ti_type(name), 3)
        assert outcome(ti.from_dlpack(Fake(np.zeros(3, helpers.np_type(name))))) == outcome(own)

    @pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
    @pytest.mark.parametrize("name", ["i8", "u16", "f16", "u1"])
    def test_fill_writes_whole_arrays_of_odd_sizes_and_no_more(self, name, size):
        base = numbers((size + 8,), name, start=1) * 0
        fake = Fake(base, shape=(size,))
        ti.from_dlpack(fake).fill(1)
        ti.sync()
        found = np.frombuffer(helpers.read_bytes(fake.pointer, base.nbytes), base.dtype)
        assert found[:size].all() and not found[size:].any()

    @pytest.mark.parametrize("shape", [(), (5,), (2, 3)], ids=str)
    @pytest.mark.parametrize("name", DTYPES)
    def test_indexing_reads_and_writes(self, name, shape):
        nd, fake = imported(name, shape)
        last = tuple(size - 1 for size in shape)
        assert nd[last] == numbers(shape, name)[last]
        nd[last] = 0
        assert memory_of(fake)[last] == 0

    def test_wrong_number_of_indices_is_an_error(self):
        with pytest.raises(TaichiIndexError):
            imported("f32", (2, 3))[0][1]  # pylint: disable=W0104

    @pytest.mark.parametrize("element", [(), (3,), (2, 3)], ids=str)
    @pytest.mark.parametrize("name", ["i8", "f16", "f32", "f64", "u64", "u1"])
    def test_to_numpy_copies(self, name, element):
        nd, fake = imported(name, (3,), element)
        array = nd.to_numpy()
        assert array.dtype == helpers.np_type(name) and (array == numbers((3,) + element, name)).all()
        array[:] = 0
        assert (memory_of(fake) == numbers((3,) + element, name)).all()

    @pytest.mark.parametrize("element", [(), (3,), (2, 3)], ids=str)
    def test_from_numpy_writes_the_shared_memory(self, element):
        nd, fake = imported("f32", (3,), element)
        wanted = numbers((3,) + element, "f32", start=40)
        nd.from_numpy(wanted)
        assert (memory_of(fake) == wanted).all()

    @pytest.mark.parametrize("element", [(), (3,), (2, 3)], ids=str)
    def test_copy_from_either_way(self, element):
        nd, fake = imported("f32", (3,), element)
        own = helpers.new_ndarray("f32", (3,), element)
        own.copy_from(nd)
        assert (own.to_numpy() == numbers((3,) + element, "f32")).all()
        own.fill(9)
        nd.copy_from(own)
        assert (memory_of(fake) == 9).all()

    @pytest.mark.parametrize("element", [(), (3,), (2, 3)], ids=str)
    def test_deepcopy_is_independent(self, element):
        nd, fake = imported("f32", (3,), element)
        other = copy.deepcopy(nd)
        assert type(other) is type(nd) and other.shape == nd.shape and other.element_shape == nd.element_shape
        other.fill(9)
        assert (memory_of(fake) == numbers((3,) + element, "f32")).all() and (values_of(other) == 9).all()

    def test_repr_and_type_are_those_of_an_own_array(self):
        nd, own = imported()[0], ti.ndarray(ti.f32, 4)
        assert repr(nd) == repr(own) and type(nd) is type(own)
        for attribute in ("shape", "dtype", "element_shape", "layout"):
            assert getattr(nd, attribute) == getattr(own, attribute), attribute

    def test_re_export_aliases(self):
        nd, fake = imported()
        assert_aliases(ti.from_dlpack(nd), fake)
        assert peek(nd.__dlpack__()).data == fake.pointer


class TestGrad:
    def test_tape_writes_an_imported_gradient(self):
        nd, _ = imported()
        gradient = Fake(np.zeros(4, np.float32))
        nd.grad = ti.from_dlpack(gradient)
        loss = ti.ndarray(ti.f32, (), needs_grad=True)
        with ti.ad.Tape(loss):
            square_sum(nd, loss)
        assert loss[None] == 30 and memory_of(gradient).tolist() == [2, 4, 6, 8]

    def test_loss_may_be_imported_too(self):
        nd, _ = imported()
        nd.grad = ti.ndarray(ti.f32, 4)
        value, gradient = Fake(np.zeros((), np.float32)), Fake(np.zeros((), np.float32))
        loss = ti.from_dlpack(value)
        loss.grad = ti.from_dlpack(gradient)
        with ti.ad.Tape(loss):
            square_sum(nd, loss)
        assert memory_of(value) == 30 and nd.grad.to_numpy().tolist() == [2, 4, 6, 8]

    def test_torch_parameters_get_their_gradient_from_taichi(self, torch):
        parameter = torch.arange(1.0, 5.0, device="cuda" if ON_CUDA else "cpu").requires_grad_()
        parameter.grad = torch.zeros_like(parameter)
        nd = ti.from_dlpack(parameter.detach())
        nd.grad = ti.from_dlpack(parameter.grad)
        loss = ti.ndarray(ti.f32, (), needs_grad=True)
        with ti.ad.Tape(loss):
            square_sum(nd, loss)
        ti.sync()
        assert parameter.grad.tolist() == [2, 4, 6, 8]


class TestLoops:
    """100,000 rounds that must leave nothing behind; half of it on CUDA, where a round may take a call of the driver."""

    ROUNDS = 50_000 if ON_CUDA else 100_000

    def test_imports_grow_nothing(self, torch):
        theirs = torch.zeros(8, device="cuda" if ON_CUDA else "cpu")
        assert growth(lambda: ti.from_dlpack(theirs), self.ROUNDS) < helpers.FLAT

    def test_imports_of_elements_grow_nothing(self, torch):
        theirs = torch.zeros(8, 3, device="cuda" if ON_CUDA else "cpu")
        assert growth(lambda: ti.from_dlpack(theirs, dtype=ti.math.vec3), self.ROUNDS // 4) < helpers.FLAT

    def test_imports_with_a_kernel_grow_nothing(self, torch):
        theirs = torch.zeros(8, device="cuda" if ON_CUDA else "cpu")
        assert growth(lambda: add_one(ti.from_dlpack(theirs)), self.ROUNDS // 10) < helpers.FLAT

    def test_copying_imports_grow_nothing(self, torch):
        theirs = torch.zeros(8, device="cuda" if ON_CUDA else "cpu")
        assert growth(lambda: ti.from_dlpack(theirs, copy=True), self.ROUNDS // 10) < helpers.FLAT

    def test_refused_imports_grow_nothing(self, torch):
        theirs = torch.zeros(4, 4, device="cuda" if ON_CUDA else "cpu").T

        def refused():
            with pytest.raises(BufferError):
                ti.from_dlpack(theirs)

        assert growth(refused, self.ROUNDS // 10) < helpers.FLAT

    def test_array_interface_imports_grow_nothing(self):
        if ON_CUDA:
            pytest.skip("backend cuda: NumPy has host memory only")
        theirs = np.zeros(8, np.float32)

        class Interface:
            __array_interface__ = theirs.__array_interface__

        x = Interface()
        assert growth(lambda: ti.from_dlpack(x), self.ROUNDS // 4) < helpers.FLAT

    def test_indexing_in_a_loop_grows_nothing(self):
        nd, _ = imported()

        def touch():
            nd[1] = nd[2]

        # On CUDA each of the two takes an allocation and a wait.
        assert growth(touch, self.ROUNDS // (25 if ON_CUDA else 4)) < helpers.FLAT

    def test_every_deleter_has_run(self):
        fake = Fake(numbers((8,), "f32"))
        for _ in range(2000):
            ti.from_dlpack(fake)
        helpers.collect()
        assert fake.made == fake.deleted == 2000


def test_set_values_and_values_of_agree_with_taichi():
    """The helpers themselves: what they write and read is what Taichi sees."""
    nd = ti.ndarray(ti.i32, (2, 3))
    set_values(nd, numbers((2, 3), "i32"))
    assert (nd.to_numpy() == values_of(nd)).all() and nd[1, 2] == 6
