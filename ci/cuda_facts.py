"""What a machine has for `make test-cuda`: the GPU, the driver, the libraries that share memory with Taichi.

cuda_facts.py needed [PYTHON]   exit status 1, and a line that says what to install, if something is missing
cuda_facts.py probe NAME        one library, as JSON; a process of its own, since an import may crash
"""

import concurrent.futures
import ctypes
import importlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from importlib import metadata

# The libraries, by the name under which each is imported, and the names that its package may have.
PEERS = {
    "torch": ("torch",),
    "cupy": ("cupy", "cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x"),
    "jax": ("jax",),
    "numba": ("numba-cuda", "numba"),
    "warp": ("warp-lang",),
    "tvm_ffi": ("apache-tvm-ffi",),
    "numpy": ("numpy",),
}
TOOLS = ("pytest", "hypothesis", "psutil")
PROBE_SECONDS = 60
# tvm-ffi would compile something for torch, which takes a minute and is not needed here.
WITHOUT_COMPILING = {"TVM_FFI_DISABLE_TORCH_C_DLPACK": "1"}

# CUdevice_attribute of cuda.h.
_ATTRIBUTES = {"multiprocessors": 16, "compute_mode": 20, "major": 75, "minor": 76, "memory_pools": 115}
_COMPUTE_MODES = {0: "default", 2: "prohibited", 3: "exclusive process"}


def version_of(names):
    """The version of the first package of these names that is installed, or None."""
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


# --- the device -----------------------------------------------------------------------------------


def device():
    """The first GPU, as the driver and nvidia-smi describe it. What neither tells is None."""
    driver = ctypes.CDLL("libcuda.so.1")
    count, handle, total, version = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t(), ctypes.c_int()
    name, bus_id = ctypes.create_string_buffer(256), ctypes.create_string_buffer(32)
    _ask(driver, "cuInit", 0)
    _ask(driver, "cuDeviceGetCount", ctypes.byref(count))
    _ask(driver, "cuDeviceGet", ctypes.byref(handle), 0)
    _ask(driver, "cuDeviceGetName", name, 256, handle)
    _ask(driver, "cuDeviceTotalMem_v2", ctypes.byref(total), handle)
    _ask(driver, "cuDriverGetVersion", ctypes.byref(version))
    _ask(driver, "cuDeviceGetPCIBusId", bus_id, 32, handle)
    values = {key: _attribute(driver, code, handle) for key, code in _ATTRIBUTES.items()}
    facts = {
        "name": name.value.decode(errors="replace") or None,
        "compute_capability": f"{values['major']}.{values['minor']}",
        "multiprocessors": values["multiprocessors"],
        "memory_bytes": total.value,
        "cuda_of_driver": f"{version.value // 1000}.{version.value % 1000 // 10}",
        "compute_mode": _COMPUTE_MODES.get(values["compute_mode"], values["compute_mode"]),
        "memory_pools": bool(values["memory_pools"]),
        "devices": count.value,
        # The rest is nvidia-smi's, where it is here.
        "driver": _driver_of_proc(),
        "mig": "on" if b" MIG " in name.value else "off, or not told",
    }
    # It counts devices in another order than CUDA: where the device sits tells which it is.
    facts.update(_from_nvidia_smi(bus_id.value.decode()))
    return facts


def _ask(driver, name, *arguments):
    """Whether the driver answered."""
    function = getattr(driver, name, None)
    return function is not None and function(*arguments) == 0


def _attribute(driver, code, handle):
    value = ctypes.c_int()
    return value.value if _ask(driver, "cuDeviceGetAttribute", ctypes.byref(value), code, handle) else None


