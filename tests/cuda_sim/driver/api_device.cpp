#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "abi.h"
#include "call.h"
#include "capture.h"
#include "config.h"
#include "control.h"
#include "memory.h"

// Initialization, errors, devices and contexts.

using namespace sim;

namespace {

bool is_device(CUdevice device) {
  return device >= 0 && device < (int)objects().visible.size();
}

void need_device(CUdevice device) {
  if (!is_device(device)) {
    fail(CUDA_ERROR_INVALID_DEVICE);
  }
}

int attribute_of(int attribute) {
  switch (attribute) {
    case DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
      return 1024;
    case DEVICE_ATTRIBUTE_WARP_SIZE:
      return 32;
    case DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
    case DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
    case DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case DEVICE_ATTRIBUTE_MANAGED_MEMORY:
      return 1;
    case DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      return config().compute_capability / 10;
    case DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
      return config().compute_capability % 10;
    case DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
      return 65536;
    case DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
      return config().memory_pools;
    default:
      return 0;
  }
}

Context *to_context(CUcontext handle) {
  Context *context = objects().contexts.find(handle);
  if (handle != nullptr && (context == nullptr || !context->alive)) {
    fail(CUDA_ERROR_INVALID_CONTEXT, "STALE_HANDLE",
         context ? "a context that was destroyed" : "no context");
  }
  return context;
}

// Each device has one default pool, of which nothing but the handle matters.
CUmemoryPool pool_of(CUdevice device) {
  return reinterpret_cast<CUmemoryPool>((uintptr_t)(device + 1));
}

}  // namespace

CUresult sim::refuse(const char *name) {
  return call(name, {}, [](CallRecord &) { return CUDA_ERROR_NOT_SUPPORTED; });
}

SIM_EXPORT CUresult cuInit(unsigned flags) {
  return call_any_time("cuInit", {{"flags", show(flags)}}, [](CallRecord &) {
    if (objects().initialized) {
      return CUDA_SUCCESS;
    }
    objects().visible = visible_devices();
    if (objects().visible.empty()) {
      return CUDA_ERROR_NO_DEVICE;
    }
    objects().initialized = true;
    // Handlers run last to first: the driver goes before what was there when
    // it came.
    std::atexit(&leave_process);
    return CUDA_SUCCESS;
  });
}

SIM_EXPORT CUresult cuDriverGetVersion(int *version) {
  return call_any_time("cuDriverGetVersion", {}, [=](CallRecord &) {
    *version = config().driver_version;
    return CUDA_SUCCESS;
  });
}

SIM_EXPORT CUresult cuGetErrorName(CUresult error, const char **name) {
  const ErrorText *found = find_error(error);
  *name = found != nullptr ? found->name : nullptr;
  return found != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult cuGetErrorString(CUresult error, const char **text) {
  const ErrorText *found = find_error(error);
  *text = found != nullptr ? found->text : nullptr;
  return found != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_EXPORT CUresult cuDeviceGetCount(int *count) {
  return call("cuDeviceGetCount", {}, [=](CallRecord &) {
    *count = (int)objects().visible.size();
    return CUDA_SUCCESS;
  });
}

SIM_EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  return call("cuDeviceGet", {{"ordinal", show(ordinal)}}, [=](CallRecord &) {
    need_device(ordinal);
    *device = ordinal;
    return CUDA_SUCCESS;
  });
}

SIM_EXPORT CUresult cuDeviceGetName(char *name, int size, CUdevice device) {
  return call("cuDeviceGetName", {{"device", show(device)}}, [=](CallRecord &) {
    need_device(device);
    snprintf(name, size, "Simulated GPU %d", objects().visible[device]);
    return CUDA_SUCCESS;
  });
}

SIM_EXPORT CUresult cuDeviceGetAttribute(int *value,
                                         int attribute,
                                         CUdevice device) {
  return call("cuDeviceGetAttribute",
              {{"attribute", show(attribute)}, {"device", show(device)}},
              [=](CallRecord &) {
                need_device(device);
                *value = attribute_of(attribute);
                return CUDA_SUCCESS;
              });
}

SIM_EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
  return call("cuDeviceTotalMem_v2", {{"device", show(device)}},
              [=](CallRecord &) {
                need_device(device);
                *bytes = config().memory_mb << 20;
                return CUDA_SUCCESS;
              });
}

SIM_EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool,
                                              CUdevice device) {
  return call("cuDeviceGetDefaultMemPool", {{"device", show(device)}},
              [=](CallRecord &) {
                need_device(device);
                if (!config().memory_pools) {
                  return CUDA_ERROR_NOT_SUPPORTED;
                }
                *pool = pool_of(device);
                return CUDA_SUCCESS;
              });
}

