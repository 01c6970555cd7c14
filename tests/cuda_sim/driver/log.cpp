#include "log.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "json.h"

namespace sim {

namespace {

// Loops of a hundred thousand calls must not look like a leak of the caller's.
constexpr size_t kCallsKept = 20000;
constexpr size_t kFaultsKept = 1000;

std::string as_json(const CallRecord &call) {
  std::string json = "{\"sequence\":" + std::to_string(call.sequence) +
                     ",\"thread\":" + std::to_string(call.thread) +
                     ",\"name\":" + quote(call.name) +
                     ",\"result\":" + std::to_string(call.result) +
                     ",\"blocking\":" + (call.blocking ? "true" : "false");
  for (const auto &[name, value] : call.arguments) {
    json += "," + quote(name) + ":" + value;
  }
  return json + "}";
}

std::string as_json(const Fault &fault) {
  return "{\"kind\":" + quote(fault.kind) +
         ",\"message\":" + quote(fault.message) +
         ",\"sequence\":" + std::to_string(fault.sequence) +
         ",\"call\":" + quote(fault.call) + "}";
}

template <typename Items>
std::string list_as_json(const Items &items) {
  std::string json = "[";
  for (const auto &item : items) {
    json += (json.size() > 1 ? ",\n" : "") + as_json(item);
  }
  return json + "]";
}

}  // namespace

CallRecord &Log::begin(const char *name, Arguments arguments) {
  if (calls.size() == kCallsKept) {
    calls.pop_front();
  }
  CallRecord call;
  call.sequence = next_sequence++;
  call.thread = (int)syscall(SYS_gettid);
  call.name = name;
  call.arguments = std::move(arguments);
  calls.push_back(std::move(call));
  return calls.back();
}

const Injection *Log::take_injection(const std::string &name) {
  for (Injection &injection : injections) {
    if (injection.name != name || injection.count == 0) {
      continue;
    }
    if (injection.skip > 0) {
      injection.skip--;
      continue;
    }
    if (injection.count > 0) {
      injection.count--;
    }
    return &injection;
  }
  return nullptr;
}

std::string Log::calls_as_json() const {
  return list_as_json(calls);
}

std::string Log::faults_as_json() const {
  return list_as_json(faults);
}

thread_local const CallRecord *current_call = nullptr;

Log &log() {
  static auto *instance = new Log();
  return *instance;
}

void report(const std::string &kind, const std::string &message) {
  if (log().faults.size() == kFaultsKept) {
    return;
  }
  Fault fault{kind, message, 0, "control"};
  if (current_call != nullptr) {
    fault.sequence = current_call->sequence;
    fault.call = current_call->name;
  }
  log().faults.push_back(std::move(fault));
}

void fail(CUresult code) {
  throw Failure{code};
}

void fail(CUresult code, const std::string &kind, const std::string &message) {
  report(kind, message);
  fail(code);
}

}  // namespace sim
