#include "control.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>

#include "abi.h"
#include "config.h"
#include "context.h"
#include "json.h"
#include "kernels.h"
#include "log.h"
#include "memory.h"
#include "schedule.h"
#include "transfer.h"

// What the tests use: see sim.py. None of this is logged as a call.

using namespace sim;

namespace {

std::map<int, std::string> &snapshots() {
  static auto *instance = new std::map<int, std::string>();
  return *instance;
}

char *give_text(const std::string &text) {
  return strdup(text.c_str());
}

std::string live_as_json() {
  std::string json = "[";
  for (const auto &allocation : memory().live()) {
    json += json.size() > 1 ? ",\n" : "";
    json += "{\"kind\":" + quote(to_string(allocation->kind)) +
            ",\"ptr\":" + std::to_string(allocation->address) +
            ",\"size\":" + std::to_string(allocation->size) +
            ",\"device\":" + std::to_string(allocation->device) + "}";
  }
  return json + "]";
}

Context *context_of(int device) {
  Context *context = objects().primary[device];
  return context != nullptr && context->alive ? context
                                              : retain_primary(device);
}

// Carries out what the test asks for, as a call of the driver would be.
template <typename Body>
CUresult controlled(Body body) {
  const Lock lock;
  try {
    body();
  } catch (const Failure &failure) {
    return failure.code;
  }
  make_progress();
  return CUDA_SUCCESS;
}

}  // namespace

void sim::leave_process() {
  const Lock lock;
  for (const Fault &fault : log().faults) {
    fprintf(stderr, "simulated CUDA driver: %s in %s: %s\n", fault.kind.c_str(),
            fault.call.c_str(), fault.message.c_str());
  }
  if (!config().report.empty()) {
    std::ofstream(config().report) << "{\"faults\":" << log().faults_as_json()
                                   << ",\"live\":" << live_as_json() << "}\n";
  }
  objects().gone = true;
}

// As if the process were ending.
SIM_EXPORT void simLeaveProcess() {
  leave_process();
}

// --- the log ---------------------------------------------------------------

SIM_EXPORT char *simCalls() {
  const Lock lock;
  return give_text(log().calls_as_json());
}

SIM_EXPORT char *simFaults() {
  const Lock lock;
  return give_text(log().faults_as_json());
}

SIM_EXPORT char *simLive() {
  const Lock lock;
  return give_text(live_as_json());
}

SIM_EXPORT void simFreeText(char *text) {
  free(text);
}

SIM_EXPORT void simClearLog() {
  const Lock lock;
  log().calls.clear();
}

SIM_EXPORT void simClearFaults() {
  const Lock lock;
  log().faults.clear();
}

SIM_EXPORT void simInject(const char *name,
                          int code,
                          int ignore,
                          int nth,
                          int count) {
  const Lock lock;
  log().injections.push_back(
      {name, code, ignore != 0, nth - 1, count > 0 ? count : -1});
}

SIM_EXPORT void simClearInjections() {
  const Lock lock;
  log().injections.clear();
}

