#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "abi.h"

// Devices, contexts, streams and events. Handles are the addresses of these
// objects, which are never freed, so that a stale handle can be told.

namespace sim {

struct Operation;
using OperationPtr = std::shared_ptr<Operation>;

// When a stream's operations run, if nobody waits for them.
enum class Policy { kDefault, kEarly, kLate };

struct Capture {
  int mode{CAPTURE_MODE_GLOBAL};
  bool invalidated{false};
  bool ended{false};
  int thread{0};
  // The operations that the graph would hold.
  std::vector<std::string> nodes;
};

struct Context;

struct Stream {
  Context *context{nullptr};
  // Whether it and the legacy default stream wait for each other.
  bool blocking{true};
  bool alive{true};
  Policy policy{Policy::kDefault};
  // The last operation, pending or not.
  OperationPtr tail;
  std::shared_ptr<Capture> capture;
};

struct Event {
  Context *context{nullptr};
  bool alive{true};
  bool timing{true};
  // The operation of the last recording; null before the first.
  OperationPtr recording;
  std::shared_ptr<Capture> capture;
};

struct Context {
  int device{0};
  bool primary{false};
  int retains{0};
  bool alive{true};
  Stream *legacy{nullptr};
  std::map<int, Stream *> per_thread;
  // All of them, the default ones included.
  std::vector<Stream *> streams;
};

struct Function {
  Context *context{nullptr};
  std::string name;
};

struct Module {
  Context *context{nullptr};
  // The kernels in its image, by name; null until they are asked for.
  std::map<std::string, Function *> kernels;
};

// Every object of a kind, to tell a handle from a wild pointer.
template <typename Object>
class Registry {
 public:
  Object *make() {
    auto *object = new Object();
    objects_.insert(object);
    return object;
  }
  // The object behind a handle, or null.
  template <typename Handle>
  Object *find(Handle handle) const {
    auto *object = reinterpret_cast<Object *>(handle);
    return objects_.count(object) > 0 ? object : nullptr;
  }
  const std::set<Object *> &all() const {
    return objects_;
  }

 private:
  std::set<Object *> objects_;
};

struct Objects {
  Registry<Context> contexts;
  Registry<Stream> streams;
  Registry<Event> events;
  Registry<Module> modules;
  Registry<Function> functions;
  // The primary context of each visible device, made when first retained.
  std::map<int, Context *> primary;
  bool initialized{false};
  // The process is ending, and the driver has gone before its callers.
  bool gone{false};
  std::vector<int> visible;
};

Objects &objects();

// The context stack of this thread.
std::vector<Context *> &context_stack();
// The current context, or null.
Context *current_context();
// The same; a call that cannot do without one fails.
Context &need_context();

Context *retain_primary(int device);
void destroy_context(Context &context);

// A handle or number as a stream; any other is a fault.
Stream &to_stream(CUstream handle);
Stream &to_stream(CUstream handle, Context *context);
Event &to_event(CUevent handle);

template <typename Handle, typename Object>
Handle to_handle(Object *object) {
  return reinterpret_cast<Handle>(object);
}

Stream *make_stream(Context &context, bool blocking);

}  // namespace sim
