#include "abi.h"
#include "call.h"
#include "transfer.h"

// Copies and memsets. Which of them wait follows the section "API
// synchronization behavior" of the driver API's documentation.

using namespace sim;

namespace {

enum class Waits { kAsCopy, kAsAsyncCopy };

void copy(CallRecord &record,
          Stream &stream,
          const Place &to,
          const Place &from,
          size_t size,
          Waits waits) {
  if (size == 0) {
    return;
  }
  const bool is_sync = waits == Waits::kAsCopy;
  if (is_sync && from.is_pageable() && !to.is_on_host()) {
    // The host waits for what came before, and not for the copy itself.
    record.blocking = true;
    run_stream(stream);
    enqueue_copy(stream, to, from, size, record.name);
    return;
  }
  const auto copied = enqueue_copy(stream, to, from, size, record.name);
  const bool host_side = to.is_on_host() || from.is_on_host();
  if (to.is_pageable() || (is_sync && host_side)) {
    record.blocking = true;
    run_until(copied);
  }
}

Arguments copy_arguments(uint64_t to, uint64_t from, size_t size) {
  return {{"dst", show(to)}, {"src", show(from)}, {"size", show(size)}};
}

Arguments copy_arguments(uint64_t to,
                         uint64_t from,
                         size_t size,
                         CUstream stream) {
  Arguments arguments = copy_arguments(to, from, size);
  arguments.emplace_back("stream", show(stream));
  return arguments;
}

uint64_t number(const void *ptr) {
  return reinterpret_cast<uint64_t>(ptr);
}

CUresult copy_any(const char *name,
                  CUdeviceptr to,
                  CUdeviceptr from,
                  size_t size,
                  CUstream stream,
                  Waits waits,
                  Arguments arguments) {
  return call(name, std::move(arguments), [=](CallRecord &record) {
    copy(record, to_stream(stream), any_place(to, size, name),
         any_place(from, size, name), size, waits);
    return CUDA_SUCCESS;
  });
}

CUresult copy_to_device(const char *name,
                        CUdeviceptr to,
                        const void *from,
                        size_t size,
                        CUstream stream,
                        Waits waits,
                        Arguments arguments) {
  return call(name, std::move(arguments), [=](CallRecord &record) {
    copy(record, to_stream(stream), device_place(to, size, name),
         host_place(from, size, name), size, waits);
    return CUDA_SUCCESS;
  });
}

CUresult copy_to_host(const char *name,
                      void *to,
                      CUdeviceptr from,
                      size_t size,
                      CUstream stream,
                      Waits waits,
                      Arguments arguments) {
  return call(name, std::move(arguments), [=](CallRecord &record) {
    copy(record, to_stream(stream), host_place(to, size, name),
         device_place(from, size, name), size, waits);
    return CUDA_SUCCESS;
  });
}

CUresult copy_on_device(const char *name,
                        CUdeviceptr to,
                        CUdeviceptr from,
                        size_t size,
                        CUstream stream,
                        Waits waits,
                        Arguments arguments) {
  return call(name, std::move(arguments), [=](CallRecord &record) {
    copy(record, to_stream(stream), device_place(to, size, name),
         device_place(from, size, name), size, waits);
    return CUDA_SUCCESS;
  });
}

CUresult fill(const char *name,
              CUdeviceptr ptr,
              uint32_t value,
              size_t width,
              size_t count,
              CUstream handle,
              Arguments arguments) {
  return call(name, std::move(arguments), [=](CallRecord &) {
    Stream &stream = to_stream(handle);
    if (count != 0) {
      enqueue_fill(stream, ptr, count, value, width, name);
    }
    return CUDA_SUCCESS;
  });
}

Arguments fill_arguments(CUdeviceptr ptr, uint32_t value, size_t count) {
  return {{"ptr", show(ptr)}, {"value", show(value)}, {"size", show(count)}};
}

Arguments fill_arguments(CUdeviceptr ptr,
                         uint32_t value,
                         size_t count,
                         CUstream stream) {
  Arguments arguments = fill_arguments(ptr, value, count);
  arguments.emplace_back("stream", show(stream));
  return arguments;
}

}  // namespace

