"""Views that outlive their ndarray, ti.reset(), a second ti.init() and the interpreter; each in its own process.

A process must end with 0 and say nothing on stderr. A few run at a time: each takes seconds to start.
"""

import concurrent.futures
import os
import textwrap

import pytest

from helpers import assert_quiet_exit, run_python

PRELUDE = """
import gc
import torch
def ndarray(value, count=4096):
    nd = ti.ndarray(ti.i32, count)
    nd.fill(value)
    return nd
def same(view, value):
    return bool((view == value).all().item())
"""

VALUES = {
    "the ndarray goes": """
        nd = ndarray(3)
        view = torch.from_dlpack(nd)
        del nd
        gc.collect()
        others = [ndarray(9) for _ in range(16)]
        assert same(view, 3)
    """,
    "reset": """
        nd = ndarray(3)
        view = torch.from_dlpack(nd)
        ti.reset()
        assert same(view, 3)
        view += 1
        assert same(view, 4)
    """,
    "another init": """
        nd = ndarray(3)
        view = torch.from_dlpack(nd)
        helpers.init()
        others = [ndarray(9) for _ in range(16)]
        view += 1
        assert same(view, 4) and all((other.to_numpy() == 9).all() for other in others)
        try:
            nd.__dlpack__()
        except BufferError as error:
            assert "reset" in str(error), error
        else:
            sys.exit("an ndarray of an ended program was exported")
    """,
    "an init on the CPU": """
        nd = ndarray(3)
        view = torch.from_dlpack(nd)
        ti.init(arch=ti.cpu, log_level=ti.ERROR)
        host = ti.from_dlpack(torch.ones(16, dtype=torch.int32))
        view += 1
        assert same(view, 4) and host.to_numpy().sum() == 16
        helpers.init()
        assert same(view, 4) and ti.from_dlpack(view)[0] == 4
    """,
    "a capsule is consumed after reset": """
        capsule = ndarray(3).__dlpack__()
        ti.reset()
        assert same(torch.utils.dlpack.from_dlpack(capsule), 3)
    """,
    "many programs": """
        views = []
        for value in range(6):
            views.append(torch.from_dlpack(ndarray(value)))
            helpers.init()
        assert all(same(view, value) for value, view in enumerate(views))
    """,
    "a view dies after reset, on another thread": """
        import threading
        views = [torch.from_dlpack(ndarray(3)) for _ in range(8)]
        ti.reset()
        thread = threading.Thread(target=views.clear)
        thread.start()
        thread.join()
        helpers.init()
        assert (ndarray(5).to_numpy() == 5).all()
    """,
    "an import and reset": """
        theirs = torch.full((4096,), 3, dtype=torch.int32, device="cuda")
        nd = ti.from_dlpack(theirs)
        ti.reset()
        helpers.init()
        del nd
        gc.collect()
        assert same(theirs, 3)
        assert ti.from_dlpack(theirs)[4095] == 3
    """,
    "a side stream still reads at reset": """
        nd = ndarray(3, 1 << 22)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            view = torch.from_dlpack(nd)
            torch.cuda._sleep(100_000_000)
            seen = view.clone()
        del view
        helpers.init()
        others = [ndarray(9, 1 << 22) for _ in range(4)]
        stream.synchronize()
        assert same(seen, 3)
    """,
}

EXITS = {
    "a view and its ndarray": "nd = ndarray(3); view = torch.from_dlpack(nd)",
    "a view alone": "view = torch.from_dlpack(ndarray(3))",
    "a view after reset": "view = torch.from_dlpack(ndarray(3)); ti.reset()",
    "an import": "nd = ti.from_dlpack(torch.zeros(4096, device='cuda'))",
    "an import and its export": "view = torch.from_dlpack(ti.from_dlpack(torch.zeros(4096, device='cuda')))",
    "an unconsumed capsule": "nd = ndarray(3); capsule = nd.__dlpack__(max_version=(1, 0))",
    "a consumed capsule that is never deleted": "view = helpers.take(ndarray(3).__dlpack__(stream=-1))",
    "a copy on the host": "view = torch.utils.dlpack.from_dlpack(ndarray(3).__dlpack__(dl_device=(1, 0)))",
    "the array interface": "nd = ndarray(3); interface = nd.__cuda_array_interface__",
    "a cycle": "nd = ndarray(3); nd.view = torch.from_dlpack(nd); nd.self = nd",
    "a class": """
        class Holder:
            nd = ndarray(3)
            view = torch.from_dlpack(nd)
    """,
    "a side stream at work": """
        nd = ndarray(3)
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            view = torch.from_dlpack(nd)
            torch.cuda._sleep(100_000_000)
            view.add_(1)
    """,
}


# What the fast wheel can do: its core frees all memory at reset and at exit, and it warns of the views.
WITHOUT_CORE = {"the ndarray goes", "an import and reset", "an import", "a copy on the host"}
WORKERS = max(1, min((os.cpu_count() or 1) // 2, 4))


def run(code):
    """Runs a case; it says END when it came so far."""
    return run_python(PRELUDE + textwrap.dedent(code) + "\nprint('END')\n")


@pytest.fixture(name="finished", scope="module")
def finished_fixture(request, wheel):
    """A function that gives the finished process of a case. The first call starts all that will be asked for."""
    mine = [item for item in request.session.items if item.path == request.path]
    cases = {item.callspec.params["case"] for item in mine}
    if wheel == "fast":
        cases &= WITHOUT_CORE
    futures = {}
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:

        def get(case):
            if not futures:
                futures.update((case, pool.submit(run, {**VALUES, **EXITS}[case])) for case in sorted(cases))
            return futures[case].result()

        yield get


def marked(cases):
    """The cases, with a mark on those that the fast wheel cannot do."""
    mark = pytest.mark.needs_core("on CUDA views end with the program")
    return [pytest.param(case, marks=[] if case in WITHOUT_CORE else [mark]) for case in cases]


@pytest.mark.parametrize("case", marked(VALUES))
def test_views_keep_their_values(torch, finished, case):  # pylint: disable=W0613
    assert_quiet_exit(finished(case), "END")


@pytest.mark.parametrize("case", marked(EXITS))
def test_the_process_ends_quietly(torch, finished, case):  # pylint: disable=W0613
    assert_quiet_exit(finished(case), "END")
