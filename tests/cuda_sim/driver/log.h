#pragma once

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "abi.h"

// What the program under test asked of the driver, and what it did wrong.

namespace sim {

using Arguments = std::vector<std::pair<const char *, std::string>>;

// An argument as the log shows it: a number.
template <typename T>
std::string show(T value) {
  if constexpr (std::is_pointer_v<T>) {
    return std::to_string(reinterpret_cast<uintptr_t>(value));
  } else {
    return std::to_string(value);
  }
}

struct CallRecord {
  uint64_t sequence{0};
  int thread{0};
  const char *name{nullptr};
  Arguments arguments;
  CUresult result{CUDA_SUCCESS};
  // Whether the host waits for the device in this call.
  bool blocking{false};
};

struct Fault {
  std::string kind;
  std::string message;
  // The call during which it was noticed.
  uint64_t sequence{0};
  std::string call;
};

// An error to return, or an effect to leave out, in calls to come.
struct Injection {
  std::string name;
  CUresult code{CUDA_SUCCESS};
  bool ignore{false};
  long skip{0};   // calls that pass first
  long count{1};  // calls that are hit; negative: all
};

struct Log {
  std::deque<CallRecord> calls;
  std::vector<Fault> faults;
  std::vector<Injection> injections;
  uint64_t next_sequence{1};

  CallRecord &begin(const char *name, Arguments arguments);
  // The injection that hits this call, used up by one; or null.
  const Injection *take_injection(const std::string &name);

  std::string calls_as_json() const;
  std::string faults_as_json() const;
};

Log &log();

// The driver call that this thread is in; null in the simulator's own control.
extern thread_local const CallRecord *current_call;

// Notes a fault; the call goes on.
void report(const std::string &kind, const std::string &message);

// What ends a call with an error code.
struct Failure {
  CUresult code;
};

[[noreturn]] void fail(CUresult code);
// Notes a fault as well.
[[noreturn]] void fail(CUresult code,
                       const std::string &kind,
                       const std::string &message);

}  // namespace sim
