"""What a user can still hold when a program has ended, and uses of it.

    python stale_uses.py            all uses
    python stale_uses.py NAME,END   one again; END is reset or init

Each use runs in a process of its own. It must work before the program ends. After `ti.reset()`, or after another
`ti.init()` with ndarrays and fields of its own, it must raise an error that names `ti.init`, and leave the new ones as
they are. The process must end with exit code 0 and an empty stderr.
"""

import json
import os
import sys
import tempfile

import run_orders
from run_orders import helpers, np, ti

from taichi.lang import impl

ENDS = ("reset", "init")
COUNT = 4096


@ti.kernel
def fill_ndarray(x: ti.types.ndarray()):
    for I in ti.grouped(x):
        x[I] = 1


@ti.kernel
def fill_field(x: ti.template()):
    for I in ti.grouped(x):
        x[I] = 1


def field():
    x = ti.field(ti.f32, 4)
    x[0] = 1
    return x


def vector_field():
    x = ti.Vector.field(3, ti.f32, 4)
    x[0] = [1, 2, 3]
    return x


def matrix_field():
    x = ti.Matrix.field(2, 2, ti.f32, 4)
    x[0] = [[1, 2], [3, 4]]
    return x


def struct_field():
    x = ti.types.struct(a=ti.f32, b=ti.types.vector(3, ti.f32)).field(shape=4)
    x[0].a = 1
    return x


def with_grad(x):
    return x, x.grad


def first(x):
    """An element that was looked at, as a user keeps it."""
    element = x[0]
    assert element is not None
    return element


def imported(element=()):
    dtype = helpers.element_type("f32", element) if element else None
    return ti.from_dlpack(helpers.Fake(np.zeros((4,) + element, np.float32)), dtype=dtype)


def ndarray_graph():
    argument = ti.graph.Arg(ti.graph.ArgKind.NDARRAY, "x", ti.f32, ndim=1)
    builder = ti.graph.GraphBuilder()

    @ti.kernel
    def add(x: ti.types.ndarray(dtype=ti.f32, ndim=1)):
        for i in x:
            x[i] += 1

    builder.dispatch(add, argument)
    return builder


def sequential():
    builder = ti.graph.GraphBuilder()
    return builder, builder.create_sequential()


def run_graph(graph):
    """With an ndarray of the program that runs, where one does."""
    graph.run({"x": ti.ndarray(ti.f32, 4)} if impl.get_runtime().prog else {})


def kernel_on_global_field():
    x = ti.field(ti.f32, 4)

    @ti.kernel
    def add():
        for i in x:
            x[i] += 1

    return add


def kernel_on_global_element():
    x = ti.Matrix.field(2, 2, ti.f32, 4)

    @ti.kernel
    def read() -> ti.f32:
        return x[1][0, 0]

    return read


def kernel_with_grad():
    x = ti.field(ti.f32, (), needs_grad=True)

    @ti.kernel
    def square():
        x[None] = x[None] * 2

    return square


@ti.data_oriented
class Solver:
    def __init__(self):
        self.x = ti.field(ti.f32, 4)

    @ti.kernel
    def step(self):
        for i in self.x:
            self.x[i] += 1


def pointer_node():
    x = ti.field(ti.f32)
    node = ti.root.pointer(ti.i, 4)
    node.place(x)
    x[0] = 1
    return node


def built_fields():
    x = ti.field(ti.f32)
    builder = ti.FieldsBuilder()
    builder.pointer(ti.i, 4).place(x)
    builder.finalize()
    x[0] = 1
    return builder


def pack_of_ndarray():
    pack = ti.types.argpack(x=ti.types.ndarray(dtype=ti.f32, ndim=1))

    @ti.kernel
    def read(p: pack) -> ti.f32:
        return p.x[0]

    return pack(x=ti.ndarray(ti.f32, 4)), read


def pack_of_scalar():
    return ti.types.argpack(a=ti.f32)(a=1)


def sparse_builder():
    builder = ti.linalg.SparseMatrixBuilder(4, 4, max_num_triplets=16)

    @ti.kernel
    def diagonal(b: ti.types.sparse_matrix_builder()):
        for i in range(4):
            b[i, i] += 1.0

    return builder, diagonal


def set_item(x, index, value):
    x[index] = value


