#include "abi.h"
#include "call.h"
#include "capture.h"
#include "config.h"

// Streams, events, capture, functions of the host.

using namespace sim;

namespace {

CUresult create_stream(const char *name, CUstream *handle, unsigned flags) {
  return call(name, {{"flags", show(flags)}}, [=](CallRecord &) {
    if (flags > STREAM_NON_BLOCKING) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const bool blocking = (flags & STREAM_NON_BLOCKING) == 0;
    *handle = to_handle<CUstream>(make_stream(need_context(), blocking));
    return CUDA_SUCCESS;
  });
}

// Pending work is carried out all the same.
CUresult destroy_event(const char *name, CUevent handle) {
  return call(name, {{"event", show(handle)}}, [=](CallRecord &) {
    to_event(handle).alive = false;
    return CUDA_SUCCESS;
  });
}

void need_uncaptured(const Event &event) {
  if (event.capture != nullptr) {
    fail(CUDA_ERROR_CAPTURED_EVENT, "CAPTURED_EVENT",
         "using an event that was recorded in a capture");
  }
}

void record_event(Event &event, Stream &stream) {
  if (event.context != stream.context) {
    fail(CUDA_ERROR_INVALID_HANDLE, "WRONG_CONTEXT",
         "an event of one context recorded on a stream of another");
  }
  event.recording = enqueue(stream, "cuEventRecord", {}, nullptr);
  event.capture = stream.capture;
}

void wait_for(Stream &stream, const Event &event) {
  if (event.capture != nullptr && event.capture->ended) {
    need_uncaptured(event);
  }
  if (event.capture != nullptr && !is_captured(stream)) {
    // Here begins the other branch of a capture.
    check_no_implicit_capture(stream);
    stream.capture = event.capture;
  }
  if (is_captured(stream) && event.capture != stream.capture) {
    if (event.recording == nullptr) {
      return;
    }
    stream.capture->invalidated = true;
    fail(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "CAPTURE_ISOLATION",
         "a stream that is being captured waits for an event of none");
  }
  enqueue(stream, "cuStreamWaitEvent", {}, nullptr, {event.recording});
}

}  // namespace

SIM_EXPORT CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
  return create_stream("cuStreamCreate", stream, flags);
}

SIM_EXPORT CUresult cuStreamCreateWithPriority(CUstream *stream,
                                               unsigned flags,
                                               int) {
  return create_stream("cuStreamCreateWithPriority", stream, flags);
}

SIM_EXPORT CUresult cuStreamDestroy_v2(CUstream handle) {
  return call("cuStreamDestroy_v2", {{"stream", show(handle)}},
              [=](CallRecord &) {
                if (reinterpret_cast<uintptr_t>(handle) <= STREAM_PER_THREAD) {
                  return CUDA_ERROR_INVALID_HANDLE;
                }
                to_stream(handle).alive = false;
                return CUDA_SUCCESS;
              });
}

SIM_EXPORT CUresult cuStreamSynchronize(CUstream handle) {
  return call("cuStreamSynchronize", {{"stream", show(handle)}},
              [=](CallRecord &record) {
                record.blocking = true;
                Stream &stream = to_stream(handle);
                check_not_captured(stream, "synchronization");
                check_no_implicit_capture(stream);
                run_stream(stream);
                return CUDA_SUCCESS;
              });
}

SIM_EXPORT CUresult cuStreamQuery(CUstream handle) {
  return call("cuStreamQuery", {{"stream", show(handle)}}, [=](CallRecord &) {
    Stream &stream = to_stream(handle);
    check_not_captured(stream, "asking for the state");
    check_safe_in_capture("asking for the state of a stream");
    return is_done(stream.tail) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  });
}

SIM_EXPORT CUresult cuStreamWaitEvent(CUstream stream,
                                      CUevent event,
                                      unsigned flags) {
  return call("cuStreamWaitEvent",
              {{"stream", show(stream)},
               {"event", show(event)},
               {"flags", show(flags)}},
              [=](CallRecord &) {
                if (flags != 0) {
                  return CUDA_ERROR_INVALID_VALUE;
                }
                wait_for(to_stream(stream), to_event(event));
                return CUDA_SUCCESS;
              });
}

SIM_EXPORT CUresult cuStreamGetCtx(CUstream handle, CUcontext *context) {
  return call("cuStreamGetCtx", {{"stream", show(handle)}}, [=](CallRecord &) {
    *context = to_handle<CUcontext>(to_stream(handle).context);
    return CUDA_SUCCESS;
  });
}

