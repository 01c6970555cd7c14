"""The simulated driver's contexts, devices, log, kernels and end, by its calls alone: no Taichi here."""

import ctypes
import os
import re
import threading

import pytest

import processes
import sim
from plain_calls import (
    allocate_pinned,
    allocate,
    allocate_async,
    attribute,
    COUNT,
    DEVICE_ORDINAL,
    fill,
    live,
    make_event,
    NBYTES,
    primary_context,
    read_back,
    record,
    refuses,
)

pytestmark = pytest.mark.usefixtures("context")


# --- contexts and devices -------------------------------------------------------------------------


def test_memory_belongs_to_a_device(context):
    sim.cu("cuCtxSetCurrent", primary_context(1))
    ptr, pool = allocate(), allocate_async()
    assert attribute(DEVICE_ORDINAL, ptr) == attribute(DEVICE_ORDINAL, pool) == 1
    sim.cu("cuCtxSetCurrent", context)
    for other in (ptr, pool):
        with sim.expect_fault("WRONG_DEVICE"):
            fill(other, 1)
    with sim.expect_fault("WRONG_DEVICE"):
        sim.cu("cuMemFreeAsync", pool, sim.NULL)
    with sim.expect_fault("WRONG_DEVICE"):
        sim.cu("cuMemFree_v2", ptr)


def test_copies_cross_devices(context):
    here = allocate()
    sim.cu("cuCtxSetCurrent", primary_context(1))
    there = allocate()
    fill(there, 5)
    sim.cu("cuCtxSynchronize")
    sim.cu("cuCtxSetCurrent", context)
    sim.cu("cuMemcpyDtoD_v2", here, there, NBYTES)
    assert read_back(here) == [5] * COUNT


def test_plain_memory_belongs_to_a_context(context):
    ptr = allocate()
    other = ctypes.c_void_p()
    sim.cu("cuCtxCreate_v2", ctypes.byref(other), 0, 0)
    with sim.expect_fault("WRONG_CONTEXT"):
        fill(ptr, 1)
    own = allocate()
    sim.cu("cuCtxDestroy_v2", other)
    assert own not in live()
    sim.cu("cuCtxSetCurrent", context)


def test_a_thread_begins_without_a_context():
    found = []

    def run():
        device = ctypes.c_int()
        found.append(sim.driver().cuCtxGetDevice(ctypes.byref(device)))
        found.append(sim.driver().cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(4)))

    with sim.expect_fault("NO_CONTEXT"):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert found == [sim.INVALID_CONTEXT] * 2


def test_contexts_are_stacked(context):
    other, got = primary_context(1), ctypes.c_void_p()
    device = ctypes.c_int()
    sim.cu("cuCtxPushCurrent_v2", other)
    sim.cu("cuCtxGetDevice", ctypes.byref(device))
    assert device.value == 1
    sim.cu("cuCtxPopCurrent_v2", ctypes.byref(got))
    assert got.value == other
    sim.cu("cuCtxGetCurrent", ctypes.byref(got))
    assert got.value == context


def test_a_primary_context_dies_with_its_last_release():
    code = """
    sim.cu("cuInit", 0)
    context, ptr = ctypes.c_void_p(), ctypes.c_uint64()
    for _ in range(2):
        sim.cu("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    sim.cu("cuCtxSetCurrent", context)
    sim.cu("cuMemAlloc_v2", ctypes.byref(ptr), 64)
    sim.cu("cuDevicePrimaryCtxRelease_v2", 0)
    assert len(sim.live_allocations()) == 1
    sim.cu("cuDevicePrimaryCtxRelease_v2", 0)
    assert not sim.live_allocations()
    with sim.expect_fault("STALE_HANDLE"):
        assert sim.driver().cuCtxSynchronize() == sim.INVALID_CONTEXT
    """
    processes.run_python(code).check()


@pytest.mark.parametrize(
    "visible, names",
    [
        ("0,1,2", [0, 1, 2]),
        ("2,0", [2, 0]),
        ("1", [1]),
        ("1,7,0", [1]),
        ("1,1", []),
        ("", []),
        ("none", []),
    ],
)
def test_visible_devices(visible, names):
    code = """
    code = sim.driver().cuInit(0)
    count, name = ctypes.c_int(), ctypes.create_string_buffer(64)
    if code == sim.SUCCESS:
        sim.cu("cuDeviceGetCount", ctypes.byref(count))
    for device in range(count.value):
        sim.cu("cuDeviceGetName", name, 64, device)
        print(name.value.decode())
    assert (code == sim.NO_DEVICE) == (count.value == 0)
    """
    done = processes.run_python(code, CUDA_SIM_DEVICES="3", CUDA_VISIBLE_DEVICES=visible).check()
    assert done.output.splitlines() == [f"Simulated GPU {number}" for number in names]


