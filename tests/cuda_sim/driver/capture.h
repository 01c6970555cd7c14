#pragma once

#include <string>

#include "context.h"

// Stream capture, as far as it forbids things. A captured operation is noted
// and never run.

namespace sim {

void begin_capture(Stream &stream, int mode);
// Gives the labels of what was captured; fails where a fault spoilt it.
std::vector<std::string> end_capture(Stream &stream);

// Work on the legacy default stream would wait for a blocking stream that is
// being captured.
void check_no_implicit_capture(const Stream &stream);
// For calls that synchronize a stream that is being captured.
void check_not_captured(const Stream &stream, const std::string &what);
// For calls that a capture in the global mode forbids on every thread.
void check_safe_in_capture(const std::string &what);

bool is_captured(const Stream &stream);
// The capture mode of this thread; gives the former one.
int exchange_thread_mode(int mode);

}  // namespace sim
