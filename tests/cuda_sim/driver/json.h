#pragma once

#include <cstdint>
#include <string>

namespace sim {

// Text that a JSON document can hold; the simulator writes nothing exotic.
inline std::string quote(const std::string &text) {
  std::string quoted = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
    }
    quoted += (unsigned char)c < 0x20 ? ' ' : c;
  }
  return quoted + "\"";
}

inline std::string hex(uint64_t value) {
  char text[24];
  snprintf(text, sizeof(text), "0x%llx", (unsigned long long)value);
  return text;
}

}  // namespace sim