SIM_EXPORT CUresult cuStreamGetFlags(CUstream handle, unsigned *flags) {
  return call("cuStreamGetFlags", {{"stream", show(handle)}},
              [=](CallRecord &) {
                const bool blocking = to_stream(handle).blocking;
                *flags = blocking ? 0u : (unsigned)STREAM_NON_BLOCKING;
                return CUDA_SUCCESS;
              });
}

SIM_EXPORT CUresult cuLaunchHostFunc(CUstream handle,
                                     CUhostFn function,
                                     void *argument) {
  return call(
      "cuLaunchHostFunc", {{"stream", show(handle)}}, [=](CallRecord &) {
        const auto operation = enqueue(to_stream(handle), "cuLaunchHostFunc",
                                       {}, [=] { function(argument); });
        operation->unlocked = true;
        return CUDA_SUCCESS;
      });
}

SIM_EXPORT CUresult cuEventCreate(CUevent *handle, unsigned flags) {
  return call("cuEventCreate", {{"flags", show(flags)}},
              [=](CallRecord &record) {
                constexpr unsigned kDisableTiming = 2;
                Context &context = need_context();
                Event *event = objects().events.make();
                event->context = &context;
                event->timing = (flags & kDisableTiming) == 0;
                *handle = to_handle<CUevent>(event);
                record.arguments.emplace_back("event", show(*handle));
                return CUDA_SUCCESS;
              });
}

SIM_EXPORT CUresult cuEventDestroy(CUevent handle) {
  return destroy_event("cuEventDestroy", handle);
}

SIM_EXPORT CUresult cuEventDestroy_v2(CUevent handle) {
  return destroy_event("cuEventDestroy_v2", handle);
}

SIM_EXPORT CUresult cuEventRecord(CUevent event, CUstream stream) {
  return call("cuEventRecord",
              {{"event", show(event)}, {"stream", show(stream)}},
              [=](CallRecord &) {
                record_event(to_event(event), to_stream(stream));
                return CUDA_SUCCESS;
              });
}

SIM_EXPORT CUresult cuEventQuery(CUevent handle) {
  return call("cuEventQuery", {{"event", show(handle)}}, [=](CallRecord &) {
    const Event &event = to_event(handle);
    check_safe_in_capture("asking for the state of an event");
    need_uncaptured(event);
    return is_done(event.recording) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  });
}

SIM_EXPORT CUresult cuEventSynchronize(CUevent handle) {
  return call("cuEventSynchronize", {{"event", show(handle)}},
              [=](CallRecord &record) {
                record.blocking = true;
                const Event &event = to_event(handle);
                need_uncaptured(event);
                run_until(event.recording);
                return CUDA_SUCCESS;
              });
}

SIM_EXPORT CUresult cuEventElapsedTime(float *milliseconds,
                                       CUevent start,
                                       CUevent end) {
  return call("cuEventElapsedTime",
              {{"start", show(start)}, {"end", show(end)}}, [=](CallRecord &) {
                for (const Event *event : {&to_event(start), &to_event(end)}) {
                  if (!event->timing || event->recording == nullptr) {
                    return CUDA_ERROR_INVALID_HANDLE;
                  }
                  if (!is_done(event->recording)) {
                    return CUDA_ERROR_NOT_READY;
                  }
                }
                *milliseconds = 1;
                return CUDA_SUCCESS;
              });
}

SIM_EXPORT CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) {
  return call("cuStreamBeginCapture_v2",
              {{"stream", show(stream)}, {"mode", show(mode)}},
              [=](CallRecord &) {
                begin_capture(to_stream(stream), mode);
                return CUDA_SUCCESS;
              });
}

// There are no graphs: the handle is null, and what counts is the answer.
SIM_EXPORT CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
  return call("cuStreamEndCapture", {{"stream", show(stream)}},
              [=](CallRecord &) {
                *graph = nullptr;
                end_capture(to_stream(stream));
                return CUDA_SUCCESS;
              });
}

SIM_EXPORT CUresult cuStreamIsCapturing(CUstream handle, int *status) {
  return call("cuStreamIsCapturing", {{"stream", show(handle)}},
              [=](CallRecord &) {
                const auto &capture = to_stream(handle).capture;
                *status = capture == nullptr     ? CAPTURE_STATUS_NONE
                          : capture->invalidated ? CAPTURE_STATUS_INVALIDATED
                                                 : CAPTURE_STATUS_ACTIVE;
                return CUDA_SUCCESS;
              });
}

SIM_EXPORT CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
  return call("cuThreadExchangeStreamCaptureMode", {}, [=](CallRecord &) {
    *mode = exchange_thread_mode(*mode);
    return CUDA_SUCCESS;
  });
}
