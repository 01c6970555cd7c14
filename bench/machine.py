"""What machine a run was made on: enough to judge the figures, nothing that names it."""

import os
import platform

# Of what pyperf collects. Its other keys name the host, paths and users, or say the same again.
KEPT = ("cpu_model_name", "cpu_count", "cpu_config", "aslr", "runnable_threads")


def describe(core):
    """A dict of facts.

    Args:
        core: The processor that the workers run on, or None.
    """
    facts = {
        "platform": system(),
        "python": platform.python_version(),
        "cpu_count": os.cpu_count(),
        "pinned_core": core,
        "load_before": round(os.getloadavg()[0], 1),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
    }
    return {**facts, **pyperf_facts()}


def system():
    """As "Linux 6.1 x86_64, glibc 2.36". The rest of a kernel's name may tell whose machine it is."""
    release = ".".join(platform.release().split(".")[:2])
    return f"{platform.system()} {release} {platform.machine()}, {' '.join(platform.libc_ver())}"


def pyperf_facts():
    """What pyperf finds out, where it is installed."""
    try:
        import pyperf  # pylint: disable=C0415
    except ImportError:
        return {}
    metadata = pyperf.Run([1.0], collect_metadata=True).get_metadata()
    return {key: metadata[key] for key in KEPT if key in metadata}


def pick_core():
    """The processor for the workers: the last that this process may use; None where it cannot be chosen."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    return max(os.sched_getaffinity(0))


def available_memory():
    """Bytes that programs can still get, or None where the system does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return None
