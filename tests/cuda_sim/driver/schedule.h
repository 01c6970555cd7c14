#pragma once

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "context.h"
#include "memory.h"

// What the device does, and when. Each enqueued operation knows the operations
// that must come first; within that, the test chooses the order.

namespace sim {

struct Operation {
  uint64_t id{0};
  Stream *stream{nullptr};
  std::string label;
  std::vector<Range> ranges;
  // Does the work. Null: a mark in the stream.
  std::function<void()> work;
  // Those of the operations that must come first which have not run yet.
  std::vector<OperationPtr> before;
  // Runs with the simulator unlocked: a function of the host.
  bool unlocked{false};
  bool running{false};
  bool done{false};
};

enum class Order {
  // Each operation runs as soon as it may: an infinitely fast device.
  kProgram,
  // Each operation runs when the host waits for it, and not before.
  kLate,
  // Between calls a few that may run do, chosen by chance.
  kRandom,
};

void set_order(Order order, unsigned seed);

// Appends an operation to a stream. `after` are operations of other streams
// that it waits for. Gives an operation that never runs where the stream is
// being captured.
OperationPtr enqueue(Stream &stream,
                     std::string label,
                     std::vector<Range> ranges,
                     std::function<void()> work,
                     std::vector<OperationPtr> after = {});

// The host waits for an operation (null: for nothing).
void run_until(const OperationPtr &operation);
void run_stream(Stream &stream);
void run_context(Context &context);
void run_everything();
// Runs the first `count` pending operations of a stream, and what they need.
void run_some(Stream &stream, int count);
// What the order lets run by itself; called after each driver call.
void make_progress();

bool is_done(const OperationPtr &operation);
// The number of pending operations of a stream.
int pending_in(const Stream &stream);

// The pending operations that use an allocation.
std::vector<OperationPtr> users_of(const Allocation &allocation);
// Notes a fault for each of them: the allocation is about to go.
void report_users(const Allocation &allocation);
// Whether `operation` runs after `first` in every order.
bool comes_after(const OperationPtr &operation, const OperationPtr &first);

// The simulator's one lock, which every entry point takes.
class Lock {
 public:
  Lock();
  ~Lock();
  Lock(const Lock &) = delete;
  Lock &operator=(const Lock &) = delete;
};

// Whether this thread is in a function that the driver called.
bool in_host_function();

}  // namespace sim