SIM_EXPORT int simConfigure(const char *name, int value) {
  const Lock lock;
  const std::string field = name;
  if (field == "memory_pools") {
    config().memory_pools = value != 0;
  } else if (field == "free_synchronizes") {
    config().free_synchronizes = value != 0;
  } else if (field == "driver_version") {
    config().driver_version = value;
  } else if (field == "compute_capability") {
    config().compute_capability = value;
  } else if (field == "memory_mb") {
    config().memory_mb = (size_t)value;
  } else {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

// --- the order of operations -----------------------------------------------

SIM_EXPORT void simSetOrder(int order, unsigned seed) {
  const Lock lock;
  set_order((Order)order, seed);
  make_progress();
}

SIM_EXPORT int simSetPolicy(CUstream stream, int device, int policy) {
  return controlled(
      [=] { to_stream(stream, context_of(device)).policy = (Policy)policy; });
}

SIM_EXPORT void simClearPolicies() {
  const Lock lock;
  for (Stream *stream : objects().streams.all()) {
    stream->policy = Policy::kDefault;
  }
}

SIM_EXPORT void simDrain() {
  const Lock lock;
  run_everything();
}

SIM_EXPORT int simRun(CUstream stream, int device, int count) {
  return controlled(
      [=] { run_some(to_stream(stream, context_of(device)), count); });
}

SIM_EXPORT int simPending(CUstream stream, int device) {
  const Lock lock;
  return pending_in(to_stream(stream, context_of(device)));
}

// --- another library's work ------------------------------------------------

SIM_EXPORT CUstream simStreamCreate(int device, int non_blocking) {
  const Lock lock;
  return to_handle<CUstream>(
      make_stream(*context_of(device), non_blocking == 0));
}

SIM_EXPORT int simKernel(CUstream stream,
                         int device,
                         int kind,
                         int type,
                         CUdeviceptr ptr,
                         size_t count,
                         double value) {
  return controlled([=] {
    const Kernel kernel{(KernelKind)kind, (ElementType)type, ptr, count, value};
    enqueue_kernel(to_stream(stream, context_of(device)), kernel,
                   kernel.kind == KernelKind::kFill ? "a foreign fill"
                                                    : "a foreign addition");
  });
}

SIM_EXPORT int simCopy(CUstream stream,
                       int device,
                       CUdeviceptr to,
                       CUdeviceptr from,
                       size_t size) {
  return controlled([=] {
    const std::string label = "a foreign copy";
    enqueue_copy(to_stream(stream, context_of(device)),
                 device_place(to, size, label), device_place(from, size, label),
                 size, label);
  });
}

// Reads when the stream comes to it. Gives a number for simSnapshotResult.
SIM_EXPORT int simSnapshot(CUstream stream,
                           int device,
                           CUdeviceptr ptr,
                           size_t size) {
  static int next = 0;
  const int id = ++next;
  controlled([=] {
    Stream &reader = to_stream(stream, context_of(device));
    const std::string label = "a foreign read";
    const Range range = device_place(ptr, size, label).range;
    check_reachable(range, reader, label);
    enqueue(reader, label, {range},
            [=] { snapshots()[id] = std::string(range.bytes(), range.size); });
  });
  return id;
}

// Whether the snapshot was taken; it is given out once.
SIM_EXPORT int simSnapshotResult(int id, char *bytes, size_t size) {
  const Lock lock;
  const auto found = snapshots().find(id);
  if (found == snapshots().end()) {
    return 0;
  }
  std::memcpy(bytes, found->second.data(),
              std::min(size, found->second.size()));
  snapshots().erase(found);
  return 1;
}

SIM_EXPORT void simEmulate(const char *part,
                           int kind,
                           int type,
                           CUdeviceptr ptr,
                           size_t count,
                           double value) {
  const Lock lock;
  emulate(part, {(KernelKind)kind, (ElementType)type, ptr, count, value});
}

SIM_EXPORT void simClearEmulations() {
  const Lock lock;
  clear_emulations();
}

// --- memory ----------------------------------------------------------------

// Another library's memory, as from its own cache: no call of the driver.
SIM_EXPORT CUdeviceptr simAllocate(int kind, int device, size_t size) {
  const Lock lock;
  const auto allocation =
      memory().allocate((MemoryKind)kind, context_of(device), size);
  return allocation != nullptr ? allocation->address : 0;
}

// The library may give the memory to somebody else at once: nothing may be
// using it.
SIM_EXPORT int simReclaim(CUdeviceptr ptr) {
  return controlled([=] {
    const Range range = device_place(ptr, 1, "reclaiming").range;
    report_users(*range.allocation);
    memory().release(*range.allocation);
  });
}

// The bytes as they are now, whatever is pending.
SIM_EXPORT int simPeek(CUdeviceptr ptr, char *bytes, size_t size) {
  return controlled([=] {
    const Range range = device_place(ptr, size, "a look of the test").range;
    std::memcpy(bytes, range.bytes(), size);
  });
}

SIM_EXPORT int simPoke(CUdeviceptr ptr, const char *bytes, size_t size) {
  return controlled([=] {
    const Range range = device_place(ptr, size, "a write of the test").range;
    std::memcpy(range.bytes(), bytes, size);
  });
}
