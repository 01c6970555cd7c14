"""The other libraries, each behind the same few calls. A missing one is a skip that says so."""

import importlib
import importlib.metadata

import numpy as np

from helpers import ON_CUDA

DISTRIBUTIONS = {
    "torch": "torch",
    "numpy": "numpy",
    "jax": "jax",
    "warp": "warp-lang",
    "tvm_ffi": "apache-tvm-ffi",
    "cupy": "cupy-cuda13x",
}
# CuPy has a package for each version of CUDA.
OTHER_DISTRIBUTIONS = {"cupy": ("cupy-cuda12x", "cupy-cuda11x", "cupy")}


def version_of(name):
    """The installed version of a peer, or None."""
    for distribution in (DISTRIBUTIONS[name], *OTHER_DISTRIBUTIONS.get(name, ())):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


class Peer:
    """One library: how to make its array, how it takes one over, what it lacks."""

    name = None
    immutable = False

    def __init__(self):
        self.module = importlib.import_module(self.name)

    def lacks(self, name, shape):  # pylint: disable=unused-argument
        """Why this library has no array of that type and shape; None when it has."""
        return None

    def take(self, x):
        """The library's array over the memory of x."""
        return self.module.from_dlpack(x)

    def make(self, array):
        """The library's own array with the values of a NumPy array."""
        raise NotImplementedError

    def producer(self, x):
        """What to hand to ti.from_dlpack for the library's array x."""
        return x


class Torch(Peer):
    name = "torch"
    device = "cuda" if ON_CUDA else "cpu"

    def make(self, array):
        return self.module.tensor(array, device=self.device)

    def missing_device(self):
        return ON_CUDA and not self.module.cuda.is_available()


class Numpy(Peer):
    name = "numpy"

    def make(self, array):
        return array.copy()

    def missing_device(self):
        return ON_CUDA


class Jax(Peer):
    name = "jax"
    immutable = True

    def __init__(self):
        super().__init__()
        self.module.config.update("jax_enable_x64", True)

    def take(self, x):
        return self.module.dlpack.from_dlpack(x, copy=False)

    def make(self, array):
        return self.module.numpy.array(array)

    def missing_device(self):
        return ON_CUDA and self.module.default_backend() != "gpu"


class Warp(Peer):
    name = "warp"

    def __init__(self):
        super().__init__()
        self.module.config.quiet = True
        self.module.init()

    def lacks(self, name, shape):
        return "Warp has no 0-d arrays" if shape == () else None

    def make(self, array):
        dtype = getattr(self.module, np_type_name(array))
        return self.module.array(array, dtype=dtype, device="cuda:0" if ON_CUDA else "cpu")

    def missing_device(self):
        return ON_CUDA and not self.module.is_cuda_available()


class TvmFfi(Peer):
    name = "tvm_ffi"

    def make(self, array):
        # tvm-ffi allocates nothing from Python: its tensor over torch's memory stands in for its own.
        return self.module.from_dlpack(torch_or_numpy(array))

    def missing_device(self):
        return ON_CUDA and not load("torch").module.cuda.is_available()


class Cupy(Peer):
    """Has arrays on CUDA only."""

    name = "cupy"

    def make(self, array):
        return self.module.asarray(array)

    def missing_device(self):
        try:
            return self.module.cuda.runtime.getDeviceCount() == 0
        except self.module.cuda.runtime.CUDARuntimeError:
            return True


def np_type_name(array):
    return np.dtype(array.dtype).name


def torch_or_numpy(array):
    return load("torch").make(array) if ON_CUDA or version_of("torch") else array.copy()


_CLASSES = {c.name: c for c in (Torch, Numpy, Jax, Warp, TvmFfi) + ((Cupy,) if ON_CUDA else ())}
_loaded = {}


def load(name):
    """The peer of that name; ImportError when it is not installed."""
    if name not in _loaded:
        _loaded[name] = _CLASSES[name]()
    return _loaded[name]


NAMES = tuple(_CLASSES)

__all__ = ["DISTRIBUTIONS", "NAMES", "load", "version_of"]
