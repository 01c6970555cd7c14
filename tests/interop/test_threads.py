"""Deleters on other threads and at interpreter exit (contract section 1, row "deleter")."""

import os
import subprocess
import sys
import textwrap
import threading

import pytest
import taichi as ti

import helpers
from helpers import Fake, assert_quiet_exit, numbers, run_python, set_values, take
from suite import WHEEL_FAST, wheel_kind

KINDS = [{}, {"max_version": (1, 0)}]


def run_file(path, code):
    """As `run_python`, from a file: kernels need their source. Taichi is not there yet, but `helpers` can be imported."""
    here = os.path.dirname(os.path.abspath(__file__))
    path.write_text(f"import sys\nsys.path.insert(0, {here!r})\n" + textwrap.dedent(code), encoding="utf-8")
    return subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("asked", KINDS, ids=["legacy", "versioned"])
class TestForeignThread:
    def test_last_reference_to_an_own_array(self, asked):
        nd = ti.ndarray(ti.f32, (1024,))
        view = take(nd.__dlpack__(**asked))
        del nd
        helpers.collect()
        view.delete_on_foreign_thread()
        other = ti.ndarray(ti.f32, (1024,))
        other.fill(1)
        assert other[1023] == 1

    def test_last_reference_to_an_import(self, asked):
        fake = Fake(numbers((16,), "f32"))
        view = take(ti.from_dlpack(fake).__dlpack__(**asked))
        helpers.collect()
        view.delete_on_foreign_thread()
        helpers.collect()
        assert (fake.made, fake.deleted) == (1, 1)

    def test_last_reference_to_a_copy(self, asked):
        take(ti.ndarray(ti.f32, (1024,)).__dlpack__(copy=True, **asked)).delete_on_foreign_thread()

    def test_memory_is_freed(self, asked):
        def step():
            take(ti.ndarray(ti.f32, (1 << 20,)).__dlpack__(**asked)).delete_on_foreign_thread()

        assert helpers.growth(step, 50) < 16 << 20  # of 200 MiB


