// Debian's spdlog uses the system's fmt and ships no bundled copy, but Taichi
// includes the bundled path.
#pragma once

#include <fmt/color.h>
