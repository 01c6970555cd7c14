// A library in C that takes arrays through DLPack's C exchange API, and makes
// some: what a consumer that is no Python code does. test_consumer.py compiles
// it. The structs are declared here once more, so that two readings of the
// standard have to agree (https://dmlc.github.io/dlpack/latest/c_api.html).

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

typedef struct {
  uint32_t major, minor;
} DLPackVersion;

typedef struct {
  int32_t device_type, device_id;
} DLDevice;

typedef struct {
  uint8_t code, bits;
  uint16_t lanes;
} DLDataType;

typedef struct {
  void *data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensorVersioned {
  DLPackVersion version;
  void *manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned *self);
  uint64_t flags;
  DLTensor dl_tensor;
} DLManagedTensorVersioned;

typedef void (*SetError)(void *context, const char *kind, const char *message);

typedef struct DLPackExchangeAPIHeader {
  DLPackVersion version;
  struct DLPackExchangeAPIHeader *prev_api;
} DLPackExchangeAPIHeader;

typedef struct {
  DLPackExchangeAPIHeader header;
  int (*managed_tensor_allocator)(DLTensor *,
                                  DLManagedTensorVersioned **,
                                  void *,
                                  SetError);
  int (*managed_tensor_from_py_object_no_sync)(void *,
                                               DLManagedTensorVersioned **);
  int (*managed_tensor_to_py_object_no_sync)(DLManagedTensorVersioned *,
                                             void **);
  int (*dltensor_from_py_object_no_sync)(void *, DLTensor *);
  int (*current_work_stream)(int32_t, int32_t, void **);
} DLPackExchangeAPI;

enum { kCPU = 1, kFloat = 2, kMajor = 1 };
static const uint64_t kReadOnly = 1;

// The table of an array's type, whose major version this file knows.
static const DLPackExchangeAPI *api_of(PyObject *array) {
  PyObject *capsule = PyObject_GetAttrString((PyObject *)Py_TYPE(array),
                                             "__dlpack_c_exchange_api__");
  if (capsule == NULL)
    return NULL;
  DLPackExchangeAPIHeader *header =
      PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
  Py_DECREF(capsule);  // the type keeps it
  while (header != NULL && header->version.major > kMajor)
    header = header->prev_api;
  if (header == NULL && !PyErr_Occurred())
    PyErr_SetString(PyExc_BufferError, "no table of a version that is known");
  return (const DLPackExchangeAPI *)header;
}

// Whether these are elements that the loops below can visit.
static int check_floats(const DLTensor *tensor) {
  if (tensor->device.device_type == kCPU && tensor->dtype.code == kFloat &&
      tensor->dtype.bits == 32 && tensor->dtype.lanes == 1)
    return 0;
  PyErr_SetString(PyExc_TypeError, "wanted 32-bit floats on the CPU");
  return -1;
}

typedef void (*Visit)(float *element, double *state);

static void visit_axis(const DLTensor *tensor,
                       int32_t axis,
                       float *at,
                       Visit visit,
                       double *state) {
  if (axis == tensor->ndim) {
    visit(at, state);
    return;
  }
  for (int64_t i = 0; i < tensor->shape[axis]; ++i)
    visit_axis(tensor, axis + 1, at + i * tensor->strides[axis], visit, state);
}

static void visit_all(const DLTensor *tensor, Visit visit, double *state) {
  char *first = (char *)tensor->data + tensor->byte_offset;
  visit_axis(tensor, 0, (float *)first, visit, state);
}

static void add(float *element, double *sum) {
  *sum += *element;
}

static void number(float *element, double *next) {
  *element = (float)*next;
  *next += 1;
}

// sum(array): borrows the tensor, so that nothing is allocated.
static PyObject *py_sum(PyObject *module, PyObject *array) {
  (void)module;
  const DLPackExchangeAPI *api = api_of(array);
  DLTensor tensor;
  double sum = 0;
  if (api == NULL ||
      api->dltensor_from_py_object_no_sync(array, &tensor) != 0 ||
      check_floats(&tensor) != 0)
    return NULL;
  visit_all(&tensor, add, &sum);
  return PyFloat_FromDouble(sum);
}

// number(array, first): numbers the elements in the order of their indices.
// Holds the tensor, and works on it without the GIL.
static PyObject *py_number(PyObject *module, PyObject *args) {
  (void)module;
  PyObject *array;
  double next;
  if (!PyArg_ParseTuple(args, "Od", &array, &next))
    return NULL;
  const DLPackExchangeAPI *api = api_of(array);
  DLManagedTensorVersioned *managed;
  if (api == NULL ||
      api->managed_tensor_from_py_object_no_sync(array, &managed) != 0)
    return NULL;
  int status = check_floats(&managed->dl_tensor);
  if (status == 0 && (managed->flags & kReadOnly) != 0) {
    PyErr_SetString(PyExc_BufferError, "read-only");
    status = -1;
  }
  Py_BEGIN_ALLOW_THREADS;
  if (status == 0)
    visit_all(&managed->dl_tensor, number, &next);
  managed->deleter(managed);
  Py_END_ALLOW_THREADS;
  if (status != 0)
    return NULL;
  Py_RETURN_NONE;
}

static void set_error(void *context, const char *kind, const char *message) {
  (void)context;
  PyErr_Format(PyExc_RuntimeError, "%s: %s", kind, message);
}

// empty_like(array): an array of the same type, on memory of its library.
static PyObject *py_empty_like(PyObject *module, PyObject *array) {
  (void)module;
  const DLPackExchangeAPI *api = api_of(array);
  DLTensor prototype;
  DLManagedTensorVersioned *managed;
  void *made;
  if (api == NULL ||
      api->dltensor_from_py_object_no_sync(array, &prototype) != 0 ||
      api->managed_tensor_allocator(&prototype, &managed, NULL, set_error) !=
          0 ||
      api->managed_tensor_to_py_object_no_sync(managed, &made) != 0)
    return NULL;
  return made;
}

// work_stream(array): the stream on which its library works on its device.
static PyObject *py_work_stream(PyObject *module, PyObject *array) {
  (void)module;
  const DLPackExchangeAPI *api = api_of(array);
  DLTensor tensor;
  void *stream = &tensor;
  if (api == NULL ||
      api->dltensor_from_py_object_no_sync(array, &tensor) != 0 ||
      api->current_work_stream(tensor.device.device_type,
                               tensor.device.device_id, &stream) != 0)
    return NULL;
  return PyLong_FromVoidPtr(stream);
}

static PyMethodDef methods[] = {
    {"sum", py_sum, METH_O, NULL},
    {"number", py_number, METH_VARARGS, NULL},
    {"empty_like", py_empty_like, METH_O, NULL},
    {"work_stream", py_work_stream, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "consumer", NULL, 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_consumer(void) {
  return PyModule_Create(&definition);
}
