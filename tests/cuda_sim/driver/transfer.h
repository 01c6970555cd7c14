#pragma once

#include <string>

#include "context.h"
#include "log.h"
#include "memory.h"

// Copies and fills, for the driver's calls and for kernels of the test.

namespace sim {

// One side of a copy: memory that the driver knows, or the host's own.
struct Place {
  Range range;
  void *host{nullptr};

  bool is_pageable() const {
    return host != nullptr;
  }
  bool is_on_host() const;
  char *bytes() const {
    return host != nullptr ? static_cast<char *>(host) : range.bytes();
  }
};

// Each fails with a fault for what it cannot be.
Place device_place(CUdeviceptr ptr, size_t size, const std::string &what);
Place host_place(const void *ptr, size_t size, const std::string &what);
Place any_place(CUdeviceptr ptr, size_t size, const std::string &what);

// Notes a fault where a kernel on the stream could not reach the memory.
void check_reachable(const Range &range,
                     const Stream &stream,
                     const std::string &what);

OperationPtr enqueue_copy(Stream &stream,
                          const Place &to,
                          const Place &from,
                          size_t size,
                          const std::string &label);

// Fills with `count` times the `width` bytes of `value`.
OperationPtr enqueue_fill(Stream &stream,
                          CUdeviceptr ptr,
                          size_t count,
                          uint32_t value,
                          size_t width,
                          const std::string &label);

}  // namespace sim
