// The part of the core's CUDAContext that cuda_interop.cpp calls.
#pragma once

#include "taichi/rhi/cuda/cuda_driver.h"

namespace taichi::lang {

class CUDAContext {
 public:
  static CUDAContext &get_instance() {
    static auto *instance = new CUDAContext;
    return *instance;
  }

  // Taichi's context is the primary one of the first visible device.
  void *get_context() const {
    return context_;
  }

 private:
  CUDAContext() {
    CUDADriver::get_instance_without_context().primary_context_retain.call(
        &context_, 0);
  }

  void *context_{nullptr};
};

}  // namespace taichi::lang
