"""A compiled consumer of the C exchange API takes Taichi's arrays, and has Taichi make some: consumer.c."""

import importlib.util
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
import taichi as ti

import dl_structs as dl
import helpers
from helpers import Fake, new_ndarray, numbers, set_values, values_of

pytestmark = pytest.mark.cpu_only("the consumer reads the memory by itself")

SOURCE = Path(__file__).with_name("consumer.c")
MADE = {
    "scalar ndarray": lambda: new_ndarray("f32", (3, 4)),
    "matrix ndarray": lambda: new_ndarray("f32", (3,), (2, 2)),
    "0-d ndarray": lambda: new_ndarray("f32", ()),
    "empty ndarray": lambda: new_ndarray("f32", (0, 4)),
    "transposed field": lambda: ti.field(ti.f32, (3, 4), order="ji"),
    "SOA vector field": lambda: ti.Vector.field(4, ti.f32, 3, layout=ti.Layout.SOA),
}


@pytest.fixture(scope="module", name="consumer")
def consumer_fixture(tmp_path_factory):
    compiler, include = shutil.which("cc"), sysconfig.get_path("include")
    if compiler is None or not Path(include, "Python.h").exists():
        pytest.skip("needs a C compiler and Python.h: apt-get install gcc python3-dev")
    library = tmp_path_factory.mktemp("consumer") / f"consumer{sysconfig.get_config_var('EXT_SUFFIX')}"
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-I{include}"]
    subprocess.run([compiler, *flags, str(SOURCE), "-o", str(library)], check=True)
    spec = importlib.util.spec_from_file_location("consumer", library)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_it_reads_and_writes_in_place(consumer, make):
    array = make()
    consumer.number(array, 5)
    values = array.to_numpy()
    assert values.flatten().tolist() == list(range(5, 5 + values.size))
    assert consumer.sum(array) == values.sum()


def test_it_has_taichi_make_an_array(consumer):
    nd = new_ndarray("f32", (3, 4))
    made = consumer.empty_like(nd)
    assert type(made) is ti.ScalarNdarray and made.shape == (3, 4)
    set_values(made, numbers((3, 4), "f32"))
    assert consumer.sum(made) == numbers((3, 4), "f32").sum() and consumer.sum(nd) == 0


def test_on_the_cpu_there_is_no_stream(consumer):
    assert consumer.work_stream(new_ndarray("f32", (4,))) == 0


def test_what_cannot_be_lent_is_an_error(consumer):
    read_only = ti.from_dlpack(Fake(numbers((4,), "f32"), flags=dl.FLAG_READ_ONLY, capsule="versioned"))
    with pytest.raises(BufferError, match="read-only"):
        consumer.sum(read_only)
    with pytest.raises(BufferError, match="read-only"):
        consumer.number(read_only, 2)
    assert values_of(read_only).tolist() == [1, 2, 3, 4]
    with pytest.raises(TypeError, match="32-bit floats"):
        consumer.number(new_ndarray("f64", (4,)), 2)


def test_a_loop_leaves_nothing(consumer):
    nd = new_ndarray("f32", (4,))

    def use():
        consumer.sum(nd)
        consumer.number(nd, 1)
        consumer.empty_like(nd)

    assert helpers.growth(use, 5_000) < helpers.FLAT
