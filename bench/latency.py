"""What one exchange of a small array costs, from one library to another. Nothing is compared with a limit."""

import importlib

import numpy as np
import torch

import taichi as ti

from bench.sampling import Case


def _jax_array(arrays):
    return importlib.import_module("jax").numpy.asarray(arrays.numpy)


def _jax_from(source):
    jax_dlpack = importlib.import_module("jax.dlpack")
    return Case("from_dlpack(source)", from_dlpack=jax_dlpack.from_dlpack, source=source)


def _warp():
    warp = importlib.import_module("warp")
    warp.config.quiet = True
    warp.init()
    return warp


def _warp_array(arrays):
    return _warp().from_torch(torch.ones_like(arrays.tensor))


def _torch_from(source):
    return Case("from_dlpack(source)", from_dlpack=torch.from_dlpack, source=source)


def _ours_from(source):
    return Case("from_dlpack(source)", from_dlpack=ti.from_dlpack, source=source)


# From the label in the plot to what makes the case of an Arrays.
EXCHANGES = {
    "ndarray to torch": lambda arrays: _torch_from(arrays.nd),
    "ndarray to NumPy": lambda arrays: Case("from_dlpack(nd)", from_dlpack=np.from_dlpack, nd=arrays.nd),
    "ndarray to JAX": lambda arrays: _jax_from(arrays.nd),
    "ndarray to Warp": lambda arrays: Case("from_dlpack(nd)", from_dlpack=_warp().from_dlpack, nd=arrays.nd),
    "field to torch": lambda arrays: _torch_from(arrays.field),
    "torch to ndarray": lambda arrays: _ours_from(arrays.tensor),
    "NumPy to ndarray": lambda arrays: _ours_from(arrays.numpy),
    "JAX to ndarray": lambda arrays: _ours_from(_jax_array(arrays)),
    "Warp to ndarray": lambda arrays: _ours_from(_warp_array(arrays)),
    "field to torch, a copy": lambda arrays: Case("field.to_torch()", field=arrays.field),
    "NumPy to torch": lambda arrays: _torch_from(arrays.numpy),
    "torch to torch": lambda arrays: _torch_from(arrays.tensor),
    "JAX to torch": lambda arrays: _torch_from(_jax_array(arrays)),
    "Warp to torch": lambda arrays: Case("to_torch(array)", to_torch=_warp().to_torch, array=_warp_array(arrays)),
}
