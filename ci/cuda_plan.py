"""Which tests `make test-cuda` runs, in which order, and which at the same time.

Taichi has one program in a process, so each job is a process. The jobs of a stage run side by side, stages follow each
other. What measures time or memory, or hunts races, has the GPU to itself. What matters most comes first, in case the
time runs out.
"""

from pathlib import Path

CUDA, INTEROP = "tests/cuda", "tests/interop"
# Compares the times of two launches.
TIMED = "test_case_26_a_launch_costs_what_a_native_one_costs"
# Jobs that run alone, in this order. The others run side by side, after them.
ALONE = [
    ("streams", [f"{CUDA}/test_first.py", f"{CUDA}/test_streams.py", f"{CUDA}/test_graphs.py"]),
    ("races", [f"{CUDA}/test_races.py"]),
    ("memory", [f"{CUDA}/test_memory.py"]),
    ("timed", [f"{INTEROP}/test_cases.py", "-k", TIMED]),
]
# The largest file of tests/interop is split by library.
LIBRARIES = ("torch", "jax", "warp", "cupy")
# The file of tests/interop with properties for Hypothesis to search.
SEARCHED = "test_properties.py"
# Other folders whose tests follow TI_TEST_ARCH: they run last, as long as there is time.
FOLDERS = ("lifetime", "fields")
SILENCE_SECONDS = 120
# A hunt says nothing before it is over, and other searches neither.
LONG_SILENCE_SECONDS = 300


def job(name, stage, arguments, silence=SILENCE_SECONDS, **more):
    """One run of pytest.

    Args:
        name (str): Its name in the report.
        stage (int): When it runs.
        arguments (List[str]): For pytest.
        silence (float): After so many seconds without the start or the end of a test, it hangs.
        more: `optional`, it may be that all is skipped; `if_time`, it may be cut short when the time is up;
            `folder` to run in; `plugins` of pytest.
    """
    return {"name": name, "stage": stage, "arguments": arguments, "silence": silence, **more}


def _side_by_side(name, arguments, later=0, **more):
    return job(name, len(ALONE) + later, arguments, **more)


def _files(root, folder):
    """(name without test_ and .py, path) of the test files in a folder."""
    return [(path.stem[len("test_") :], f"{folder}/{path.name}") for path in sorted((root / folder).glob("test_*.py"))]


def _alone():
    return [
        job(name, stage, arguments, LONG_SILENCE_SECONDS if name == "races" else SILENCE_SECONDS)
        for stage, (name, arguments) in enumerate(ALONE)
    ]


def _cuda_jobs(root):
    taken = {path for _, arguments in ALONE for path in arguments}
    return [_side_by_side(name, [path]) for name, path in _files(root, CUDA) if path not in taken]


def _interop_jobs(root, has_hypothesis):
    jobs = []
    for name, path in _files(root, INTEROP):
        if name == "peers":
            jobs += _peers_jobs(path)
        elif name == "cases":
            jobs.append(_side_by_side(name, [path, "-k", f"not {TIMED}"]))
        elif has_hypothesis or not path.endswith(SEARCHED):
            jobs.append(_side_by_side(name, [path]))
    return jobs


def _peers_jobs(path):
    """The file in parts that exclude each other and leave nothing out."""
    jobs, others = [], ""
    for library in LIBRARIES:
        jobs.append(_side_by_side(f"peers-{library}", [path, "-k", f"{library}{others}"], optional=True))
        others += f" and not {library}"
    return jobs + [_side_by_side("peers-others", [path, "-k", others[len(" and ") :]])]


def whole(root, has_hypothesis=True):
    """All jobs.

    Args:
        root (Path): The repository.
        has_hypothesis (bool): Whether Hypothesis is installed.

    Returns:
        Tuple[List[dict], List[str]]: The jobs, and what is left out, with the reason.
    """
    folders = [name for name in FOLDERS if (root / "tests" / name).is_dir()]
    jobs = _alone() + _cuda_jobs(root) + _interop_jobs(root, has_hypothesis)
    late = {"later": 1, "silence": LONG_SILENCE_SECONDS, "if_time": True}
    jobs += [_side_by_side(name, [f"tests/{name}"], **late) for name in folders]
    left_out = [
        "tests/fuzz, tests/cuda_sim, tests/genesis, tests/harness: they need no GPU; make test, make test-cuda-sim and make test-genesis run them"
    ]
    if not has_hypothesis:
        left_out.append(f"{INTEROP}/{SEARCHED}: hypothesis is not installed")
    return jobs, left_out


def chosen(arguments):
    """One job with pytest arguments from the command line."""
    return [job("chosen", 0, list(arguments), LONG_SILENCE_SECONDS)], ["all but the chosen tests"]


def upstream(tree, files):
    """Upstream's own tests, in the patched tree, a job for each file."""
    more = {"folder": str(tree), "plugins": ["upstream_exceptions"]}
    return [_side_by_side(f"upstream-{Path(file).stem[len('test_'):]}", [file], later=2, **more) for file in files]
