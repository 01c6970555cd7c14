#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace sim {

// What the simulated machine is like. Each field is read from an environment
// variable, CUDA_SIM_ and the name in capitals, when the library is loaded.
struct Config {
  int devices{2};
  bool memory_pools{true};
  int compute_capability{75};
  int driver_version{12040};
  size_t memory_mb{8192};
  // Whether cuMemFree waits for pending work, as drivers do without promising
  // it. Without, freeing memory that is in use is a fault.
  bool free_synchronizes{false};
  // The file that gets the faults and the live allocations at exit.
  std::string report;

  Config();
};

Config &config();

// The physical ordinals that the process sees, in its order: the rules of
// CUDA_VISIBLE_DEVICES.
std::vector<int> visible_devices();

}  // namespace sim
