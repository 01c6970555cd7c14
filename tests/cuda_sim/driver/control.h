#pragma once

namespace sim {

// Writes what is to be reported at exit, and makes every later call fail.
void leave_process();

}  // namespace sim