@pytest.mark.parametrize("asked", KINDS, ids=["legacy", "versioned"])
class TestManyThreads:
    def test_exports_dropped_on_python_threads(self, asked):
        fake = Fake(numbers((16,), "f32"))
        nd = ti.from_dlpack(fake)
        views = [take(nd.__dlpack__(**asked)) for _ in range(400)]
        del nd
        helpers.collect()
        self.run_in_threads([views[i::4] for i in range(4)], lambda part: [view.delete() for view in part])
        helpers.collect()
        assert (fake.made, fake.deleted) == (1, 1)

    def test_own_arrays_dropped_while_others_are_made(self, asked):
        views = []
        for _ in range(200):
            views.append(take(ti.ndarray(ti.f32, (256,)).__dlpack__(**asked)))
        dropper = threading.Thread(target=lambda: [view.delete() for view in views])
        dropper.start()
        kept = []
        for i in range(200):
            nd = ti.ndarray(ti.f32, (256,))
            set_values(nd, numbers((256,), "f32") * 0 + i)
            kept.append(nd)
        dropper.join()
        assert all(nd[255] == i for i, nd in enumerate(kept))

    @staticmethod
    def run_in_threads(parts, work):
        failures = []

        def guarded(part):
            try:
                work(part)
            except BaseException as error:  # pylint: disable=W0718
                failures.append(error)

        threads = [threading.Thread(target=guarded, args=(part,)) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures


@pytest.mark.cpu_only("these consumers are NumPy's")
class TestExportsAtOnce:
    # Each array is exported on two threads at once for the first time. Of the views one is kept, and is read when its
    # array is gone. A process of its own, as a fault ends it.
    CODE = """
        import sys, threading
        sys.setswitchinterval(1e-5)
        for number in range({rounds}):
            {make}
            stop = threading.Event()
            def view_all(array=array):
                while not stop.is_set():
                    np.from_dlpack(array)[0]
            threads = [threading.Thread(target=view_all) for _ in range(2)]
            for thread in threads:
                thread.start()
            view = np.from_dlpack(array)
            stop.set()
            for thread in threads:
                thread.join()
            del array, view_all, threads, thread
            {end}
            assert (view == 3).all(), number
        print("END")
    """

    def test_of_an_ndarray(self):
        make = "array = ti.ndarray(ti.f32, 300_000); array.fill(3)"
        assert_quiet_exit(run_python(self.CODE.format(rounds=200, make=make, end="")), "END")

    def test_of_a_field(self):
        make = "array = ti.field(ti.f32, 300_000); array.fill(3)"
        if wheel_kind() == WHEEL_FAST:
            # Its first export compiles a kernel. A tree that was there when another thread compiled one cannot be
            # destroyed by the released core, and its views end with the program (README).
            make += "; np.from_dlpack(array)"
        assert_quiet_exit(run_python(self.CODE.format(rounds=12, make=make, end="helpers.init()")), "END")


@pytest.mark.cpu_only("these consumers are NumPy's")
class TestInterrupt:
    def test_of_a_reset_leaves_every_view_valid(self):
        # At many moments, in and before the reset.
        code = """
            import signal
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            interrupted = 0
            for delay in np.linspace(0.0005, 0.02, 24):
                arrays = [ti.ndarray(ti.f32, 1024) for _ in range(300)]
                for number, array in enumerate(arrays):
                    array.fill(number)
                views = [np.from_dlpack(array) for array in arrays]
                while True:
                    try:
                        signal.setitimer(signal.ITIMER_REAL, delay)
                        ti.reset()
                        signal.setitimer(signal.ITIMER_REAL, 0)
                        break
                    except KeyboardInterrupt:
                        interrupted += 1
                        delay += 0.003
                helpers.init()
                others = [ti.ndarray(ti.f32, 1024) for _ in range(300)]
                for other in others:
                    other.fill(-1)
                assert all((view == number).all() for number, view in enumerate(views)), delay
            assert interrupted > 3, interrupted
            print("END")
        """
        assert_quiet_exit(run_python(code), "END")


class TestInterpreterExit:
    """A process that ends with live exports and imports ends with 0 and says nothing on stderr."""

    CASES = {
        "module global": "nd = ti.ndarray(ti.f32, 4); view = np.asarray(nd); capsule = nd.__dlpack__()",
        "class attribute": """
            class Holder:
                nd = ti.ndarray(ti.f32, 4)
                capsule = nd.__dlpack__()
                versioned = nd.__dlpack__(max_version=(1, 0))
                consumer = np.from_dlpack(nd)
        """,
        "consumer only": "view = np.from_dlpack(ti.ndarray(ti.f32, 4))",
        "import only": "array = np.zeros(4, np.float32); nd = ti.from_dlpack(array); del array",
        "import and its export": """
            nd = ti.from_dlpack(np.zeros(4, np.float32))
            view = np.from_dlpack(nd)
        """,
        "cycle": """
            nd = ti.ndarray(ti.f32, 4)
            nd.view = np.from_dlpack(nd)
            nd.self = nd
        """,
        "consumed and never deleted": "view = helpers.take(ti.ndarray(ti.f32, 4).__dlpack__())",
        "elements": """
            vectors = ti.Vector.ndarray(3, ti.f32, 4)
            view = np.from_dlpack(vectors)
            matrices = ti.from_dlpack(np.zeros((4, 2, 2), np.float32), dtype=ti.types.matrix(2, 2, ti.f32))
        """,
        "held by a builtin": """
            import builtins
            builtins.held = ti.ndarray(ti.f32, 4)
            builtins.view = np.from_dlpack(builtins.held)
        """,
        "held by a running daemon thread": """
            import threading, time
            nd = ti.ndarray(ti.f32, 4)
            def hold(view):
                while True:
                    time.sleep(0.01)
                    view[0]
            threading.Thread(target=hold, args=(np.from_dlpack(nd),), daemon=True).start()
        """,
        "dropped by atexit": """
            import atexit
            held = [np.from_dlpack(ti.ndarray(ti.f32, 4)), ti.from_dlpack(np.zeros(4, np.float32))]
            atexit.register(held.clear)
        """,
    }

    @pytest.mark.cpu_only("these consumers are NumPy's")
    @pytest.mark.parametrize("case", CASES)
    def test_is_quiet(self, case):
        assert_quiet_exit(run_python(textwrap.dedent(self.CASES[case]) + "\nprint('END')\n"), "END")

    def test_deleter_called_after_the_interpreter_is_gone(self):
        # A destructor of a C library runs after Py_Finalize: that is when libc's atexit handlers do.
        code = """
            import ctypes
            import dl_structs
            fake = helpers.Fake(np.zeros(4, np.float32), null_deleter=True)
            views = [helpers.take(nd.__dlpack__()) for nd in (ti.ndarray(ti.f32, 4), ti.from_dlpack(fake))]
            libc = ctypes.CDLL(None)
            for view in views:
                # int __cxa_atexit(void (*f)(void *), void *arg, void *dso)
                assert libc.__cxa_atexit(ctypes.c_void_p(view.deleter), ctypes.c_void_p(view.address), None) == 0
            print("END")
        """
        assert_quiet_exit(run_python(code), "END")

    @pytest.mark.cpu_only("the program runs on the CPU")
    def test_of_a_program_that_imports_torch_first(self, torch):  # pylint: disable=unused-argument
        # The order of the imports is that in which modules go. The names of this one outlive Taichi's.
        code = """
            import torch
            import taichi as ti
            ti.init(arch=ti.cpu, log_level=ti.ERROR)
            nd = ti.ndarray(ti.f32, 4)
            imported = ti.from_dlpack(torch.zeros(4))
            nd.__dlpack__()
            use = lambda: (nd, imported)
            print("END")
        """
        assert_quiet_exit(run_python(code, init_first=False), "END")

    @pytest.mark.cpu_only("the program runs on the CPU")
    @pytest.mark.parametrize("use", ["nd[1]", "f[1]", "k(nd)", "kf(f)", "f.to_numpy()", "np.from_dlpack(nd)[1]"])
    def test_arrays_with_views_can_be_used_by_exit_handlers(self, use, tmp_path):
        # Handlers run last in, first out: this one after those of whatever Taichi imports.
        code = f"""
            import atexit
            atexit.register(lambda: print({use}, nd[1], float(view[1]), "END"))
            import helpers
            import numpy as np
            import taichi as ti
            helpers.init()
            nd, f = ti.ndarray(ti.f32, 1024), ti.field(ti.f32, 1024)
            @ti.kernel
            def k(x: ti.types.ndarray()):
                for i in x:
                    x[i] += 1
            @ti.kernel
            def kf(x: ti.template()):
                for i in x:
                    x[i] += 1
            k(nd)
            kf(f)
            view, other = np.from_dlpack(nd), np.from_dlpack(f)
        """
        result = run_file(tmp_path / "program.py", code)
        assert_quiet_exit(result, "2.0 2.0 END" if use == "k(nd)" else "1.0 1.0 END")

    @pytest.mark.cpu_only("the program runs on the CPU")
    def test_compiled_kernels_are_kept_for_the_next_process(self, tmp_path):
        code = f"""
            import os
            os.environ["TI_OFFLINE_CACHE"], os.environ["TI_OFFLINE_CACHE_FILE_PATH"] = "1", {str(tmp_path / "cache")!r}
            import numpy as np
            import taichi as ti
            ti.init(arch=ti.cpu, log_level=ti.ERROR)
            nd = ti.ndarray(ti.f32, 4)
            @ti.kernel
            def k(x: ti.types.ndarray()):
                for i in x:
                    x[i] += 1
            k(nd)
            view = np.from_dlpack(nd)
            print("END")
        """
        assert_quiet_exit(run_file(tmp_path / "program.py", code), "END")
        assert list((tmp_path / "cache").rglob("*.tic"))

    def test_torch_consumers_at_exit(self, torch):  # pylint: disable=unused-argument
        code = """
            import torch
            nd = ti.ndarray(ti.f32, 4)
            view = torch.from_dlpack(nd)
            class Holder:
                mine = ti.from_dlpack(torch.zeros(4, device=view.device))
                theirs = torch.from_dlpack(ti.ndarray(ti.f32, 4))
            print("END")
        """
        assert_quiet_exit(run_python(code), "END")
