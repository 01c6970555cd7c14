// The part of the core's CUDADriver that cuda_interop.cpp calls. The released
// core keeps its own to itself, so the fast wheel asks the driver once more.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace taichi::lang {

constexpr uint32_t CU_EVENT_DISABLE_TIMING = 0x2;

class CUDALibrary {
 public:
  static void *find(const char *symbol) {
    // Loaded by the core already; never closed, as there.
    static void *library = dlopen("libcuda.so", RTLD_LAZY);
    return library != nullptr ? dlsym(library, symbol) : nullptr;
  }
};

template <typename... Args>
class CUDADriverFunction {
 public:
  explicit CUDADriverFunction(const char *symbol)
      : function_((uint32_t (*)(Args...))CUDALibrary::find(symbol)),
        symbol_(symbol) {
  }

  bool available() const {
    return function_ != nullptr;
  }

  const std::string &symbol_name() const {
    return symbol_;
  }

  uint32_t call(Args... args) {
    return function_(args...);
  }

  // The released core's lock is not taken here.
  uint32_t call_unlocked(Args... args) {
    return function_(args...);
  }

  std::string get_error_message(uint32_t error) const {
    return "CUDA Error " + describe("cuGetErrorName", error) + ": " +
           describe("cuGetErrorString", error) + " while calling " + symbol_;
  }

 private:
  static std::string describe(const char *symbol, uint32_t error) {
    auto *get =
        (uint32_t (*)(uint32_t, const char **))CUDALibrary::find(symbol);
    const char *text = nullptr;
    if (get == nullptr || get(error, &text) != 0 || text == nullptr) {
      return std::to_string(error);
    }
    return text;
  }

  uint32_t (*function_)(Args...);
  std::string symbol_;
};

class CUDADriver {
 public:
  static CUDADriver &get_instance_without_context() {
    static auto *instance = new CUDADriver;
    return *instance;
  }

  CUDADriverFunction<void **> context_get_current{"cuCtxGetCurrent"};
  CUDADriverFunction<void *> context_set_current{"cuCtxSetCurrent"};
  CUDADriverFunction<int *> context_get_device{"cuCtxGetDevice"};
  CUDADriverFunction<> context_synchronize{"cuCtxSynchronize"};
  CUDADriverFunction<void **, int> primary_context_retain{
      "cuDevicePrimaryCtxRetain"};
  CUDADriverFunction<void *> stream_synchronize{"cuStreamSynchronize"};
  CUDADriverFunction<void *, void *, uint32_t> stream_wait_event{
      "cuStreamWaitEvent"};
  CUDADriverFunction<void **, uint32_t> event_create{"cuEventCreate"};
  CUDADriverFunction<void *, void *> event_record{"cuEventRecord"};
  CUDADriverFunction<void *> event_query{"cuEventQuery"};
  CUDADriverFunction<uint32_t *> thread_exchange_capture_mode{
      "cuThreadExchangeStreamCaptureMode"};
  CUDADriverFunction<void *, uint32_t, void *> mem_get_attribute{
      "cuPointerGetAttribute"};
  CUDADriverFunction<void *, void *, std::size_t> memcpy_device_to_host{
      "cuMemcpyDtoH_v2"};
  CUDADriverFunction<void *, void *, std::size_t> memcpy_host_to_device{
      "cuMemcpyHtoD_v2"};
};

}  // namespace taichi::lang