def test_the_machine_is_described_by_the_environment():
    code = """
    value = ctypes.c_int()
    assert sim.driver().cuDeviceGetCount(ctypes.byref(value)) == sim.NOT_INITIALIZED
    sim.cu("cuInit", 0)
    sim.cu("cuDriverGetVersion", ctypes.byref(value))
    print(value.value)
    for attribute in (75, 76, 115):
        sim.cu("cuDeviceGetAttribute", ctypes.byref(value), attribute, 0)
        print(value.value)
    context = ctypes.c_void_p()
    sim.cu("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    sim.cu("cuCtxSetCurrent", context)
    print(sim.driver().cuMemAllocAsync(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(4), None))
    """
    done = processes.run_python(
        code, CUDA_SIM_DRIVER_VERSION="11010", CUDA_SIM_COMPUTE_CAPABILITY="86", CUDA_SIM_MEMORY_POOLS="0"
    ).check()
    assert done.output.split() == ["11010", "8", "6", "0", str(sim.NOT_SUPPORTED)]


def test_an_older_driver_lacks_entry_points():
    code = """
    for name in ("cuEventQuery", "cuStreamWaitEvent"):
        assert not hasattr(sim.driver(), name), name
    sim.cu("cuInit", 0)
    assert hasattr(sim.driver(), "cuEventRecord")
    """
    processes.run_python(code, hide=("cuEventQuery", "cuStreamWaitEvent")).check()


def test_the_driver_is_found_by_the_names_that_programs_use():
    library = ctypes.CDLL("libcuda.so")
    sim.clear_log()
    library.cuDriverGetVersion(ctypes.byref(ctypes.c_int()))
    assert sim.call_names() == ["cuDriverGetVersion"]


def test_every_entry_point_that_taichi_loads_is_there():
    here = os.path.dirname(os.path.abspath(__file__))
    header = os.path.join(here, "../../taichi/taichi/rhi/cuda/cuda_driver_functions.inc.h")
    if not os.path.exists(header):
        pytest.skip("the source of Taichi is not here: git submodule update --init taichi")
    with open(header, encoding="utf-8") as file:
        names = re.findall(r"PER_CUDA_FUNCTION\(\s*\w+,\s*(\w+)", file.read())
    assert len(names) > 40
    missing = [name for name in names if not hasattr(sim.driver(), name)]
    assert not missing


def test_a_stream_tells_what_it_is(context):
    owner, flags = ctypes.c_void_p(), ctypes.c_uint()
    for wanted in (0, 1):
        stream = ctypes.c_void_p()
        sim.cu("cuStreamCreate", ctypes.byref(stream), wanted)
        sim.cu("cuStreamGetFlags", stream, ctypes.byref(flags))
        sim.cu("cuStreamGetCtx", stream, ctypes.byref(owner))
        assert (flags.value, owner.value) == (wanted, context)


def test_pinned_memory_has_one_address():
    ptr, device_ptr = allocate_pinned(), ctypes.c_uint64()
    sim.cu("cuMemHostGetDevicePointer_v2", ctypes.byref(device_ptr), ptr, 0)
    assert device_ptr.value == ptr
    fill(ptr, 3)
    assert sim.unpack(ctypes.string_at(ptr, NBYTES)) == [3] * COUNT


def test_errors_have_names_and_texts():
    name, text = ctypes.c_char_p(), ctypes.c_char_p()
    sim.cu("cuGetErrorName", sim.NOT_READY, ctypes.byref(name))
    sim.cu("cuGetErrorString", sim.NOT_READY, ctypes.byref(text))
    assert (name.value, text.value) == (b"CUDA_ERROR_NOT_READY", b"device not ready")
    assert refuses(sim.INVALID_VALUE, "cuGetErrorName", 12345, ctypes.byref(name))


# --- log and injections ---------------------------------------------------------------------------


def test_the_log_tells_each_call():
    ptr, event = allocate(), make_event()
    sim.clear_log()
    fill(ptr, 5)
    record(event, sim.PER_THREAD)
    first, second = sim.calls()
    assert (first.name, first.ptr, first.value, first.size) == ("cuMemsetD32_v2", ptr, 5, COUNT)
    assert (second.name, second.event, second.stream) == ("cuEventRecord", event, 2)
    assert second.sequence == first.sequence + 1
    assert first.thread == threading.get_native_id()
    assert (first.result, first.blocking) == (sim.SUCCESS, False)


