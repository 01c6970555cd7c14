#pragma once

#include <cstddef>
#include <cstdint>

// The facts of the CUDA driver API's ABI that the simulator needs: types, codes
// and numbers as callers see them.

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = uint64_t;
using CUcontext = struct OpaqueContext *;
using CUstream = struct OpaqueStream *;
using CUevent = struct OpaqueEvent *;
using CUmodule = struct OpaqueModule *;
using CUfunction = struct OpaqueFunction *;
using CUmemoryPool = struct OpaquePool *;
using CUgraph = struct OpaqueGraph *;
using CUhostFn = void (*)(void *);

enum : CUresult {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_NOT_INITIALIZED = 3,
  CUDA_ERROR_DEINITIALIZED = 4,
  CUDA_ERROR_NO_DEVICE = 100,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_INVALID_HANDLE = 400,
  CUDA_ERROR_NOT_FOUND = 500,
  CUDA_ERROR_NOT_READY = 600,
  CUDA_ERROR_ILLEGAL_ADDRESS = 700,
  CUDA_ERROR_NOT_PERMITTED = 800,
  CUDA_ERROR_NOT_SUPPORTED = 801,
  CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
  CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
  CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903,
  CUDA_ERROR_STREAM_CAPTURE_ISOLATION = 905,
  CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
  CUDA_ERROR_CAPTURED_EVENT = 907,
  CUDA_ERROR_UNKNOWN = 999,
};

enum : int {
  DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK = 1,
  DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X = 2,
  DEVICE_ATTRIBUTE_WARP_SIZE = 10,
  DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
  DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
  DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
  DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
  DEVICE_ATTRIBUTE_MANAGED_MEMORY = 83,
  DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
  DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR = 106,
  DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED = 115,
};

enum : int {
  POINTER_ATTRIBUTE_CONTEXT = 1,
  POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
  POINTER_ATTRIBUTE_DEVICE_POINTER = 3,
  POINTER_ATTRIBUTE_HOST_POINTER = 4,
  POINTER_ATTRIBUTE_IS_MANAGED = 8,
  POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
  POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
  POINTER_ATTRIBUTE_RANGE_SIZE = 12,
};

enum : unsigned { MEMORYTYPE_HOST = 1, MEMORYTYPE_DEVICE = 2 };
enum : unsigned { STREAM_NON_BLOCKING = 1 };
enum : int {
  CAPTURE_STATUS_NONE,
  CAPTURE_STATUS_ACTIVE,
  CAPTURE_STATUS_INVALIDATED
};
enum : int {
  CAPTURE_MODE_GLOBAL,
  CAPTURE_MODE_THREAD_LOCAL,
  CAPTURE_MODE_RELAXED
};
enum : int { DEVICE_CPU = -1, DEVICE_INVALID = -2 };

// The default streams that have a number instead of a handle.
enum : uintptr_t { STREAM_NULL = 0, STREAM_LEGACY = 1, STREAM_PER_THREAD = 2 };

#define SIM_EXPORT extern "C" __attribute__((visibility("default")))

namespace sim {

// The name and the text of an error code, or null for a number that is none.
struct ErrorText {
  CUresult code;
  const char *name;
  const char *text;
};
const ErrorText *find_error(CUresult code);

}  // namespace sim
