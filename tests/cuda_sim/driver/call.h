#pragma once

#include "context.h"
#include "log.h"
#include "schedule.h"

namespace sim {

class CallScope {
 public:
  explicit CallScope(const CallRecord *record) {
    current_call = record;
  }
  ~CallScope() {
    current_call = nullptr;
  }
};

template <typename Body>
CUresult result_of(CallRecord &record, Body &body) {
  if (in_host_function()) {
    report("HOST_FUNCTION_CALLS_DRIVER",
           "a function of cuLaunchHostFunc called the driver");
    return CUDA_ERROR_NOT_PERMITTED;
  }
  if (const Injection *injection = log().take_injection(record.name)) {
    return injection->ignore ? CUDA_SUCCESS : injection->code;
  }
  try {
    return body(record);
  } catch (const Failure &failure) {
    return failure.code;
  }
}

// One call of the driver: logged, hit by what the test injected, carried out,
// and followed by what the device does meanwhile. `body` gets the CallRecord.
template <typename Body>
CUresult call_any_time(const char *name, Arguments arguments, Body body) {
  const Lock lock;
  if (objects().gone) {
    return CUDA_ERROR_DEINITIALIZED;
  }
  CallRecord &record = log().begin(name, std::move(arguments));
  const CallScope scope(&record);
  const CUresult result = result_of(record, body);
  record.result = result;
  make_progress();
  return result;
}

// The same for calls that come after cuInit.
template <typename Body>
CUresult call(const char *name, Arguments arguments, Body body) {
  return call_any_time(name, std::move(arguments),
                       [&](CallRecord &record) -> CUresult {
                         if (!objects().initialized) {
                           return CUDA_ERROR_NOT_INITIALIZED;
                         }
                         return body(record);
                       });
}

// A call that this driver knows and does not support.
CUresult refuse(const char *name);

}  // namespace sim