# What makes the thing that is held, and what is done with it, while its program runs and afterwards.
USES = {
    "ndarray read": (lambda: ti.ndarray(ti.f32, 4), lambda x: x[0]),
    "ndarray write": (lambda: ti.ndarray(ti.f32, 4), lambda x: set_item(x, 0, 1)),
    "ndarray fill": (lambda: ti.ndarray(ti.f32, 4), lambda x: x.fill(1)),
    "ndarray in a kernel": (lambda: ti.ndarray(ti.f32, 4), fill_ndarray),
    "ndarray accessor": (lambda: (ti.ndarray(ti.f32, 4),), lambda held: run_accessor(held[0])),
    "ndarray export": (lambda: ti.ndarray(ti.f32, 4), lambda x: x.__dlpack__()),
    "gradient read": (lambda: with_grad(ti.ndarray(ti.f32, 4, needs_grad=True)), lambda held: held[1][0]),
    "ndarray with gradient in a kernel": (lambda: ti.ndarray(ti.f32, 4, needs_grad=True), fill_ndarray),
    "vector element read": (lambda: first(ti.Vector.ndarray(3, ti.f32, 4)), lambda e: e[0] + 1),
    "vector element write": (lambda: first(ti.Vector.ndarray(3, ti.f32, 4)), lambda e: set_item(e, 0, 1)),
    "matrix element read": (lambda: first(ti.Matrix.ndarray(2, 2, ti.f32, 4)), lambda e: e[1, 1] + 1),
    "imported ndarray read": (imported, lambda x: x[0]),
    "imported ndarray in a kernel": (imported, fill_ndarray),
    "imported vector element read": (lambda: first(imported((3,))), lambda e: e[0] + 1),
    "graph run": (lambda: ndarray_graph().compile(), run_graph),
    "graph compile": (ndarray_graph, lambda builder: builder.compile()),
    "graph sequence append": (sequential, lambda held: held[0].append(held[1])),
    "field read": (field, lambda x: x[0]),
    "field write": (field, lambda x: set_item(x, 0, 1)),
    "field read for the first time": (lambda: (ti.field(ti.f32, 4),), lambda held: held[0][0]),
    "field without dimensions": (lambda: ti.field(ti.f32, ()), lambda x: x[None]),
    "field shape": (field, lambda x: x.shape),
    "field dtype": (field, lambda x: x.dtype),
    "field parent": (field, lambda x: x.parent()),
    "field fill": (field, lambda x: x.fill(1)),
    "field to_numpy": (field, lambda x: x.to_numpy()),
    "field from_numpy": (field, lambda x: x.from_numpy(np.zeros(4, np.float32))),
    "field str": (field, str),
    "field gradient read": (lambda: with_grad(ti.field(ti.f32, 4, needs_grad=True)), lambda held: held[1][0]),
    "field in a kernel": (field, fill_field),
    "vector field read": (vector_field, lambda x: x[0]),
    "vector field write": (vector_field, lambda x: set_item(x, 0, [1, 2, 3])),
    "vector field to_numpy": (vector_field, lambda x: x.to_numpy()),
    "vector field element read": (lambda: first(vector_field()), lambda e: e[0] + 1),
    "vector field element write": (lambda: first(vector_field()), lambda e: set_item(e, 0, 1)),
    "vector field member read": (lambda: vector_field().get_scalar_field(0), lambda x: x[0]),
    "matrix field element read": (lambda: first(matrix_field()), lambda e: e[0, 0] + 1),
    "struct field read": (struct_field, lambda x: x[0].a),
    "struct field element read": (lambda: first(struct_field()), lambda e: e.a + 1),
    "struct field to_numpy": (struct_field, lambda x: x.to_numpy()),
    "kernel on a field": (kernel_on_global_field, lambda kernel: kernel()),
    "kernel on an element of a field": (kernel_on_global_element, lambda kernel: kernel()),
    "kernel gradient": (kernel_with_grad, lambda kernel: kernel.grad()),
    "kernel of a class": (Solver, lambda solver: solver.step()),
    "node shape": (pointer_node, lambda node: node.shape),
    "node parent": (pointer_node, lambda node: node.parent()),
    "node deactivate": (pointer_node, lambda node: node.deactivate_all()),
    "node str": (pointer_node, str),
    "fields builder deactivate": (built_fields, lambda builder: builder.deactivate_all()),
    "argument pack in a kernel": (pack_of_ndarray, lambda held: held[1](held[0])),
    "argument pack write": (pack_of_scalar, lambda pack: set_item(pack, "a", 2)),
    "sparse matrix builder in a kernel": (sparse_builder, lambda held: held[1](held[0])),
}


def run_accessor(x):
    """The functions that read and write an ndarray, kept since the first read."""
    if "kept" not in run_accessor.__dict__:
        _ = x[0]
        run_accessor.kept = x.host_accessor
    run_accessor.kept.getter(0)


class Strangers:
    """Arrays of a new program, full of a number."""

    def __init__(self):
        self.arrays = [ti.ndarray(ti.i32, COUNT), ti.Vector.ndarray(3, ti.i32, COUNT), ti.field(ti.i32, COUNT)]
        for number, x in enumerate(self.arrays):
            x.fill(number + 40)

    def check(self):
        for number, x in enumerate(self.arrays):
            assert (x.to_numpy() == number + 40).all(), "memory of the new program was written to"


def take(name, end):
    """Lives through one use."""
    helpers.init()
    make, use = USES[name]
    held = make()
    use(held)
    ti.reset()
    strangers = None
    if end == "init":
        helpers.init()
        strangers = Strangers()
    kind, text = run_orders.error_of(lambda: use(held))
    assert "ti.init" in text, f"not clear: {kind.__name__}: {text}"
    if strangers:
        strangers.check()
    del held, make
    if strangers:
        strangers.check()


def live(cases):
    """Forks a child for each case. Returns, in a child, its case; else None."""
    for case in cases:
        with tempfile.TemporaryFile() as file:
            errors = os.dup(file.fileno())
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            run_orders.become_child(errors)
            return case
        wrong = run_orders.verdict(case, pid, errors)
        print(json.dumps({"case": case, "wrong": wrong}), flush=True)
    return None


if __name__ == "__main__":
    CASES = [word.split(",") for word in sys.argv[1:]] or [[name, end] for name in USES for end in ENDS]
    MINE = live(CASES)
    if MINE is not None:
        take(*MINE)
