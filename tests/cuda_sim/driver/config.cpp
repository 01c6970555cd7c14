#include "config.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>

namespace sim {

namespace {

long number_from(const char *name, long otherwise) {
  const char *text = std::getenv(name);
  return text != nullptr && *text != '\0' ? std::strtol(text, nullptr, 10)
                                          : otherwise;
}

// The ordinal that an entry of CUDA_VISIBLE_DEVICES names, or -1.
int to_ordinal(const std::string &entry) {
  char *end = nullptr;
  const long ordinal = std::strtol(entry.c_str(), &end, 10);
  const bool whole = end != entry.c_str() && *end == '\0';
  return whole && ordinal >= 0 && ordinal < config().devices ? (int)ordinal
                                                             : -1;
}

}  // namespace

Config::Config() {
  devices = (int)number_from("CUDA_SIM_DEVICES", devices);
  memory_pools = number_from("CUDA_SIM_MEMORY_POOLS", memory_pools) != 0;
  compute_capability =
      (int)number_from("CUDA_SIM_COMPUTE_CAPABILITY", compute_capability);
  driver_version = (int)number_from("CUDA_SIM_DRIVER_VERSION", driver_version);
  memory_mb = (size_t)number_from("CUDA_SIM_MEMORY_MB", (long)memory_mb);
  free_synchronizes =
      number_from("CUDA_SIM_FREE_SYNCHRONIZES", free_synchronizes) != 0;
  const char *path = std::getenv("CUDA_SIM_REPORT");
  report = path != nullptr ? path : "";
}

Config &config() {
  static auto *instance = new Config();
  return *instance;
}

std::vector<int> visible_devices() {
  std::vector<int> visible;
  const char *text = std::getenv("CUDA_VISIBLE_DEVICES");
  if (text == nullptr) {
    for (int i = 0; i < config().devices; i++) {
      visible.push_back(i);
    }
    return visible;
  }
  std::istringstream entries(text);
  std::string entry;
  // The list ends before its first entry that names no device; a device named
  // twice hides them all.
  while (std::getline(entries, entry, ',')) {
    const int ordinal = to_ordinal(entry);
    if (ordinal < 0) {
      break;
    }
    if (std::count(visible.begin(), visible.end(), ordinal) > 0) {
      return {};
    }
    visible.push_back(ordinal);
  }
  return visible;
}

}  // namespace sim
