"""Any field's view shows its elements where Taichi keeps them, or there is no such view.

Trees are random. TI_FIELD_TREES=N is how many are tried at least.
"""

import collections
import itertools
import math
import os

import numpy as np
import pytest
import taichi as ti
from hypothesis import given, settings
from hypothesis import strategies as st

import helpers
import layouts
from helpers import numbers, peek, ti_type

TREES = int(os.environ.get("TI_FIELD_TREES", "500"))
TREES_AN_EXAMPLE = 3


# --- reading and writing both ways ----------------------------------------------------------------


class Strided:
    """A field's exported memory, reached by address, shape and strides alone."""

    def __init__(self, field):
        self.capsule = field.__dlpack__(max_version=(1, 0))
        self.view = peek(self.capsule)
        name = next(name for name, row in helpers.DTYPES.items() if helpers.dl_type(name) == self.view.dtype)
        self.dtype = helpers.np_type(name)
        last = sum((size - 1) * stride for size, stride in zip(self.view.shape, self.view.strides or ()))
        self._nbytes = (last + 1) * self.dtype.itemsize

    def _fetch(self):
        data = np.frombuffer(bytearray(helpers.read_bytes(self.view.data, self._nbytes)), self.dtype)
        strides = [stride * self.dtype.itemsize for stride in self.view.strides or ()]
        return data, np.lib.stride_tricks.as_strided(data, self.view.shape, strides)

    def read(self):
        return self._fetch()[1].copy()

    def write(self, values):
        data, elements = self._fetch()
        elements[...] = values
        helpers.write_bytes(self.view.data, data.tobytes())


@ti.kernel
def exchange(
    fields: ti.template(),
    table: ti.types.ndarray(ti.i32, ndim=2),
    put: ti.types.ndarray(ti.i32, ndim=1),
    seen: ti.types.ndarray(ti.i32, ndim=1),
):
    """Reads the elements that the rows of `table` name (number of the field, index), and writes them anew."""
    for row in range(table.shape[0]):
        for number in ti.static(range(len(fields))):
            if table[row, 0] == number:
                index = ti.Vector(
                    [table[row, 1 + axis] for axis in ti.static(range(max(len(fields[number].shape), 1)))]
                )
                if ti.static(len(fields[number].shape) == 0):
                    seen[row] = ti.cast(fields[number][None], ti.i32)
                    fields[number][None] = ti.cast(put[row], fields[number].dtype)
                else:
                    seen[row] = ti.cast(fields[number][index], ti.i32)
                    fields[number][index] = ti.cast(put[row], fields[number].dtype)


@ti.kernel
def locate(fields: ti.template(), table: ti.types.ndarray(ti.i32, ndim=2), addresses: ti.types.ndarray(ti.u64, ndim=1)):
    """The addresses of the elements that the rows of `table` name. Indices are without the field's offset."""
    for row in range(table.shape[0]):
        for number in ti.static(range(len(fields))):
            if table[row, 0] == number:
                index = [table[row, 1 + axis] for axis in ti.static(range(len(fields[number].shape)))]
                addresses[row] = ti.get_addr(fields[number], index)


def table_of(members, offsets):
    """A row for each element of each scalar field: its number, then its index plus the offset."""
    rows = []
    for number, (member, offset) in enumerate(zip(members, offsets)):
        offset = offset or (0,) * len(member.shape)
        for index in itertools.product(*(range(size) for size in member.shape)):
            shifted = [i + o for i, o in zip(index, offset)]
            rows.append([number] + shifted + [0] * (layouts.AXES - len(shifted)))
    return np.array(rows, np.int32)


def members_last(flat, field):
    """Values by member, then index, as an array with the shape of the field's view."""
    shape, element = field.field.shape, field.element
    return np.moveaxis(flat.reshape((math.prod(element),) + shape), 0, -1).reshape(shape + element)


def split(values, fields):
    """Cuts values that `table_of` has rows for into one array a field."""
    start = 0
    for field in fields:
        count = math.prod(field.field.shape) * math.prod(field.element)
        yield members_last(values[start : start + count], field)
        start += count