def test_an_injected_error_hits_the_call_and_keeps_it_from_its_effect():
    ptr = allocate()
    fill(ptr, 1)
    sim.inject("cuMemsetD32_v2", sim.ILLEGAL_ADDRESS, nth=2)
    fill(ptr, 2)
    assert refuses(sim.ILLEGAL_ADDRESS, "cuMemsetD32_v2", ptr, 3, COUNT)
    assert sim.calls()[-1].result == sim.ILLEGAL_ADDRESS
    assert sim.values(ptr, 1) == [2]
    fill(ptr, 4)


def test_an_injected_error_can_hit_every_call():
    sim.inject("cuCtxSynchronize", sim.UNKNOWN, count=None)
    for _ in range(3):
        assert refuses(sim.UNKNOWN, "cuCtxSynchronize")
    sim.clear_injections()
    sim.cu("cuCtxSynchronize")


# --- kernels --------------------------------------------------------------------------------------


def function(name, ptx):
    module, found = ctypes.c_void_p(), ctypes.c_void_p()
    sim.cu("cuModuleLoadDataEx", ctypes.byref(module), ptx, 0, None, None)
    sim.cu("cuModuleGetFunction", ctypes.byref(found), module, name)
    return found


def launch(name, arguments=()):
    handle = function(name, b".visible .entry " + name + b"(\n")
    pointers = (ctypes.c_void_p * max(len(arguments), 1))(*[ctypes.addressof(value) for value in arguments])
    sim.cu("cuLaunchKernel", handle, 2, 1, 1, 32, 1, 1, 0, sim.NULL, pointers, None)


def test_a_launch_is_logged_and_does_nothing():
    launch(b"some_kernel")
    (call,) = sim.calls("cuLaunchKernel")
    assert (call.kernel, call.grid, call.block, call.stream) == ("some_kernel", 2, 32, sim.NULL)


def test_a_module_has_the_kernels_of_its_image():
    with pytest.raises(sim.DriverError) as caught:
        function(b"absent", b".entry present(")
    assert caught.value.code == sim.NOT_FOUND


def test_a_launch_can_stand_for_a_kernel():
    ptr = allocate()
    sim.emulate("add_one", "add", ptr, COUNT, 1)
    sim.emulate("fill", "fill", ptr, COUNT, 2.5, "f32")
    sim.order("late")
    launch(b"fill_kernel_0")
    sim.cu("cuCtxSynchronize")
    assert sim.values(ptr, COUNT, "f32") == [2.5] * COUNT
    fill(ptr, 5)
    launch(b"add_one_kernel_0")
    assert read_back(ptr) == [6] * COUNT
    sim.clear_emulations()
    launch(b"add_one_kernel_0")
    assert read_back(ptr) == [6] * COUNT


def test_a_stand_in_is_checked_like_any_access():
    ptr = allocate()
    sim.emulate("kernel", "fill", ptr, COUNT + 1, 1)
    with sim.expect_fault("OUT_OF_BOUNDS"), pytest.raises(sim.DriverError):
        launch(b"a_kernel")


def test_the_runtime_of_taichi_allocates_from_its_block():
    block, result = allocate(1 << 16), allocate(8)
    runtime = ctypes.c_uint64(1)
    launch(b"runtime_initialize_memory", (runtime, ctypes.c_uint64(1 << 16), ctypes.c_uint64(block)))
    got = []
    for _ in range(2):
        size, alignment = ctypes.c_uint64(5000), ctypes.c_uint64(4096)
        launch(b"runtime_memory_allocate_aligned", (runtime, size, alignment, ctypes.c_uint64(result)))
        got.append(int.from_bytes(sim.read(result, 8), "little"))
    assert all(ptr % 4096 == 0 and block <= ptr <= block + (1 << 16) - 5000 for ptr in got)
    assert got[1] - got[0] >= 5000


# --- the end of a process -------------------------------------------------------------------------

BEGIN = """
sim.cu("cuInit", 0)
context, ptr = ctypes.c_void_p(), ctypes.c_uint64()
sim.cu("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
sim.cu("cuCtxSetCurrent", context)
sim.cu("cuMemAlloc_v2", ctypes.byref(ptr), 64)
"""


def test_leaks_and_faults_are_reported_at_exit():
    done = processes.run_python(BEGIN)
    assert [(row["kind"], row["size"]) for row in done.check().live()] == [("device", 64)]
    done = processes.run_python(BEGIN + "sim.driver().cuMemsetD8_v2(ptr, 0, ctypes.c_size_t(65))")
    assert "OUT_OF_BOUNDS" in done.errors
    assert [fault["kind"] for fault in done.report["faults"]] == ["OUT_OF_BOUNDS"]


def test_after_the_end_every_call_fails():
    code = BEGIN + "sim.leave_process()\nassert sim.driver().cuMemFree_v2(ptr) == sim.DEINITIALIZED"
    processes.run_python(code).check()
