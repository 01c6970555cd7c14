"""Both sides of DLPack's C exchange API: a consumer in C, by ctypes, and a producer with a table of its own."""

import ctypes

import dl_structs as dl
import helpers
from helpers import View

ATTRIBUTE = "__dlpack_c_exchange_api__"


def api_of(cls):
    """The table of a type, as a consumer finds it."""
    capsule = getattr(cls, ATTRIBUTE)
    return dl.ExchangeApi.from_address(dl.capsule_pointer(capsule, dl.EXCHANGE_API))


def managed_tensor_of(array):
    """What the type's function gives: a View. The caller owes one call of its deleter."""
    out = ctypes.c_void_p()
    assert api_of(type(array)).from_py_object(array, ctypes.byref(out)) == 0
    return View(dl.VERSIONED, out.value)


def array_of(cls, managed):
    """What the type's function makes of a managed tensor."""
    out = ctypes.py_object()
    assert api_of(cls).to_py_object(managed, ctypes.byref(out)) == 0
    array = out.value
    # The function gave away a reference, and `out` another one.
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(array))
    return array


class Exchanging:
    """A class of producers with a table of its own, whose `__dlpack__` is counted.

    Args:
        fake: Gives the tensors.
        status: What the function for the export returns; with -1 it sets an error.
        version: The table's.
        previous: Another table, of an older version.
        stream: The handle of the stream that it works on, or None.
    """

    def __init__(self, fake, status=0, version=(1, 3), previous=None, stream=None):
        self.fake, self.status, self.stream = fake, status, stream
        self.calls = self.protocol_calls = 0
        self.table = dl.ExchangeApi(
            version=dl.Version(*version),
            previous=None if previous is None else ctypes.addressof(previous),
            from_py_object=dl.FromPyObject(self._export),
            current_work_stream=dl.CurrentWorkStream(self._tell_stream),
        )
        capsule = dl.capsule_new(ctypes.addressof(self.table), dl.EXCHANGE_API, dl.no_destructor)

        class Producer:
            def __dlpack__(_, **keywords):  # pylint: disable=E0213
                self.protocol_calls += 1
                return fake.__dlpack__(**keywords)

            def __dlpack_device__(_):  # pylint: disable=E0213
                return fake.__dlpack_device__()

        setattr(Producer, ATTRIBUTE, capsule)
        self.cls = Producer

    def _export(self, _, out):
        self.calls += 1
        if self.status == 0:
            out[0] = helpers.take(self.fake.make_capsule(True)).address
        return self.status

    def _tell_stream(self, _type, _id, out):
        out[0] = self.stream
        return 0