def check_views(fields, views):
    """Writes through the views and reads through Taichi, and the other way round."""
    members = [member for field in fields for member in field.members()]
    table = table_of(members, [field.offset for field in fields for _ in field.members()])
    by_view, by_taichi = (np.int32(1 + (np.arange(len(table)) * step) % 127) for step in (1, 5))
    seen = np.zeros_like(by_view)
    wanted = [np.zeros(len(table), np.int32), np.zeros(len(table), np.int32)]
    for values, out in zip((by_view, by_taichi), wanted):
        out[:] = values
        for row, member in enumerate(table[:, 0]):
            if members[member].dtype == ti.u1:
                out[row] %= 2
    for view, values in zip(views, split(wanted[0], fields)):
        view.write(values)
    exchange(tuple(members), table, wanted[1], seen)
    ti.sync()
    assert (seen == wanted[0]).all(), "Taichi does not see what was written through the views"
    for field, view, values in zip(fields, views, split(wanted[1], fields)):
        assert (view.read() == values).all(), f"the view of {field} does not show what Taichi wrote"


def addresses_of(fields):
    """The address of every element of dense fields, an array a field in the shape of its view."""
    members = [member for field in fields for member in field.members()]
    table = table_of(members, [()] * len(members))
    addresses = np.zeros(len(table), np.uint64)
    locate(tuple(members), table, addresses)
    ti.sync()
    return split(addresses.astype(np.int64), fields)


