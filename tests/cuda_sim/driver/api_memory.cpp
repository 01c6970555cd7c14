#include <cstring>

#include "abi.h"
#include "call.h"
#include "capture.h"
#include "config.h"
#include "json.h"
#include "memory.h"
#include "transfer.h"

// Allocation, freeing, and what pointers are. Copies are in api_transfer.cpp.

using namespace sim;

namespace {

CUdeviceptr allocate(CallRecord &record, MemoryKind kind, size_t size) {
  Context &context = need_context();
  if (size == 0) {
    fail(CUDA_ERROR_INVALID_VALUE);
  }
  check_safe_in_capture("an allocation");
  const auto allocation = memory().allocate(kind, &context, size);
  if (allocation == nullptr) {
    fail(CUDA_ERROR_OUT_OF_MEMORY);
  }
  record.arguments.emplace_back("ptr", show(allocation->address));
  return allocation->address;
}

// The live allocation that starts at the pointer and may be freed by a call
// that frees these kinds.
std::shared_ptr<Allocation> to_be_freed(
    CUdeviceptr address,
    std::initializer_list<MemoryKind> kinds) {
  const auto allocation = memory().find_start(address);
  if (allocation == nullptr) {
    fail(CUDA_ERROR_INVALID_VALUE, "INVALID_FREE",
         "no allocation starts at " + hex(address));
  }
  if (allocation->free_requested) {
    fail(CUDA_ERROR_INVALID_VALUE, "DOUBLE_FREE", allocation->describe());
  }
  for (const MemoryKind kind : kinds) {
    if (kind == allocation->kind) {
      return allocation;
    }
  }
  fail(CUDA_ERROR_INVALID_VALUE, "INVALID_FREE",
       "this call does not free " + allocation->describe());
}

void check_context(const Allocation &allocation, const Context &context) {
  if (allocation.context != &context) {
    report(
        allocation.device != context.device ? "WRONG_DEVICE" : "WRONG_CONTEXT",
        "freeing " + allocation.describe() + " in a context of device " +
            std::to_string(context.device));
  }
}

// Plain freeing happens at once, whatever the device is doing.
void free_now(CallRecord &record, Allocation &allocation) {
  if (config().free_synchronizes) {
    record.blocking = true;
    run_context(*allocation.context);
  }
  report_users(allocation);
  memory().release(allocation);
}

void check_users_are_done_before(const OperationPtr &freeing,
                                 const Allocation &allocation) {
  for (const OperationPtr &user : users_of(allocation)) {
    if (user != freeing && !comes_after(freeing, user)) {
      report("FREE_NOT_ORDERED", user->label +
                                     " is pending, is not ordered before the "
                                     "freeing and uses " +
                                     allocation.describe());
    }
  }
}

const Allocation *describe_pointer(CUdeviceptr address) {
  const auto allocation = memory().find(address);
  return allocation != nullptr && !allocation->freed ? allocation.get()
                                                     : nullptr;
}

unsigned memory_type(const Allocation &allocation) {
  return allocation.kind == MemoryKind::kPinned ? MEMORYTYPE_HOST
                                                : MEMORYTYPE_DEVICE;
}

template <typename T>
void store(void *where, T value) {
  std::memcpy(where, &value, sizeof(value));
}

CUresult store_attribute(void *data,
                         int attribute,
                         const Allocation &allocation) {
  const bool on_host = allocation.kind == MemoryKind::kPinned ||
                       allocation.kind == MemoryKind::kManaged;
  switch (attribute) {
    case POINTER_ATTRIBUTE_CONTEXT:
      // Memory of a pool belongs to no context.
      store(data, allocation.kind == MemoryKind::kPool ? nullptr
                                                       : allocation.context);
      return CUDA_SUCCESS;
    case POINTER_ATTRIBUTE_MEMORY_TYPE:
      store(data, memory_type(allocation));
      return CUDA_SUCCESS;
    case POINTER_ATTRIBUTE_DEVICE_POINTER:
    case POINTER_ATTRIBUTE_RANGE_START_ADDR:
      store(data, allocation.address);
      return CUDA_SUCCESS;
    case POINTER_ATTRIBUTE_HOST_POINTER:
      if (!on_host) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      store(data, allocation.address);
      return CUDA_SUCCESS;
    case POINTER_ATTRIBUTE_IS_MANAGED:
      store(data, unsigned(allocation.kind == MemoryKind::kManaged));
      return CUDA_SUCCESS;
    case POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      store(data, allocation.device);
      return CUDA_SUCCESS;
    case POINTER_ATTRIBUTE_RANGE_SIZE:
      store(data, allocation.size);
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// What cuPointerGetAttributes says of memory that the driver does not know.
void store_unknown(void *data, int attribute) {
  switch (attribute) {
    case POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return store(data, (int)DEVICE_INVALID);
    case POINTER_ATTRIBUTE_MEMORY_TYPE:
    case POINTER_ATTRIBUTE_IS_MANAGED:
      return store(data, 0u);
    default:
      return store(data, uint64_t(0));
  }
}

}  // namespace

SIM_EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t size) {
  return call("cuMemAlloc_v2", {{"size", show(size)}}, [=](CallRecord &record) {
    *ptr = allocate(record, MemoryKind::kDevice, size);
    return CUDA_SUCCESS;
  });
}

SIM_EXPORT CUresult cuMemAllocManaged(CUdeviceptr *ptr,
                                      size_t size,
                                      unsigned flags) {
  return call("cuMemAllocManaged",
              {{"size", show(size)}, {"flags", show(flags)}},
              [=](CallRecord &record) {
                *ptr = allocate(record, MemoryKind::kManaged, size);
                return CUDA_SUCCESS;
              });
}

SIM_EXPORT CUresult cuMemHostAlloc(void **ptr, size_t size, unsigned flags) {
  return call("cuMemHostAlloc", {{"size", show(size)}, {"flags", show(flags)}},
              [=](CallRecord &record) {
                *ptr = reinterpret_cast<void *>(
                    allocate(record, MemoryKind::kPinned, size));
                return CUDA_SUCCESS;
              });
}

SIM_EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device_ptr,
                                                 void *ptr,
                                                 unsigned) {
  return call(
      "cuMemHostGetDevicePointer_v2", {{"ptr", show(ptr)}}, [=](CallRecord &) {
        const auto address = reinterpret_cast<CUdeviceptr>(ptr);
        const Allocation *allocation = describe_pointer(address);
        if (allocation == nullptr || allocation->kind != MemoryKind::kPinned) {
          return CUDA_ERROR_INVALID_VALUE;
        }
        *device_ptr = address;
        return CUDA_SUCCESS;
      });
}

