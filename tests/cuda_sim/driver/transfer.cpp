#include "transfer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "json.h"
#include "schedule.h"

namespace sim {

namespace {

constexpr uintptr_t kPage = 4096;

// Whole pages of zeros cost nothing when they are dropped: Taichi clears a
// gigabyte when it starts without memory pools.
void clear(char *bytes, size_t size) {
  const auto first = reinterpret_cast<uintptr_t>(bytes);
  const uintptr_t from = (first + kPage - 1) / kPage * kPage;
  const uintptr_t to = (first + size) / kPage * kPage;
  if (from >= to) {
    std::memset(bytes, 0, size);
    return;
  }
  std::memset(bytes, 0, from - first);
  madvise(reinterpret_cast<void *>(from), to - from, MADV_DONTNEED);
  std::memset(reinterpret_cast<void *>(to), 0, first + size - to);
}

void fill(char *bytes, size_t count, uint32_t value, size_t width) {
  if (value == 0) {
    clear(bytes, count * width);
    return;
  }
  for (size_t i = 0; i < count; i++) {
    std::memcpy(bytes + i * width, &value, width);
  }
}

}  // namespace

bool Place::is_on_host() const {
  return is_pageable() || (range.allocation != nullptr &&
                           range.allocation->kind == MemoryKind::kPinned);
}

Place device_place(CUdeviceptr ptr, size_t size, const std::string &what) {
  Place place;
  place.range = memory().resolve(ptr, size, what);
  if (place.range.allocation == nullptr) {
    fail(CUDA_ERROR_INVALID_VALUE);
  }
  return place;
}

Place host_place(const void *ptr, size_t size, const std::string &what) {
  const auto address = reinterpret_cast<CUdeviceptr>(ptr);
  if (memory().is_reserved(address)) {
    fail(CUDA_ERROR_INVALID_VALUE, "NOT_HOST_MEMORY",
         what + ": " + hex(address) + " is an address of device memory");
  }
  return any_place(address, size, what);
}

Place any_place(CUdeviceptr ptr, size_t size, const std::string &what) {
  if (memory().is_reserved(ptr) || memory().find(ptr) != nullptr) {
    return device_place(ptr, size, what);
  }
  Place place;
  place.host = reinterpret_cast<void *>(ptr);
  return place;
}

void check_reachable(const Range &range,
                     const Stream &stream,
                     const std::string &what) {
  const Allocation &allocation = *range.allocation;
  if (allocation.kind == MemoryKind::kManaged ||
      allocation.kind == MemoryKind::kPinned) {
    return;
  }
  if (allocation.device != stream.context->device) {
    report("WRONG_DEVICE", what + " on device " +
                               std::to_string(stream.context->device) + ": " +
                               allocation.describe());
  } else if (allocation.kind == MemoryKind::kDevice &&
             allocation.context != stream.context) {
    report("WRONG_CONTEXT",
           what + ": another context owns " + allocation.describe());
  }
}

OperationPtr enqueue_copy(Stream &stream,
                          const Place &to,
                          const Place &from,
                          size_t size,
                          const std::string &label) {
  std::vector<Range> ranges;
  for (const Place *place : {&to, &from}) {
    if (!place->is_pageable()) {
      ranges.push_back(place->range);
    }
  }
  if (!from.is_pageable()) {
    return enqueue(stream, label, ranges,
                   [=] { std::memmove(to.bytes(), from.bytes(), size); });
  }
  // Pageable memory is staged before the call returns.
  const std::string staged(from.bytes(), size);
  return enqueue(stream, label, ranges,
                 [=] { std::memcpy(to.bytes(), staged.data(), size); });
}

OperationPtr enqueue_fill(Stream &stream,
                          CUdeviceptr ptr,
                          size_t count,
                          uint32_t value,
                          size_t width,
                          const std::string &label) {
  const Range range = device_place(ptr, count * width, label).range;
  check_reachable(range, stream, label);
  return enqueue(stream, label, {range},
                 [=] { fill(range.bytes(), count, value, width); });
}

}  // namespace sim
