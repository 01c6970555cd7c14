"""Finds out which wheel and backend are under test, and says so at both ends of the run.

TI_TEST_ARCH=cpu (default) or cuda picks the backend. The wheel is the installed one. What is here, the conftest.py of
tests/interop, cuda, fields and lifetime take over as their own. Import it before taichi, jax and warp.
"""

import collections
import importlib.metadata
import os
import tempfile
import warnings

# All of this must stand before taichi, jax or warp is imported.
os.environ["TI_SKIP_VERSION_CHECK"] = "ON"
os.environ["ENABLE_TAICHI_HEADER_PRINT"] = "0"
os.environ.setdefault("TI_TEST_ARCH", "cpu")
if os.environ["TI_TEST_ARCH"] == "cpu":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")

import pytest  # noqa: E402

# Kernels are cached under a key that holds only three version integers: another wheel's must not be met.
_cache = tempfile.TemporaryDirectory(prefix="ti-interop-cache-")
os.environ["TI_OFFLINE_CACHE_FILE_PATH"] = _cache.name

WHEEL_SOURCE, WHEEL_FAST = "source", "fast"


def installed_version():
    return importlib.metadata.version("taichi")


def wheel_kind():
    """Which of the two wheels is installed."""
    return WHEEL_FAST if installed_version().endswith(".fast") else WHEEL_SOURCE


def _check_environment():
    """Why this environment cannot run the suite, or None."""
    if os.environ["TI_TEST_ARCH"] not in ("cpu", "cuda"):
        return f"TI_TEST_ARCH is {os.environ['TI_TEST_ARCH']!r}, wanted cpu or cuda: unset it for the CPU"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # taichi asks for the locale in the old way
            import taichi as ti  # pylint: disable=C0415
    except ImportError as error:
        return f"taichi cannot be imported ({error}): run `make wheel-fast`, then install dist/taichi-*.fast-*.whl"
    if not hasattr(ti, "from_dlpack"):
        return (
            f"taichi {installed_version()} is not a patched wheel (no ti.from_dlpack): "
            "run `make wheel-fast`, then install dist/taichi-*.fast-*.whl"
        )
    if os.environ["TI_TEST_ARCH"] == "cuda":
        return _check_cuda(ti)
    return None


def _check_cuda(ti):
    """Why Taichi cannot use a GPU here, or None."""
    try:
        ti.init(arch=ti.cuda, enable_fallback=False, log_level=ti.ERROR)
    except Exception as error:  # pylint: disable=W0718
        reason = str(error).strip().splitlines()[-1]
        return f"TI_TEST_ARCH=cuda, but Taichi cannot use a GPU here ({reason}): run `make test-cpu` for the CPU"
    return None


def pytest_configure(config):
    config.addinivalue_line("markers", "needs_core(reason): needs the core built from source; the fast wheel skips it")
    config.addinivalue_line("markers", "fast_only(reason): states what only the fast wheel does")
    config.addinivalue_line("markers", "cpu_only(reason): the rule exists on the CPU backend only")
    config.addinivalue_line("markers", "cuda_only(reason): the rule exists on the CUDA backend only")
    config.addinivalue_line("filterwarnings", "error::pytest.PytestUnraisableExceptionWarning")
    config.addinivalue_line("filterwarnings", "error::pytest.PytestUnhandledThreadExceptionWarning")
    _hypothesis_profile()
    problem = _check_environment()
    if problem:
        pytest.exit(problem, returncode=2)


def _hypothesis_profile():
    try:
        from hypothesis import HealthCheck, settings  # pylint: disable=C0415
    except ImportError:
        return  # only test_properties.py needs it

    settings.register_profile(
        "interop",
        deadline=None,
        max_examples=100,
        database=None,
        print_blob=True,
        derandomize=bool(os.environ.get("CI")),
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    settings.load_profile("interop")


def pytest_unconfigure():
    _cache.cleanup()


def _environment_lines():
    from peers import NAMES, version_of  # pylint: disable=C0415

    peers = ", ".join(f"{name} {version_of(name) or 'MISSING'}" for name in NAMES)
    return [
        f"wheel:   taichi {installed_version()} ({wheel_kind()})",
        f"backend: {os.environ['TI_TEST_ARCH']}",
        f"peers:   {peers}",
    ]


def pytest_report_header():
    return _environment_lines()


def pytest_terminal_summary(terminalreporter):
    """Wheel, backend, peers, counts, and each reason for a skip with how many tests it took."""
    write = terminalreporter.write_line
    terminalreporter.section("summary")
    for line in _environment_lines():
        write(line)
    stats = terminalreporter.stats
    counts = {what: len(stats.get(what, [])) for what in ("passed", "failed", "error", "skipped")}
    write("result:  " + ", ".join(f"{count} {what}" for what, count in counts.items()))
    reasons = collections.Counter(_reason(report) for report in stats.get("skipped", []))
    for reason, count in sorted(reasons.items()):
        write(f"skipped: {count} x {reason}")


def _reason(report):
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def pytest_runtest_setup(item):
    """Skips what the wheel or the backend under test does not have, with the reason."""
    arch = os.environ["TI_TEST_ARCH"]
    for mark in item.iter_markers("needs_core"):
        if wheel_kind() == WHEEL_FAST:
            pytest.skip(f"fast wheel: {mark.args[0]}")
    for mark in item.iter_markers("fast_only"):
        if wheel_kind() != WHEEL_FAST:
            pytest.skip(f"source wheel: {mark.args[0]}")
    for mark in item.iter_markers("cpu_only"):
        if arch != "cpu":
            pytest.skip(f"backend {arch}: {mark.args[0]}")
    for mark in item.iter_markers("cuda_only"):
        if arch != "cuda":
            pytest.skip(f"backend {arch}: {mark.args[0]}")


@pytest.fixture(scope="session")
def wheel():
    """The kind of wheel under test: source or fast."""
    return wheel_kind()


@pytest.fixture(scope="session")
def arch():
    """The backend under test: cpu or cuda."""
    return os.environ["TI_TEST_ARCH"]


@pytest.fixture(autouse=True)
def runtime():
    """A running Taichi for every test; no deleter of a fake producer may have run twice in it."""
    import helpers  # pylint: disable=C0415
    from taichi.lang import impl  # pylint: disable=C0415

    if impl.get_runtime().prog is None:
        helpers.init()
    yield
    helpers.check_no_double_delete()


@pytest.fixture
def fresh_runtime():
    """For tests that reset Taichi or need one that nobody used before."""
    import helpers  # pylint: disable=C0415

    helpers.init()
    yield
    helpers.init()


@pytest.fixture(scope="session")
def peer():
    """A function that gives the peer of a name, or skips and says which is missing."""
    import peers  # pylint: disable=C0415

    def get(name):
        try:
            found = peers.load(name)
        except ImportError as error:
            pytest.skip(f"{name} is not installed ({error}): pip install {peers.DISTRIBUTIONS[name]}")
        if found.missing_device():
            pytest.skip(f"{name} {peers.version_of(name)} has no arrays on the {os.environ['TI_TEST_ARCH']} device")
        return found

    return get


@pytest.fixture
def torch(peer):
    """The torch module, with the device under test."""
    return peer("torch").module


# What a folder takes over as a whole; cuda and lifetime take a part.
__all__ = [
    "arch",
    "fresh_runtime",
    "peer",
    "pytest_configure",
    "pytest_report_header",
    "pytest_runtest_setup",
    "pytest_terminal_summary",
    "pytest_unconfigure",
    "runtime",
    "torch",
    "wheel",
]
