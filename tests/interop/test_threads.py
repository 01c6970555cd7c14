"""Deleters on other threads and at interpreter exit (contract section 1, row "deleter")."""

import threading

import pytest
import taichi as ti

import helpers
from helpers import Fake, assert_quiet_exit, numbers, run_python, set_values, take

KINDS = [{}, {"max_version": (1, 0)}]


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
        import textwrap  # pylint: disable=C0415

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