SIM_EXPORT CUresult cuMemAllocAsync(CUdeviceptr *ptr,
                                    size_t size,
                                    CUstream handle) {
  return call("cuMemAllocAsync",
              {{"size", show(size)}, {"stream", show(handle)}},
              [=](CallRecord &record) {
                if (!config().memory_pools) {
                  return CUDA_ERROR_NOT_SUPPORTED;
                }
                Stream &stream = to_stream(handle);
                *ptr = allocate(record, MemoryKind::kPool, size);
                memory().find_start(*ptr)->allocated_by =
                    enqueue(stream, "cuMemAllocAsync", {}, nullptr);
                return CUDA_SUCCESS;
              });
}

SIM_EXPORT CUresult cuMemFree_v2(CUdeviceptr ptr) {
  return call("cuMemFree_v2", {{"ptr", show(ptr)}}, [=](CallRecord &record) {
    if (ptr == 0) {
      return CUDA_SUCCESS;
    }
    Context &context = need_context();
    check_safe_in_capture("freeing");
    const auto allocation = to_be_freed(
        ptr, {MemoryKind::kDevice, MemoryKind::kManaged, MemoryKind::kPool});
    check_context(*allocation, context);
    free_now(record, *allocation);
    return CUDA_SUCCESS;
  });
}

SIM_EXPORT CUresult cuMemFreeHost(void *ptr) {
  return call("cuMemFreeHost", {{"ptr", show(ptr)}}, [=](CallRecord &record) {
    check_safe_in_capture("freeing");
    const auto allocation =
        to_be_freed(reinterpret_cast<CUdeviceptr>(ptr), {MemoryKind::kPinned});
    free_now(record, *allocation);
    return CUDA_SUCCESS;
  });
}

SIM_EXPORT CUresult cuMemFreeAsync(CUdeviceptr ptr, CUstream handle) {
  return call("cuMemFreeAsync", {{"ptr", show(ptr)}, {"stream", show(handle)}},
              [=](CallRecord &) {
                Stream &stream = to_stream(handle);
                const auto allocation = to_be_freed(ptr, {MemoryKind::kPool});
                check_context(*allocation, *stream.context);
                const auto freeing =
                    enqueue(stream, "cuMemFreeAsync", {{allocation, 0, 0}},
                            [=] { memory().release(*allocation); });
                check_users_are_done_before(freeing, *allocation);
                allocation->free_requested = true;
                return CUDA_SUCCESS;
              });
}

SIM_EXPORT CUresult cuMemGetInfo_v2(size_t *available, size_t *total) {
  return call("cuMemGetInfo_v2", {}, [=](CallRecord &) {
    const Context &context = need_context();
    *total = config().memory_mb << 20;
    *available = *total - memory().live_bytes(context.device);
    return CUDA_SUCCESS;
  });
}

SIM_EXPORT CUresult cuMemAdvise(CUdeviceptr ptr,
                                size_t size,
                                int advice,
                                int device) {
  return call("cuMemAdvise",
              {{"ptr", show(ptr)},
               {"size", show(size)},
               {"advice", show(advice)},
               {"device", show(device)}},
              [](CallRecord &) {
                need_context();
                return CUDA_SUCCESS;
              });
}

SIM_EXPORT CUresult cuPointerGetAttribute(void *data,
                                          int attribute,
                                          CUdeviceptr ptr) {
  return call("cuPointerGetAttribute",
              {{"attribute", show(attribute)}, {"ptr", show(ptr)}},
              [=](CallRecord &) {
                const Allocation *allocation = describe_pointer(ptr);
                if (allocation == nullptr) {
                  return (CUresult)CUDA_ERROR_INVALID_VALUE;
                }
                return store_attribute(data, attribute, *allocation);
              });
}

SIM_EXPORT CUresult cuPointerGetAttributes(unsigned count,
                                           int *attributes,
                                           void **data,
                                           CUdeviceptr ptr) {
  return call("cuPointerGetAttributes",
              {{"count", show(count)}, {"ptr", show(ptr)}}, [=](CallRecord &) {
                const Allocation *allocation = describe_pointer(ptr);
                for (unsigned i = 0; i < count; i++) {
                  if (allocation == nullptr ||
                      store_attribute(data[i], attributes[i], *allocation) !=
                          CUDA_SUCCESS) {
                    store_unknown(data[i], attributes[i]);
                  }
                }
                return CUDA_SUCCESS;
              });
}