def _from_nvidia_smi(bus_id):
    """The driver's version and MIG, if nvidia-smi is here and tells."""
    command = ["nvidia-smi", "--query-gpu=driver_version,mig.mode.current", "--format=csv,noheader"]
    if not bus_id or shutil.which(command[0]) is None:
        return {}
    try:
        done = subprocess.run(command + [f"--id={bus_id}"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    words = [word.strip() for word in done.stdout.split(",")]
    if done.returncode != 0 or len(words) != 2:
        return {}
    mig = {"Enabled": "on", "Disabled": "off"}.get(words[1], "not supported")
    return {"driver": words[0], "mig": mig}


def _driver_of_proc():
    """The driver's version as the kernel module tells it, or None."""
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8") as file:
            found = re.search(r"\d+\.\d+(\.\d+)?", file.readline())
    except OSError:
        return None
    return found.group() if found else None


# --- the libraries --------------------------------------------------------------------------------


def _probe_torch(module):
    return module.cuda.is_available(), f"CUDA {module.version.cuda}"


def _probe_cupy(module):
    version = module.cuda.runtime.runtimeGetVersion()
    return module.cuda.runtime.getDeviceCount() > 0, f"CUDA {version // 1000}.{version % 1000 // 10}"


def _probe_jax(module):
    backend = module.default_backend()
    return backend == "gpu", f"backend {backend}"


def _probe_numba(_module):
    return importlib.import_module("numba.cuda").is_available(), "numba.cuda"


def _probe_warp(module):
    module.config.quiet = True
    module.init()
    return module.is_cuda_available(), "its own CUDA"


_PROBES = {
    "torch": _probe_torch,
    "cupy": _probe_cupy,
    "jax": _probe_jax,
    "numba": _probe_numba,
    "warp": _probe_warp,
    "tvm_ffi": lambda module: (True, "takes any device"),
    "numpy": lambda module: (False, "host memory only"),
}


def probe(name):
    """What a library says about itself: {"version", "cuda", "note"}."""
    facts = {"version": version_of(PEERS[name]), "cuda": False, "note": ""}
    if facts["version"] is None:
        facts["note"] = "not installed"
        return facts
    try:
        facts["cuda"], facts["note"] = _PROBES[name](importlib.import_module(name))
        if not facts["cuda"]:
            facts["note"] = f"sees no GPU ({facts['note']})"
    except Exception as error:  # pylint: disable=W0718
        facts["note"] = f"does not work here: {type(error).__name__}: {error}"[:300]
    return facts


def _probe_apart(name):
    command = [sys.executable, __file__, "probe", name]
    environment = {**os.environ, **WITHOUT_COMPILING}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False, env=environment
        )
        return json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        note = f"its import took over {PROBE_SECONDS} s"
    except (IndexError, ValueError):
        note = f"its import ended the process with status {done.returncode}"
    return {"version": version_of(PEERS[name]), "cuda": False, "note": note}


def peers():
    """All libraries, each tried in a process of its own, all at a time."""
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return dict(zip(PEERS, pool.map(_probe_apart, PEERS)))


def tools():
    """The test tools and their versions; None for one that is missing."""
    return {name: version_of((name,)) for name in TOOLS}


def host():
    """The machine around the GPU."""
    return {"python": platform.python_version(), "system": platform.platform()}


# --- what is needed -------------------------------------------------------------------------------


def missing():
    """Packages without which nothing can run: pytest, NumPy and what the Taichi wheel itself needs."""
    wanted = ["pytest", "numpy"]
    for line in metadata.requires("taichi") or []:
        if ";" not in line:
            wanted.append(re.match(r"[A-Za-z0-9._-]+", line).group())
    return sorted({name for name in wanted if version_of((name,)) is None})


def main():
    """Runs what the command line names."""
    if sys.argv[1] == "probe":
        print(json.dumps(probe(sys.argv[2])))
        return 0
    names = " ".join(missing())
    if names:
        print(
            f"error: {sys.argv[2]} has no {names.replace(' ', ', ')}; install with: {sys.argv[2]} -m pip install {names}\n"
            "       or, without a network, put their wheels into a folder and name it: WHEELS=folder",
            file=sys.stderr,
        )
    return 1 if names else 0


if __name__ == "__main__":
    sys.exit(main())