SIM_EXPORT CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t size) {
  return copy_any("cuMemcpy", to, from, size, nullptr, Waits::kAsCopy,
                  copy_arguments(to, from, size));
}

SIM_EXPORT CUresult cuMemcpyAsync(CUdeviceptr to,
                                  CUdeviceptr from,
                                  size_t size,
                                  CUstream stream) {
  return copy_any("cuMemcpyAsync", to, from, size, stream, Waits::kAsAsyncCopy,
                  copy_arguments(to, from, size, stream));
}

SIM_EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to,
                                    const void *from,
                                    size_t size) {
  return copy_to_device("cuMemcpyHtoD_v2", to, from, size, nullptr,
                        Waits::kAsCopy, copy_arguments(to, number(from), size));
}

SIM_EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to,
                                         const void *from,
                                         size_t size,
                                         CUstream stream) {
  return copy_to_device("cuMemcpyHtoDAsync_v2", to, from, size, stream,
                        Waits::kAsAsyncCopy,
                        copy_arguments(to, number(from), size, stream));
}

SIM_EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size) {
  return copy_to_host("cuMemcpyDtoH_v2", to, from, size, nullptr,
                      Waits::kAsCopy, copy_arguments(number(to), from, size));
}

SIM_EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to,
                                         CUdeviceptr from,
                                         size_t size,
                                         CUstream stream) {
  return copy_to_host("cuMemcpyDtoHAsync_v2", to, from, size, stream,
                      Waits::kAsAsyncCopy,
                      copy_arguments(number(to), from, size, stream));
}

SIM_EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr to,
                                    CUdeviceptr from,
                                    size_t size) {
  return copy_on_device("cuMemcpyDtoD_v2", to, from, size, nullptr,
                        Waits::kAsCopy, copy_arguments(to, from, size));
}

SIM_EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to,
                                         CUdeviceptr from,
                                         size_t size,
                                         CUstream stream) {
  return copy_on_device("cuMemcpyDtoDAsync_v2", to, from, size, stream,
                        Waits::kAsAsyncCopy,
                        copy_arguments(to, from, size, stream));
}

SIM_EXPORT CUresult cuMemcpyPeer(CUdeviceptr to,
                                 CUcontext,
                                 CUdeviceptr from,
                                 CUcontext,
                                 size_t size) {
  return copy_on_device("cuMemcpyPeer", to, from, size, nullptr, Waits::kAsCopy,
                        copy_arguments(to, from, size));
}

SIM_EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr to,
                                      CUcontext,
                                      CUdeviceptr from,
                                      CUcontext,
                                      size_t size,
                                      CUstream stream) {
  return copy_on_device("cuMemcpyPeerAsync", to, from, size, stream,
                        Waits::kAsAsyncCopy,
                        copy_arguments(to, from, size, stream));
}

SIM_EXPORT CUresult cuMemsetD8_v2(CUdeviceptr ptr,
                                  unsigned char value,
                                  size_t count) {
  return fill("cuMemsetD8_v2", ptr, value, 1, count, nullptr,
              fill_arguments(ptr, value, count));
}

SIM_EXPORT CUresult cuMemsetD8Async(CUdeviceptr ptr,
                                    unsigned char value,
                                    size_t count,
                                    CUstream stream) {
  return fill("cuMemsetD8Async", ptr, value, 1, count, stream,
              fill_arguments(ptr, value, count, stream));
}

SIM_EXPORT CUresult cuMemsetD32_v2(CUdeviceptr ptr,
                                   unsigned value,
                                   size_t count) {
  return fill("cuMemsetD32_v2", ptr, value, 4, count, nullptr,
              fill_arguments(ptr, value, count));
}

SIM_EXPORT CUresult cuMemsetD32Async(CUdeviceptr ptr,
                                     unsigned value,
                                     size_t count,
                                     CUstream stream) {
  return fill("cuMemsetD32Async", ptr, value, 4, count, stream,
              fill_arguments(ptr, value, count, stream));
}
