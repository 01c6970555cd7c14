#include "context.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "json.h"
#include "log.h"
#include "memory.h"
#include "schedule.h"

namespace sim {

Objects &objects() {
  static auto *instance = new Objects();
  return *instance;
}

std::vector<Context *> &context_stack() {
  thread_local std::vector<Context *> stack;
  return stack;
}

Context *current_context() {
  auto &stack = context_stack();
  return stack.empty() ? nullptr : stack.back();
}

Context &need_context() {
  Context *context = current_context();
  if (context == nullptr) {
    fail(CUDA_ERROR_INVALID_CONTEXT, "NO_CONTEXT",
         "this thread has no current context");
  }
  if (!context->alive) {
    fail(CUDA_ERROR_INVALID_CONTEXT, "STALE_HANDLE",
         "the current context was destroyed");
  }
  return *context;
}

Stream *make_stream(Context &context, bool blocking) {
  Stream *stream = objects().streams.make();
  stream->context = &context;
  stream->blocking = blocking;
  context.streams.push_back(stream);
  return stream;
}

Context *retain_primary(int device) {
  Context *&context = objects().primary[device];
  if (context == nullptr || !context->alive) {
    context = objects().contexts.make();
    context->device = device;
    context->primary = true;
    context->legacy = make_stream(*context, true);
  }
  context->retains++;
  return context;
}

void destroy_context(Context &context) {
  for (Stream *stream : context.streams) {
    run_stream(*stream);
    stream->alive = false;
  }
  for (Event *event : objects().events.all()) {
    event->alive = event->alive && event->context != &context;
  }
  memory().release_all(&context);
  context.alive = false;
}

namespace {

Stream &per_thread_stream(Context &context) {
  Stream *&stream = context.per_thread[(int)syscall(SYS_gettid)];
  if (stream == nullptr) {
    stream = make_stream(context, true);
  }
  return *stream;
}

}  // namespace

Stream &to_stream(CUstream handle, Context *context) {
  const auto number = reinterpret_cast<uintptr_t>(handle);
  if (number <= STREAM_PER_THREAD) {
    Context &current = context != nullptr ? *context : need_context();
    return number == STREAM_PER_THREAD ? per_thread_stream(current)
                                       : *current.legacy;
  }
  Stream *stream = objects().streams.find(handle);
  if (stream == nullptr || !stream->alive) {
    fail(CUDA_ERROR_INVALID_HANDLE, "STALE_HANDLE",
         "stream " + hex(number) +
             (stream ? " was destroyed" : " was never created"));
  }
  return *stream;
}

Stream &to_stream(CUstream handle) {
  return to_stream(handle, nullptr);
}

Event &to_event(CUevent handle) {
  Event *event = objects().events.find(handle);
  if (event == nullptr || !event->alive) {
    fail(CUDA_ERROR_INVALID_HANDLE, "STALE_HANDLE",
         "event " + hex(reinterpret_cast<uintptr_t>(handle)) +
             (event ? " was destroyed" : " was never created"));
  }
  return *event;
}

}  // namespace sim