SIM_EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool pool,
                                          int attribute,
                                          void *) {
  return call("cuMemPoolSetAttribute",
              {{"pool", show(pool)}, {"attribute", show(attribute)}},
              [=](CallRecord &) {
                return is_device((int)reinterpret_cast<uintptr_t>(pool) - 1)
                           ? CUDA_SUCCESS
                           : CUDA_ERROR_INVALID_VALUE;
              });
}

SIM_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context,
                                             CUdevice device) {
  return call("cuDevicePrimaryCtxRetain", {{"device", show(device)}},
              [=](CallRecord &) {
                need_device(device);
                *context = to_handle<CUcontext>(retain_primary(device));
                return CUDA_SUCCESS;
              });
}

SIM_EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return call("cuDevicePrimaryCtxRelease_v2", {{"device", show(device)}},
              [=](CallRecord &) {
                need_device(device);
                Context *context = objects().primary[device];
                if (context == nullptr || context->retains == 0) {
                  return CUDA_ERROR_INVALID_CONTEXT;
                }
                if (--context->retains == 0) {
                  destroy_context(*context);
                }
                return CUDA_SUCCESS;
              });
}

SIM_EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice device,
                                               unsigned *flags,
                                               int *active) {
  return call("cuDevicePrimaryCtxGetState", {{"device", show(device)}},
              [=](CallRecord &) {
                need_device(device);
                const Context *context = objects().primary[device];
                *flags = 0;
                *active = context != nullptr && context->alive;
                return CUDA_SUCCESS;
              });
}

SIM_EXPORT CUresult cuCtxCreate_v2(CUcontext *handle,
                                   unsigned flags,
                                   CUdevice device) {
  return call("cuCtxCreate_v2",
              {{"flags", show(flags)}, {"device", show(device)}},
              [=](CallRecord &) {
                need_device(device);
                Context *context = objects().contexts.make();
                context->device = device;
                context->legacy = make_stream(*context, true);
                context_stack().push_back(context);
                *handle = to_handle<CUcontext>(context);
                return CUDA_SUCCESS;
              });
}

SIM_EXPORT CUresult cuCtxDestroy_v2(CUcontext handle) {
  return call("cuCtxDestroy_v2", {{"context", show(handle)}},
              [=](CallRecord &record) {
                Context *context = to_context(handle);
                if (context == nullptr || context->primary) {
                  return CUDA_ERROR_INVALID_CONTEXT;
                }
                record.blocking = true;
                destroy_context(*context);
                if (current_context() == context) {
                  context_stack().pop_back();
                }
                return CUDA_SUCCESS;
              });
}

SIM_EXPORT CUresult cuCtxSetCurrent(CUcontext handle) {
  return call("cuCtxSetCurrent", {{"context", show(handle)}},
              [=](CallRecord &) {
                Context *context = to_context(handle);
                auto &stack = context_stack();
                if (!stack.empty()) {
                  stack.pop_back();
                }
                if (context != nullptr) {
                  stack.push_back(context);
                }
                return CUDA_SUCCESS;
              });
}

SIM_EXPORT CUresult cuCtxGetCurrent(CUcontext *handle) {
  return call("cuCtxGetCurrent", {}, [=](CallRecord &) {
    *handle = to_handle<CUcontext>(current_context());
    return CUDA_SUCCESS;
  });
}

SIM_EXPORT CUresult cuCtxPushCurrent_v2(CUcontext handle) {
  return call("cuCtxPushCurrent_v2", {{"context", show(handle)}},
              [=](CallRecord &) {
                Context *context = to_context(handle);
                if (context == nullptr) {
                  return CUDA_ERROR_INVALID_CONTEXT;
                }
                context_stack().push_back(context);
                return CUDA_SUCCESS;
              });
}

SIM_EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *handle) {
  return call("cuCtxPopCurrent_v2", {}, [=](CallRecord &) {
    Context &context = need_context();
    if (handle != nullptr) {
      *handle = to_handle<CUcontext>(&context);
    }
    context_stack().pop_back();
    return CUDA_SUCCESS;
  });
}

SIM_EXPORT CUresult cuCtxGetDevice(CUdevice *device) {
  return call("cuCtxGetDevice", {}, [=](CallRecord &) {
    const Context *context = current_context();
    if (context == nullptr) {
      return CUDA_ERROR_INVALID_CONTEXT;
    }
    *device = context->device;
    return CUDA_SUCCESS;
  });
}

SIM_EXPORT CUresult cuCtxSetLimit(int limit, size_t value) {
  return call("cuCtxSetLimit", {{"limit", show(limit)}, {"value", show(value)}},
              [](CallRecord &) {
                need_context();
                return CUDA_SUCCESS;
              });
}

SIM_EXPORT CUresult cuCtxSynchronize() {
  return call("cuCtxSynchronize", {}, [](CallRecord &record) {
    record.blocking = true;
    Context &context = need_context();
    for (const Stream *stream : context.streams) {
      check_not_captured(*stream, "synchronization");
    }
    run_context(context);
    return CUDA_SUCCESS;
  });
}
