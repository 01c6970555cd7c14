"""Random SNode trees: what Hypothesis draws and shrinks, and the fields that Taichi makes of it."""

import dataclasses
import itertools
from typing import Optional, Tuple

import taichi as ti
from hypothesis import strategies as st

from helpers import DTYPES, ti_type

# Taichi has room for 1024 nodes in a program. A tree of a plan has less than 100.
MAX_NODES = 600
AXES = 4
# Cells of a node, from the root down; and members of all fields of a tree. Compiling takes its time by the member.
MAX_CELLS = 96
MAX_MEMBERS = 6
FLOATS = ("f16", "f32", "f64")


# --- plans ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Item:
    """A field: element type, and () for a scalar, (n,) for a vector, (n, m) for a matrix."""

    dtype: str
    element: Tuple[int, ...] = ()

    @property
    def members(self):
        count = 1
        for size in self.element:
            count *= size
        return count


@dataclasses.dataclass(frozen=True)
class Struct:
    """A struct field."""

    items: Tuple[Item, ...]

    @property
    def members(self):
        return sum(item.members for item in self.items)


@dataclasses.dataclass(frozen=True)
class Cell:
    """Fields that share a cell.

    Attributes:
        order: None to place them one after the other; else the order of all their members.
        with_grad: Places the gradients of float fields behind them.
        offset: That of the fields' indices, an int for each axis there might be.
    """

    items: Tuple[object, ...]
    order: Optional[Tuple[int, ...]] = None
    with_grad: bool = False
    offset: Optional[Tuple[int, ...]] = None


@dataclasses.dataclass(frozen=True)
class Spread:
    """A field whose members lie in nodes of their own, as in an SOA layout.

    Attributes:
        levels: Of nodes, the same for each member.
        gap: A field between the first member and the others.
        twisted: The last member has its levels in reverse order.
    """

    item: Item
    levels: Tuple["Level", ...]
    gap: Optional[Item] = None
    twisted: bool = False


@dataclasses.dataclass(frozen=True)
class Packed:
    """Quantised fields in one bit struct."""

    count: int


@dataclasses.dataclass(frozen=True)
class Level:
    """A node's kind and its (axis, extent) pairs."""

    kind: str
    extents: Tuple[Tuple[int, int], ...]

    @property
    def cells(self):
        count = 1
        for _, extent in self.extents:
            count *= extent
        return count


@dataclasses.dataclass(frozen=True)
class Node:
    """A node and what is below it."""

    level: Level
    parts: Tuple[object, ...]


@dataclasses.dataclass(frozen=True)
class Tree:
    """A tree below `ti.root`, or below a FieldsBuilder of its own. With lazy_grad, all float fields have gradients."""

    parts: Tuple[object, ...]
    own_builder: bool = False
    lazy_grad: bool = False


# --- drawing them ---------------------------------------------------------------------------------

elements = st.one_of(st.just(()), st.tuples(st.integers(1, 4)), st.tuples(st.integers(1, 3), st.integers(1, 2)))


