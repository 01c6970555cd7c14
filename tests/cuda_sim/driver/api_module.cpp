#include "abi.h"
#include "call.h"
#include "json.h"
#include "kernels.h"

// Modules, kernels, and what the simulator knows of and does not support.

using namespace sim;

namespace {

CUresult load(const char *name, CUmodule *handle, const char *image) {
  return call(name, {}, [=](CallRecord &) {
    Context &context = need_context();
    Module *module = objects().modules.make();
    module->context = &context;
    for (const std::string &kernel : kernels_in(image)) {
      module->kernels[kernel] = nullptr;
    }
    *handle = to_handle<CUmodule>(module);
    return CUDA_SUCCESS;
  });
}

Function &to_function(CUfunction handle) {
  Function *function = objects().functions.find(handle);
  if (function == nullptr) {
    fail(CUDA_ERROR_INVALID_HANDLE, "STALE_HANDLE", "no function");
  }
  return *function;
}

}  // namespace

SIM_EXPORT CUresult cuModuleLoadData(CUmodule *module, const char *image) {
  return load("cuModuleLoadData", module, image);
}

SIM_EXPORT CUresult cuModuleLoadDataEx(CUmodule *module,
                                       const char *image,
                                       unsigned,
                                       int *,
                                       void **) {
  return load("cuModuleLoadDataEx", module, image);
}

SIM_EXPORT CUresult cuModuleUnload(CUmodule module) {
  return call("cuModuleUnload", {{"module", show(module)}}, [=](CallRecord &) {
    return objects().modules.find(module) != nullptr
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_HANDLE;
  });
}

SIM_EXPORT CUresult cuModuleGetFunction(CUfunction *handle,
                                        CUmodule module_handle,
                                        const char *name) {
  return call("cuModuleGetFunction", {{"kernel", quote(name)}},
              [=](CallRecord &) {
                Module *module = objects().modules.find(module_handle);
                if (module == nullptr) {
                  return CUDA_ERROR_INVALID_HANDLE;
                }
                const auto kernel = module->kernels.find(name);
                if (kernel == module->kernels.end()) {
                  return CUDA_ERROR_NOT_FOUND;
                }
                Function *&function = kernel->second;
                if (function == nullptr) {
                  function = objects().functions.make();
                  function->context = module->context;
                  function->name = name;
                }
                *handle = to_handle<CUfunction>(function);
                return CUDA_SUCCESS;
              });
}

SIM_EXPORT CUresult cuLaunchKernel(CUfunction handle,
                                   unsigned grid_x,
                                   unsigned grid_y,
                                   unsigned grid_z,
                                   unsigned block_x,
                                   unsigned,
                                   unsigned,
                                   unsigned,
                                   CUstream stream_handle,
                                   void **arguments,
                                   void **) {
  return call(
      "cuLaunchKernel",
      {{"stream", show(stream_handle)},
       {"grid", show(grid_x * grid_y * grid_z)},
       {"block", show(block_x)}},
      [=](CallRecord &record) {
        const Function &function = to_function(handle);
        record.arguments.emplace_back("kernel", quote(function.name));
        Stream &stream = to_stream(stream_handle);
        if (function.context != stream.context) {
          fail(CUDA_ERROR_INVALID_HANDLE, "WRONG_CONTEXT",
               "a kernel of one context launched on a stream of another");
        }
        launch(stream, function.name, arguments);
        return CUDA_SUCCESS;
      });
}

SIM_EXPORT CUresult cuFuncGetAttribute(int *value,
                                       int attribute,
                                       CUfunction function) {
  return call("cuFuncGetAttribute", {{"attribute", show(attribute)}},
              [=](CallRecord &) {
                to_function(function);
                *value = 0;
                return CUDA_SUCCESS;
              });
}

SIM_EXPORT CUresult cuFuncSetAttribute(CUfunction function,
                                       int attribute,
                                       int value) {
  return call("cuFuncSetAttribute",
              {{"attribute", show(attribute)}, {"value", show(value)}},
              [=](CallRecord &) {
                to_function(function);
                return CUDA_SUCCESS;
              });
}

SIM_EXPORT CUresult
cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks,
                                            CUfunction function,
                                            int,
                                            size_t) {
  return call("cuOccupancyMaxActiveBlocksPerMultiprocessor", {},
              [=](CallRecord &) {
                to_function(function);
                *blocks = 1;
                return CUDA_SUCCESS;
              });
}

// Sharing with graphics, which Taichi looks up and the tests do not use.
#define SIM_REFUSED(name)      \
  SIM_EXPORT CUresult name() { \
    return refuse(#name);      \
  }

SIM_REFUSED(cuImportExternalMemory)
SIM_REFUSED(cuExternalMemoryGetMappedBuffer)
SIM_REFUSED(cuExternalMemoryGetMappedMipmappedArray)
SIM_REFUSED(cuMipmappedArrayGetLevel)
SIM_REFUSED(cuSurfObjectCreate)
SIM_REFUSED(cuSignalExternalSemaphoresAsync)
SIM_REFUSED(cuWaitExternalSemaphoresAsync)
SIM_REFUSED(cuImportExternalSemaphore)
