#include "schedule.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <thread>

#include "capture.h"
#include "log.h"

namespace sim {

namespace {

struct Scheduler {
  std::mutex mutex;
  Order order{Order::kProgram};
  std::mt19937 random;
  // In random order: one call in so many lets operations run by themselves.
  unsigned idleness{1};
  uint64_t next_id{1};
  // By id. An operation comes after those it waits for.
  std::map<uint64_t, OperationPtr> pending;
};

Scheduler &scheduler() {
  static auto *instance = new Scheduler();
  return *instance;
}

thread_local bool host_function_runs = false;

bool is_ready(const OperationPtr &operation) {
  auto &before = operation->before;
  before.erase(std::remove_if(before.begin(), before.end(), is_done),
               before.end());
  return before.empty() && !operation->running;
}

void add_pending(std::vector<OperationPtr> *list, const OperationPtr &other) {
  if (other != nullptr && !other->done) {
    list->push_back(other);
  }
}

// The order that streams alone give: the stream's own, and the legacy default
// stream with the blocking streams of its context.
std::vector<OperationPtr> predecessors(const Stream &stream) {
  std::vector<OperationPtr> before;
  add_pending(&before, stream.tail);
  if (&stream == stream.context->legacy) {
    for (const Stream *other : stream.context->streams) {
      if (other->blocking) {
        add_pending(&before, other->tail);
      }
    }
  } else if (stream.blocking) {
    add_pending(&before, stream.context->legacy->tail);
  }
  return before;
}

// A pool's memory is there once its allocation has run.
void check_allocated(const OperationPtr &operation) {
  for (const Range &range : operation->ranges) {
    const OperationPtr &made = range.allocation->allocated_by;
    if (!is_done(made) && made != operation && !comes_after(operation, made)) {
      report("USE_BEFORE_ALLOCATED",
             operation->label + " is not ordered after the allocation of " +
                 range.allocation->describe());
    }
  }
}

bool can_use_all(const Operation &operation) {
  for (const Range &range : operation.ranges) {
    if (range.allocation->freed) {
      report("USE_AFTER_FREE",
             operation.label + " ran: " + range.allocation->describe());
      return false;
    }
  }
  return true;
}

void run_work(Operation &operation) {
  if (!operation.unlocked) {
    operation.work();
    return;
  }
  scheduler().mutex.unlock();
  host_function_runs = true;
  operation.work();
  host_function_runs = false;
  scheduler().mutex.lock();
}

void run_one(const OperationPtr &operation) {
  operation->running = true;
  if (operation->work && can_use_all(*operation)) {
    run_work(*operation);
  }
  operation->done = true;
  operation->work = nullptr;
  operation->ranges.clear();
  operation->before.clear();
  scheduler().pending.erase(operation->id);
}

// Another thread is inside a function of the host.
void wait_while_running(const OperationPtr &operation) {
  while (operation->running && !operation->done) {
    scheduler().mutex.unlock();
    std::this_thread::yield();
    scheduler().mutex.lock();
  }
}

using Operations = std::map<uint64_t, OperationPtr>;

void add_with_needs(Operations *needed, const OperationPtr &last) {
  std::vector<OperationPtr> open{last};
  while (!open.empty()) {
    const OperationPtr operation = open.back();
    open.pop_back();
    if (is_done(operation) ||
        !needed->emplace(operation->id, operation).second) {
      continue;
    }
    open.insert(open.end(), operation->before.begin(), operation->before.end());
  }
}

OperationPtr pick(const Operations &operations) {
  std::vector<OperationPtr> ready;
  for (const auto &[id, operation] : operations) {
    if (is_ready(operation)) {
      ready.push_back(operation);
    }
  }
  if (ready.empty()) {
    return nullptr;
  }
  return ready[scheduler().random() % ready.size()];
}

void run_by_chance(Operations needed) {
  while (!needed.empty()) {
    const OperationPtr operation = pick(needed);
    if (operation != nullptr) {
      run_one(operation);
      needed.erase(operation->id);
      continue;
    }
    for (auto it = needed.begin(); it != needed.end();) {
      wait_while_running(it->second);
      it = is_done(it->second) ? needed.erase(it) : std::next(it);
    }
  }
}

void run_in_order(const Operations &needed) {
  for (const auto &[id, operation] : needed) {
    wait_while_running(operation);
    if (!operation->done) {
      run_one(operation);
    }
  }
}

// By value: running takes operations out of the table of pending ones.
void run_all_of(Operations needed) {
  if (scheduler().order == Order::kRandom) {
    run_by_chance(std::move(needed));
  } else {
    run_in_order(needed);
  }
}

bool runs_by_itself(const OperationPtr &operation) {
  const Policy policy = operation->stream->policy;
  if (policy == Policy::kDefault) {
    return scheduler().order == Order::kProgram;
  }
  return policy == Policy::kEarly;
}

// The first operation that may run and does so without being waited for.
OperationPtr next_by_itself() {
  for (const auto &[id, operation] : scheduler().pending) {
    if (runs_by_itself(operation) && is_ready(operation)) {
      return operation;
    }
  }
  return nullptr;
}

void run_a_few_by_chance() {
  if (scheduler().random() % scheduler().idleness != 0) {
    return;
  }
  Operations chosen_from;
  for (const auto &[id, operation] : scheduler().pending) {
    if (operation->stream->policy != Policy::kLate) {
      chosen_from[id] = operation;
    }
  }
  for (unsigned left = scheduler().random() % 4; left > 0; left--) {
    const OperationPtr operation = pick(chosen_from);
    if (operation == nullptr) {
      return;
    }
    run_one(operation);
    chosen_from.erase(operation->id);
  }
}

}  // namespace

Lock::Lock() {
  scheduler().mutex.lock();
}

Lock::~Lock() {
  scheduler().mutex.unlock();
}

bool in_host_function() {
  return host_function_runs;
}

void set_order(Order order, unsigned seed) {
  scheduler().order = order;
  scheduler().random.seed(seed);
  // Some seeds give a fast device, others one that is almost always late.
  scheduler().idleness = 1 << (scheduler().random() % 5);
}

bool is_done(const OperationPtr &operation) {
  return operation == nullptr || operation->done;
}

OperationPtr enqueue(Stream &stream,
                     std::string label,
                     std::vector<Range> ranges,
                     std::function<void()> work,
                     std::vector<OperationPtr> after) {
  auto operation = std::make_shared<Operation>();
  operation->stream = &stream;
  operation->label = std::move(label);
  if (stream.capture != nullptr) {
    stream.capture->nodes.push_back(operation->label);
    return operation;
  }
  check_no_implicit_capture(stream);
  operation->ranges = std::move(ranges);
  operation->work = std::move(work);
  operation->before = predecessors(stream);
  for (const OperationPtr &other : after) {
    add_pending(&operation->before, other);
  }
  operation->id = scheduler().next_id++;
  check_allocated(operation);
  stream.tail = operation;
  scheduler().pending[operation->id] = operation;
  return operation;
}

void run_until(const OperationPtr &operation) {
  Operations needed;
  add_with_needs(&needed, operation);
  run_all_of(needed);
}

void run_stream(Stream &stream) {
  run_until(stream.tail);
}

void run_context(Context &context) {
  Operations needed;
  for (const Stream *stream : context.streams) {
    add_with_needs(&needed, stream->tail);
  }
  run_all_of(needed);
}

void run_everything() {
  run_all_of(scheduler().pending);
}

void run_some(Stream &stream, int count) {
  std::vector<OperationPtr> own;
  for (const auto &[id, operation] : scheduler().pending) {
    if (operation->stream == &stream && (int)own.size() < count) {
      own.push_back(operation);
    }
  }
  for (const OperationPtr &operation : own) {
    run_until(operation);
  }
}

void make_progress() {
  if (scheduler().order == Order::kRandom) {
    run_a_few_by_chance();
  }
  while (const OperationPtr operation = next_by_itself()) {
    run_one(operation);
  }
}

int pending_in(const Stream &stream) {
  int count = 0;
  for (const auto &[id, operation] : scheduler().pending) {
    count += operation->stream == &stream;
  }
  return count;
}

std::vector<OperationPtr> users_of(const Allocation &allocation) {
  std::vector<OperationPtr> users;
  for (const auto &[id, operation] : scheduler().pending) {
    for (const Range &range : operation->ranges) {
      if (range.allocation.get() == &allocation) {
        users.push_back(operation);
        break;
      }
    }
  }
  return users;
}

void report_users(const Allocation &allocation) {
  for (const OperationPtr &user : users_of(allocation)) {
    report("FREE_WHILE_IN_USE",
           user->label + " is pending and uses " + allocation.describe());
  }
}

bool comes_after(const OperationPtr &operation, const OperationPtr &first) {
  Operations needed;
  add_with_needs(&needed, operation);
  return is_done(first) || needed.count(first->id) > 0;
}

}  // namespace sim