class _Drawer:
    """Draws one tree. What is simplest comes first, so that Hypothesis shrinks to it."""

    def __init__(self, draw):
        self.draw = draw
        self.members_left = MAX_MEMBERS

    def one_in(self, count):
        return self.draw(st.integers(0, count - 1)) == count - 1

    def tree(self):
        return Tree(self.parts(4, MAX_CELLS, tuple(range(AXES))), self.draw(st.booleans()), self.one_in(5))

    def parts(self, depth, room, free):
        """One or two of: fields in a cell, a field with spread members, quantised fields, a node with its own parts.

        Args:
            depth: How many nodes may follow one another.
            room: How many cells a node may have.
            free: The axes that no node above divides.
        """
        count = 2 if self.members_left > 1 and self.one_in(3) else 1
        return tuple(self.part(depth, room, free) for _ in range(count))

    def part(self, depth, room, free):
        if depth > 0 and not self.one_in(4):
            return self.node(depth, room, free)
        if self.members_left > 1 and self.one_in(3):
            return self.spread(room)
        if self.one_in(12):
            return Packed(self.draw(st.integers(1, 2)))
        return self.cell()

    def node(self, depth, room, free):
        kind = (
            self.draw(st.sampled_from(("dynamic", "dynamic", "pointer", "bitmasked"))) if self.one_in(12) else "dense"
        )
        if kind == "dynamic" and free:
            level = Level(kind, ((self.draw(st.sampled_from(free)), self.draw(st.integers(1, min(room, 5)))),))
            return Node(level, (self.cell(),))
        level = self.level("dense" if kind == "dynamic" else kind, room)
        left = tuple(axis for axis in free if axis not in dict(level.extents))
        return Node(level, self.parts(depth - 1, room // level.cells, left))

    def level(self, kind, room):
        extents = []
        for axis in self.draw(st.lists(st.integers(0, AXES - 1), min_size=1, max_size=3, unique=True)):
            extents.append((axis, self.draw(st.integers(1, min(room, 5)))))
            room //= extents[-1][1]
        return Level(kind, tuple(extents))

    def item(self, at_least=1):
        element = self.draw(elements)
        item = Item(self.draw(st.sampled_from(sorted(DTYPES))), element)
        if not at_least <= item.members <= max(self.members_left, at_least):
            item = Item(item.dtype, (at_least,) if at_least > 1 else ())
        self.members_left -= item.members
        return item

    def cell(self):
        chosen = []
        while not chosen or (self.members_left > 0 and len(chosen) < 3 and self.one_in(2)):
            chosen.append(Struct((self.item(), self.item())) if self.one_in(4) else self.item())
        order = None
        if self.one_in(4):
            order = tuple(self.draw(st.permutations(range(sum(item.members for item in chosen)))))
        offset = self.draw(st.one_of(st.none(), st.tuples(*[st.integers(-5, 5)] * AXES)))
        return Cell(tuple(chosen), order, self.one_in(5), offset)

    def spread(self, room):
        item = self.item(at_least=2)
        gap = self.item() if self.one_in(4) else None
        if self.one_in(2):
            first, second = self.draw(st.permutations(range(AXES)))[:2]
            extents = st.integers(2, 3)
            chosen = (Level("dense", ((first, self.draw(extents)),)), Level("dense", ((second, self.draw(extents)),)))
            return Spread(item, chosen, gap, twisted=self.draw(st.booleans()))
        chosen = []
        for _ in range(self.draw(st.integers(0, 2))):
            chosen.append(self.level("dense", room))
            room //= chosen[-1].cells
        return Spread(item, tuple(chosen), gap)


@st.composite
def trees(draw):
    """Plans of trees."""
    return _Drawer(draw).tree()


def is_full():
    """Whether the program should get no more trees."""
    probe = ti.FieldsBuilder()
    probe.finalize(raise_warning=False)
    return probe.ptr.id > MAX_NODES


# --- building them --------------------------------------------------------------------------------


@dataclasses.dataclass
class Built:
    """A field that Taichi made.

    Attributes:
        field: A scalar or matrix field.
        item: Its plan, None for a quantised field.
        obstacle: Why it has no view, whatever its strides: the kind of a node, or "". The innermost is named.
        offset: That of its indices.
    """

    field: object
    item: Optional[Item]
    obstacle: str
    offset: Tuple[int, ...]

    @property
    def element(self):
        return self.item.element

    def members(self):
        """A scalar field for each member, in row-major order."""
        if not self.element:
            return [self.field]
        return [
            self.field.get_scalar_field(*index) for index in itertools.product(*(range(size) for size in self.element))
        ]


class Builder:
    """Makes one tree of a plan; `built` has its fields."""

    def __init__(self, plan):
        self.built = []
        root = ti.FieldsBuilder() if plan.own_builder else ti.root
        for part in plan.parts:
            self._add(root, part, "", 0)
        if plan.lazy_grad:
            root.lazy_grad()
            self._add_grads()
        # A root that holds only quantised fields, or nothing, is a tree as well.
        self.tree = root.finalize() if plan.own_builder else ti.sync()

    def _add(self, node, part, obstacle, ndim):
        if isinstance(part, Node):
            child, below = self._descend(node, part.level, obstacle)
            for inner in part.parts:
                self._add(child, inner, below, len(child.shape))
        elif isinstance(part, Cell):
            self._add_cell(node, part, obstacle, ndim)
        elif isinstance(part, Spread):
            self._add_spread(node, part, obstacle)
        else:
            self._add_packed(node, part, ndim)

    @staticmethod
    def _descend(node, level, obstacle):
        axes, extents = zip(*level.extents)
        if level.kind == "dynamic":
            return node.dynamic(ti.axes(*axes), extents[0]), level.kind
        child = getattr(node, level.kind)(ti.axes(*axes), extents)
        return child, obstacle if level.kind == "dense" else level.kind

    def _add_cell(self, node, cell, obstacle, ndim):
        offset = cell.offset[:ndim] if cell.offset else ()
        flat = [pair for item in cell.items for pair in self._make(item)]
        self.built += [Built(field, item, obstacle, offset) for field, item in flat]
        if cell.order is None:
            node.place(*[field for field, _ in flat], offset=offset)
        else:
            members = [member for built in self.built[-len(flat) :] for member in built.members()]
            for index in cell.order:
                node.place(members[index], offset=offset)
        if cell.with_grad:
            grads = [(field.grad, item) for field, item in flat if item.dtype in FLOATS]
            node.place(*[grad for grad, _ in grads], offset=offset)
            self.built += [Built(grad, item, obstacle, offset) for grad, item in grads]

    def _add_spread(self, node, spread, obstacle):
        ((field, item),) = self._make(spread.item)
        built = Built(field, item, obstacle, ())
        members = built.members()
        for number, member in enumerate(members):
            child = node
            twist = spread.twisted and number == len(members) - 1
            for level in reversed(spread.levels) if twist else spread.levels:
                child, _ = self._descend(child, level, obstacle)
            child.place(member)
            if number == 0 and spread.gap is not None:
                self._add_cell(node, Cell((spread.gap,)), obstacle, 0)
        self.built.append(built)

    def _add_packed(self, node, packed, ndim):
        packer = ti.BitpackedFields(max_num_bits=32)
        fields = [ti.field(ti.types.quant.int(5)) for _ in range(packed.count)]
        packer.place(*fields)
        # Directly below the root there must be a node for it.
        (node if ndim else node.dense(ti.i, 2)).place(packer)
        self.built += [Built(field, None, "bit_struct", ()) for field in fields]

    def _add_grads(self):
        have = {id(built.field) for built in self.built}
        for built in list(self.built):
            grad = built.field.grad
            if built.item is not None and grad is not None and id(grad) not in have:
                self.built.append(Built(grad, built.item, built.obstacle, ()))

    @staticmethod
    def _make(item):
        """Pairs of a field and its plan."""
        if isinstance(item, Struct):
            names = [f"m{number}" for number in range(len(item.items))]
            struct = ti.Struct.field(dict(zip(names, map(_type_of, item.items))))
            return [(struct.get_member_field(name), inner) for name, inner in zip(names, item.items)]
        if not item.element:
            return [(ti.field(ti_type(item.dtype)), item)]
        return [(_type_of(item).field(), item)]


def _type_of(item):
    dtype = ti_type(item.dtype)
    if not item.element:
        return dtype
    if len(item.element) == 1:
        return ti.types.vector(item.element[0], dtype)
    return ti.types.matrix(*item.element, dtype)
