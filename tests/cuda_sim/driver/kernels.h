#pragma once

#include <string>
#include <vector>

#include "context.h"

// The few kernels that have an effect: those of another library, which the test
// enqueues; stand-ins that the test gives for kernels of Taichi; and those of
// Taichi's runtime whose results the host reads.

namespace sim {

enum class KernelKind : int { kFill, kAdd };
enum class ElementType : int { kInt32, kFloat32 };

// Work on `count` elements at `ptr`.
struct Kernel {
  KernelKind kind{KernelKind::kFill};
  ElementType type{ElementType::kInt32};
  CUdeviceptr ptr{0};
  size_t count{0};
  double value{0};
};

OperationPtr enqueue_kernel(Stream &stream,
                            const Kernel &kernel,
                            const std::string &label);

// A launch of a kernel with `part` in its name does this.
void emulate(const std::string &part, const Kernel &kernel);
void clear_emulations();

// The entry points in the text of a PTX image.
std::vector<std::string> kernels_in(const char *image);

// What a launch does. `arguments` point at the values of the parameters.
void launch(Stream &stream, const std::string &name, void **arguments);

}  // namespace sim
