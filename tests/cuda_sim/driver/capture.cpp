#include "capture.h"

#include <sys/syscall.h>
#include <unistd.h>

#include "log.h"

namespace sim {

namespace {

thread_local int thread_mode = CAPTURE_MODE_GLOBAL;

int this_thread() {
  return (int)syscall(SYS_gettid);
}

[[noreturn]] void spoil(Capture &capture,
                        CUresult code,
                        const std::string &kind,
                        const std::string &message) {
  capture.invalidated = true;
  fail(code, kind, message);
}

bool forbids_unsafe_calls(const Capture &capture) {
  if (capture.mode == CAPTURE_MODE_RELAXED ||
      thread_mode == CAPTURE_MODE_RELAXED) {
    return false;
  }
  const bool everywhere =
      capture.mode == CAPTURE_MODE_GLOBAL && thread_mode == CAPTURE_MODE_GLOBAL;
  return everywhere || capture.thread == this_thread();
}

}  // namespace

void begin_capture(Stream &stream, int mode) {
  if (&stream == stream.context->legacy) {
    fail(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CAPTURE_UNSUPPORTED",
         "the legacy default stream cannot be captured");
  }
  stream.capture = std::make_shared<Capture>();
  stream.capture->mode = mode;
  stream.capture->thread = this_thread();
}

std::vector<std::string> end_capture(Stream &stream) {
  const auto capture = stream.capture;
  if (capture == nullptr) {
    fail(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  }
  capture->ended = true;
  for (Stream *other : stream.context->streams) {
    if (other->capture == capture) {
      other->capture = nullptr;
    }
  }
  if (capture->invalidated) {
    fail(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  }
  return capture->nodes;
}

void check_no_implicit_capture(const Stream &stream) {
  if (&stream != stream.context->legacy) {
    return;
  }
  for (const Stream *other : stream.context->streams) {
    if (other->blocking && other->capture != nullptr) {
      spoil(*other->capture, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
            "CAPTURE_IMPLICIT",
            "work on the legacy default stream while a blocking stream is "
            "being captured");
    }
  }
}

void check_not_captured(const Stream &stream, const std::string &what) {
  if (stream.capture != nullptr) {
    spoil(*stream.capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
          "CAPTURE_UNSUPPORTED", what + " of a stream that is being captured");
  }
}

void check_safe_in_capture(const std::string &what) {
  for (const Stream *stream : objects().streams.all()) {
    if (stream->capture != nullptr && forbids_unsafe_calls(*stream->capture)) {
      spoil(*stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
            "CAPTURE_UNSAFE_CALL", what + " while a stream is being captured");
    }
  }
}

bool is_captured(const Stream &stream) {
  return stream.capture != nullptr;
}

int exchange_thread_mode(int mode) {
  const int former = thread_mode;
  thread_mode = mode;
  return former;
}

}  // namespace sim