def strides_of(addresses, item_size):
    """Strides in elements that lead to all addresses, 0 along axes of one element; None where there are none."""
    first = addresses[(0,) * addresses.ndim]
    steps = []
    for axis, size in enumerate(addresses.shape):
        second = tuple(1 if other == axis else 0 for other in range(addresses.ndim))
        steps.append(int(addresses[second] - first) if size > 1 else 0)
    regular = first + sum((i * step for i, step in zip(np.indices(addresses.shape), steps)), np.int64(0))
    if (regular != addresses).any() or any(step < 0 or step % item_size for step in steps):
        return None
    return tuple(step // item_size for step in steps)


# --- random trees ---------------------------------------------------------------------------------


class Checker:
    """Checks the fields of trees, and counts what it met."""

    def __init__(self):
        self.counts = collections.Counter()

    def check(self, plans):
        """Builds the trees, exports every field of them, compares."""
        if layouts.is_full():
            helpers.init()
        fields = [field for plan in plans for field in layouts.Builder(plan).built]
        views = [self._export(field) for field in fields]
        shown = [(field, view) for field, view in zip(fields, views) if view is not None]
        if shown:
            check_views(*zip(*shown))
        self._check_refused([field for field, view in zip(fields, views) if view is None and not field.obstacle])
        self.counts["trees"] += len(plans)
        self.counts["views"] += len(shown)

    def _export(self, field):
        """The view of a field, or None where it is refused."""
        try:
            view = Strided(field.field)
        except BufferError as error:
            message = str(error)
            assert "SNode S" in message or "members" in message, message
            if field.obstacle:
                assert f"({field.obstacle})" in message, message
            self.counts[field.obstacle or "no single stride"] += 1
            return None
        assert not field.obstacle, f"a field below {field.obstacle} was exported"
        assert view.view.shape == field.field.shape + field.element and view.view.byte_offset == 0
        assert view.dtype == helpers.np_type(field.item.dtype)
        return view

    @staticmethod
    def _check_refused(fields):
        """Fails when one of these dense fields has strides."""
        if not fields:
            return
        for field, addresses in zip(fields, addresses_of(fields)):
            strides = strides_of(addresses, helpers.np_type(field.item.dtype).itemsize)
            assert strides is None, f"{field} was refused, and has strides {strides}"


@pytest.mark.usefixtures("fresh_runtime")
def test_any_tree():
    checker = Checker()

    @settings(max_examples=-(-TREES // TREES_AN_EXAMPLE))
    @given(st.lists(layouts.trees(), min_size=TREES_AN_EXAMPLE, max_size=TREES_AN_EXAMPLE))
    def check(plans):
        checker.check(plans)

    check()
    print(dict(checker.counts))
    # Else the generator has become blind to something.
    assert checker.counts["trees"] >= TREES and checker.counts["views"] >= TREES
    for met in ("no single stride", "pointer", "bitmasked", "dynamic", "bit_struct"):
        assert checker.counts[met] >= TREES // 250, f"{met}: {checker.counts}"


# --- layouts with known strides -------------------------------------------------------------------


def placed(make, *fields, **options):
    """Places fields where `make` puts a node."""
    make().place(*fields, **options)
    return fields[0]


def dense(*levels):
    """Nested dense nodes: (axes, extents) from the root down."""
    node = ti.root
    for axes, extents in levels:
        node = node.dense(axes, extents)
    return node


def spread(field, *indices, levels=((ti.i, 4),)):
    """Places the members with these indices, each in nodes of its own."""
    for index in indices:
        dense(*levels).place(field.get_scalar_field(*index))
    return field


KNOWN = {
    "0-d": (lambda: ti.field(ti.f32, ()), (), ()),
    "0-d vector": (lambda: ti.Vector.field(3, ti.f32, ()), (3,), (1,)),
    "(1, 77)": (lambda: ti.field(ti.f32, (1, 77)), (1, 77), (77, 1)),
    "(77, 1)": (lambda: ti.field(ti.f32, (77, 1)), (77, 1), (1, 1)),
    "order ji": (lambda: ti.field(ti.f32, (2, 3), order="ji"), (2, 3), (1, 2)),
    "order kij": (lambda: ti.field(ti.i8, (2, 3, 4), order="kij"), (2, 3, 4), (3, 1, 6)),
    "with offset": (lambda: ti.field(ti.i8, (2, 3), offset=(-4, 7)), (2, 3), (3, 1)),
    "i.j": (lambda: placed(lambda: dense((ti.i, 4), (ti.j, 8)), ti.field(ti.f64)), (4, 8), (8, 1)),
    "i.i": (lambda: placed(lambda: dense((ti.i, 4), (ti.i, 8)), ti.field(ti.f64)), (32,), (1,)),
    "i.i.i, no power of two": (
        lambda: placed(lambda: dense((ti.i, 3), (ti.i, 5), (ti.i, 7)), ti.field(ti.u8)),
        (105,),
        (1,),
    ),
    "jk, no i": (lambda: placed(lambda: dense((ti.jk, (2, 3))), ti.field(ti.u8)), (2, 3), (3, 1)),
    "blocks of whole rows": (
        lambda: placed(lambda: dense((ti.ij, (4, 1)), (ti.ij, (2, 8))), ti.field(ti.f32)),
        (8, 8),
        (8, 1),
    ),
    "blocks of columns": (
        lambda: placed(lambda: dense((ti.ij, (1, 4)), (ti.i, 3)), ti.field(ti.f32)),
        (3, 4),
        (1, 3),
    ),
    "AOS": (lambda: placed(lambda: dense((ti.i, 5)), ti.field(ti.f32), ti.field(ti.f32)), (5,), (2,)),
    "AOS of mixed sizes": (lambda: placed(lambda: dense((ti.i, 5)), ti.field(ti.i8), ti.field(ti.f64)), (5,), (16,)),
    "vector": (lambda: ti.Vector.field(3, ti.f32, 4), (4, 3), (3, 1)),
    "vector, SOA": (lambda: ti.Vector.field(3, ti.f32, 4, layout=ti.Layout.SOA), (4, 3), (1, 4)),
    "vector of one": (lambda: ti.Vector.field(1, ti.f32, 4), (4, 1), (1, 1)),
    "matrix": (lambda: ti.Matrix.field(2, 3, ti.f32, 4), (4, 2, 3), (6, 3, 1)),
    "matrix, SOA": (lambda: ti.Matrix.field(2, 3, ti.f32, 4, layout=ti.Layout.SOA), (4, 2, 3), (1, 12, 4)),
    "matrix of one row": (lambda: ti.Matrix.field(1, 3, ti.f32, 4), (4, 1, 3), (3, 3, 1)),
    "matrix of one column": (lambda: ti.Matrix.field(3, 1, ti.f32, 4), (4, 3, 1), (3, 1, 1)),
    "matrix, members by column": (
        lambda: spread(ti.Matrix.field(2, 2, ti.f32), (0, 0), (1, 0), (0, 1), (1, 1)),
        (4, 2, 2),
        (1, 4, 8),
    ),
    "u1": (lambda: ti.field(ti.u1, (3, 5)), (3, 5), (5, 1)),
    "f16": (lambda: ti.field(ti.f16, (3, 5)), (3, 5), (5, 1)),
}


@pytest.mark.usefixtures("room")
class TestKnownLayouts:
    @pytest.mark.parametrize("make, shape, strides", KNOWN.values(), ids=KNOWN)
    @pytest.mark.parametrize("first", [True, False], ids=["alone", "after another field"])
    def test_has_shape_and_strides(self, make, shape, strides, first):
        if not first:
            ti.field(ti.i8, 3)
        view = peek(make().__dlpack__(max_version=(1, 0)))
        assert view.shape == shape and (view.strides or ()) == strides and view.byte_offset == 0

    @pytest.mark.parametrize("dtype", sorted(helpers.DTYPES))
    def test_has_the_element_type(self, dtype):
        field = ti.field(ti_type(dtype), 4)
        field.from_numpy(numbers((4,), dtype))
        strided = Strided(field)
        assert strided.dtype == helpers.np_type(dtype)
        assert (strided.read() == numbers((4,), dtype)).all()

    def test_struct_members_lie_in_cells(self):
        struct = ti.Struct.field({"a": ti.math.vec3, "b": ti.math.vec3, "c": ti.u1, "d": ti.i32}, shape=4)
        views = [peek(struct.get_member_field(name).__dlpack__()) for name in "abcd"]
        assert [view.strides for view in views] == [(8, 1), (8, 1), (32,), (8,)]
        assert [view.data - views[0].data for view in views] == [0, 12, 24, 28]

    def test_fields_of_a_tree_lie_behind_one_another(self):
        x, y, z = ti.field(ti.i8, 3), ti.field(ti.f64, (2, 2)), ti.field(ti.i16, ())
        views = [peek(field.__dlpack__()) for field in (x, y, z)]
        assert [view.data - views[0].data for view in views] == [0, 8, 40]

    def test_gradient_lies_beside_its_field(self):
        x = ti.field(ti.f32)
        ti.root.dense(ti.i, 4).place(x)
        ti.root.lazy_grad()
        views = [peek(field.__dlpack__()) for field in (x, x.grad)]
        assert views[0].strides == views[1].strides == (2,) and views[1].data - views[0].data == 4

    def test_gradients_and_duals_are_fields(self):
        x = ti.field(ti.f32, 4, needs_grad=True, needs_dual=True)
        for number, field in enumerate((x, x.grad, x.dual)):
            field.fill(number)
            assert (Strided(field).read() == number).all()

    @pytest.mark.usefixtures("fresh_runtime")
    def test_fields_that_debug_mode_adds_are_counted(self):
        helpers.init(debug=True)
        x = ti.field(ti.f32)
        ti.root.dense(ti.i, 4).place(x, x.grad)
        x.from_numpy(numbers((4,), "f32"))
        strided = Strided(x)
        assert strided.view.strides == (3,) and (strided.read() == numbers((4,), "f32")).all()

    @pytest.mark.skipif(helpers.available_memory() < 6 * 2**30, reason="needs 6 GiB of free memory")
    def test_offset_may_exceed_32_bits(self):
        ti.field(ti.u8, (2**16, 2**16 + 1))
        x = ti.field(ti.f32, 3)
        x[2] = 5
        strided = Strided(x)
        assert list(strided.read()) == [0, 0, 5]
        strided.write([7, 8, 9])
        assert (x[0], x[1], x[2]) == (7, 8, 9)


# --- fields without a view ------------------------------------------------------------------------


def quantised(make):
    """A quantised field in a bit struct or array, where `make` puts a node."""
    field = ti.field(ti.types.quant.int(5))
    node = make()
    if str(node.ptr.type).endswith("quant_array"):
        node.place(field)
    else:
        packer = ti.BitpackedFields(max_num_bits=32)
        packer.place(field)
        node.place(packer)
    return field


def padded_blocks():
    """Blocks of a field with another field behind each."""
    node = ti.root.dense(ti.i, 4)
    inner = node.dense(ti.i, 3)
    node.place(ti.field(ti.f64))
    return inner


def with_different_strides():
    field = ti.Vector.field(2, ti.f32)
    ti.root.dense(ti.i, 4).place(field.get_scalar_field(0))
    ti.root.dense(ti.i, 4).place(field.get_scalar_field(1), ti.field(ti.i8))
    return field


def in_two_trees():
    field = ti.Vector.field(2, ti.f32)
    ti.root.dense(ti.i, 4).place(field.get_scalar_field(0))
    builder = ti.FieldsBuilder()
    builder.dense(ti.i, 4).place(field.get_scalar_field(1))
    builder.finalize()
    return field


WITHOUT_VIEW = {
    "pointer": (lambda: placed(lambda: ti.root.pointer(ti.i, 4).dense(ti.i, 4), ti.field(ti.f32)), r"S\d+ \(pointer\)"),
    "bitmasked": (lambda: placed(lambda: ti.root.bitmasked(ti.i, 4), ti.field(ti.f32)), r"S\d+ \(bitmasked\)"),
    "dynamic": (lambda: placed(lambda: ti.root.dynamic(ti.i, 4), ti.field(ti.f32)), r"S\d+ \(dynamic\)"),
    "bit struct": (lambda: quantised(lambda: ti.root.dense(ti.i, 4)), r"S\d+ \(bit_struct\).*qi5"),
    "quant array": (
        lambda: quantised(lambda: ti.root.dense(ti.i, 4).quant_array(ti.i, 4, max_num_bits=32)),
        r"S\d+ \(quant_array\).*qi5",
    ),
    "blocked": (
        lambda: placed(lambda: dense((ti.ij, 4), (ti.ij, 4)), ti.field(ti.f32)),
        r"axis j .* S\d+ \(dense\)",
    ),
    "i.j.i": (
        lambda: placed(lambda: dense((ti.i, 4), (ti.j, 4), (ti.i, 2)), ti.field(ti.f32)),
        r"axis i .* S\d+ \(dense\)",
    ),
    "padded blocks": (lambda: placed(padded_blocks, ti.field(ti.f32)), r"axis i .* S\d+ \(dense\)"),
    "members in reverse order": (lambda: spread(ti.Vector.field(2, ti.f32), (1,), (0,)), "regular distances"),
    "members at odd distances": (
        lambda: spread(ti.Vector.field(3, ti.f32), (0,), (2,), (1,)),
        "regular distances",
    ),
    "members with different strides": (with_different_strides, r"S\d+ \(place\) and SNode S\d+ .* different ways"),
    "members in two trees": (in_two_trees, "2 SNode trees"),
}


@pytest.mark.usefixtures("room")
class TestFieldsWithoutView:
    @pytest.mark.parametrize("make, message", WITHOUT_VIEW.values(), ids=WITHOUT_VIEW)
    def test_are_refused_by_the_name_of_the_node(self, make, message):
        field = make()
        for asked in ({}, {"max_version": (1, 0)}, {"copy": False}):
            with pytest.raises(BufferError, match=message) as refusal:
                field.__dlpack__(**asked)
            assert "to_numpy()" in str(refusal.value) or "Convert" in str(refusal.value)

    def test_axis_named_twice_does_not_lead_out_of_the_memory(self):
        field = ti.field(ti.f32)
        ti.root.dense(ti.axes(0, 0), (2, 3)).place(field)
        with pytest.raises(BufferError, match="names an axis twice"):
            field.__dlpack__()

    def test_dense_fields_beside_sparse_ones_have_views(self):
        sparse, x = ti.field(ti.f32), ti.field(ti.f32)
        node = ti.root.dense(ti.i, 3)
        node.pointer(ti.j, 4).place(sparse)
        node.place(x)
        sparse[1, 2] = 1
        for i in range(3):
            x[i] = i + 1
        assert list(Strided(x).read()) == [1, 2, 3]
