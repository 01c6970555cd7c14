"""The structs of the DLPack ABI, declared by hand with ctypes, and the capsule calls of CPython.

Nothing here knows Taichi: the tests must not read a capsule with the code that made it.
"""

import ctypes

LEGACY = b"dltensor"
VERSIONED = b"dltensor_versioned"
USED_LEGACY = b"used_dltensor"
USED_VERSIONED = b"used_dltensor_versioned"

FLAG_READ_ONLY = 1
FLAG_IS_COPIED = 2

# Device types of the standard that the tests name.
CPU, CUDA, CUDA_HOST, OPENCL, METAL, ROCM, CUDA_MANAGED = 1, 2, 3, 4, 8, 10, 13

# Type codes of the standard.
INT, UINT, FLOAT, OPAQUE, BFLOAT, COMPLEX, BOOL = 0, 1, 2, 3, 4, 5, 6


class Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("id", ctypes.c_int32)]


class DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", Device),
        ("ndim", ctypes.c_int32),
        ("dtype", DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


# Called through ctypes this type lets go of the GIL, as a foreign consumer would.
Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Managed(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", Deleter)]


class Version(ctypes.Structure):
    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32)]


class ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("version", Version),
        ("context", ctypes.c_void_p),
        ("deleter", Deleter),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


# The destructor gets an object that is already dying: a plain pointer keeps ctypes from
# taking a reference to it.
CapsuleDestructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

_api = ctypes.pythonapi
capsule_new = _api.PyCapsule_New
capsule_new.restype = ctypes.py_object
capsule_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, CapsuleDestructor]

# Prototypes of their own for the two ways to name a capsule, living and dying.
capsule_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", _api))
capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
capsule_rename = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_SetName", _api))
dying_capsule_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))


capsule_destructor = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(("PyCapsule_GetDestructor", _api))

# --- the C exchange API: functions that a consumer finds on the type of an array ------------------

EXCHANGE_API = b"dlpack_exchange_api"

# With the GIL, as these are called; an error that is set becomes an exception.
FromPyObject = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(ctypes.c_void_p))
ToPyObject = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.py_object))
BorrowTensor = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(Tensor))
CurrentWorkStream = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
# Without it: this one may be called from anywhere.
SetError = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
Allocate = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(Tensor), ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, SetError
)


class ExchangeApi(ctypes.Structure):
    _fields_ = [
        ("version", Version),
        ("previous", ctypes.c_void_p),
        ("allocate", Allocate),
        ("from_py_object", FromPyObject),
        ("to_py_object", ToPyObject),
        ("borrow_tensor", BorrowTensor),
        ("current_work_stream", CurrentWorkStream),
    ]


no_destructor = CapsuleDestructor(0)
