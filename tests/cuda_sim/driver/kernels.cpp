#include "kernels.h"

#include <cstring>
#include <map>

#include "log.h"
#include "memory.h"
#include "schedule.h"
#include "transfer.h"

namespace sim {

namespace {

struct Emulation {
  std::string part;
  Kernel kernel;
};

std::vector<Emulation> &emulations() {
  static auto *instance = new std::vector<Emulation>();
  return *instance;
}

// --- kernels on elements ---------------------------------------------------

template <typename T>
void run_on(char *bytes, const Kernel &kernel) {
  for (size_t i = 0; i < kernel.count; i++) {
    T element;
    std::memcpy(&element, bytes + i * sizeof(T), sizeof(T));
    element = kernel.kind == KernelKind::kFill ? (T)kernel.value
                                               : (T)(element + kernel.value);
    std::memcpy(bytes + i * sizeof(T), &element, sizeof(T));
  }
}

void run_kernel(char *bytes, const Kernel &kernel) {
  if (kernel.type == ElementType::kInt32) {
    run_on<int32_t>(bytes, kernel);
  } else {
    run_on<float>(bytes, kernel);
  }
}

// --- kernels of Taichi's runtime -------------------------------------------

// The block from which Taichi's runtime allocates where there are no pools.
struct Chunk {
  CUdeviceptr head{0};
  CUdeviceptr tail{0};
};

// By the address of Taichi's runtime object.
std::map<uint64_t, Chunk> &chunks() {
  static auto *instance = new std::map<uint64_t, Chunk>();
  return *instance;
}

template <typename T>
T argument(void **arguments, int index) {
  T value;
  std::memcpy(&value, arguments[index], sizeof(T));
  return value;
}

void enqueue_result(Stream &stream,
                    CUdeviceptr result,
                    std::function<uint64_t()> compute,
                    const std::string &name) {
  const Range range = device_place(result, sizeof(uint64_t), name).range;
  enqueue(stream, name, {range}, [=] {
    const uint64_t value = compute();
    std::memcpy(range.bytes(), &value, sizeof(value));
  });
}

void get_memory_requirements(Stream &stream, void **arguments) {
  // As no kernel runs, any amount does.
  constexpr uint64_t kBytes = 4 << 20;
  enqueue_result(
      stream, argument<CUdeviceptr>(arguments, 0), [] { return kBytes; },
      "runtime_get_memory_requirements");
}

void initialize(Stream &stream, void **arguments) {
  // The runtime object lies at the start of the block made for it.
  const auto runtime = argument<CUdeviceptr>(arguments, 3);
  enqueue_result(
      stream, argument<CUdeviceptr>(arguments, 0), [=] { return runtime; },
      "runtime_initialize");
}

void initialize_memory(Stream &stream, void **arguments) {
  const auto runtime = argument<uint64_t>(arguments, 0);
  const auto size = argument<uint64_t>(arguments, 1);
  const auto block = argument<CUdeviceptr>(arguments, 2);
  enqueue(stream, "runtime_initialize_memory", {},
          [=] { chunks()[runtime] = {block, block + size}; });
}

uint64_t allocate_aligned(uint64_t runtime, uint64_t size, uint64_t alignment) {
  Chunk &chunk = chunks()[runtime];
  const CUdeviceptr found =
      (chunk.head + alignment - 1) / alignment * alignment;
  if (found + size > chunk.tail) {
    report("RUNTIME_OUT_OF_MEMORY",
           "Taichi's preallocated block has no " + std::to_string(size) +
               " bytes left; give ti.init more device_memory_GB");
    return 0;
  }
  chunk.head = found + size;
  return found;
}

void memory_allocate_aligned(Stream &stream, void **arguments) {
  const auto runtime = argument<uint64_t>(arguments, 0);
  const auto size = argument<uint64_t>(arguments, 1);
  const auto alignment = argument<uint64_t>(arguments, 2);
  enqueue_result(
      stream, argument<CUdeviceptr>(arguments, 3),
      [=] { return allocate_aligned(runtime, size, alignment); },
      "runtime_memory_allocate_aligned");
}

using RuntimeKernel = void (*)(Stream &, void **);

RuntimeKernel find_runtime_kernel(const std::string &name) {
  static const std::map<std::string, RuntimeKernel> kernels = {
      {"runtime_get_memory_requirements", &get_memory_requirements},
      {"runtime_initialize", &initialize},
      {"runtime_initialize_memory", &initialize_memory},
      {"runtime_memory_allocate_aligned", &memory_allocate_aligned},
  };
  const auto found = kernels.find(name);
  return found != kernels.end() ? found->second : nullptr;
}

const Emulation *find_emulation(const std::string &name) {
  for (const Emulation &emulation : emulations()) {
    if (name.find(emulation.part) != std::string::npos) {
      return &emulation;
    }
  }
  return nullptr;
}

}  // namespace

OperationPtr enqueue_kernel(Stream &stream,
                            const Kernel &kernel,
                            const std::string &label) {
  constexpr size_t kElementSize = 4;
  const Range range =
      device_place(kernel.ptr, kernel.count * kElementSize, label).range;
  check_reachable(range, stream, label);
  return enqueue(stream, label, {range},
                 [=] { run_kernel(range.bytes(), kernel); });
}

void emulate(const std::string &part, const Kernel &kernel) {
  emulations().push_back({part, kernel});
}

void clear_emulations() {
  emulations().clear();
}

std::vector<std::string> kernels_in(const char *image) {
  const std::string mark = ".entry ";
  std::vector<std::string> names;
  for (const char *at = std::strstr(image, mark.c_str()); at != nullptr;
       at = std::strstr(at, mark.c_str())) {
    at += mark.size();
    names.emplace_back(at, std::strcspn(at, "( \t\r\n"));
  }
  return names;
}

void launch(Stream &stream, const std::string &name, void **arguments) {
  if (const Emulation *emulation = find_emulation(name)) {
    enqueue_kernel(stream, emulation->kernel, name);
  } else if (const RuntimeKernel kernel = find_runtime_kernel(name)) {
    kernel(stream, arguments);
  } else {
    enqueue(stream, name, {}, nullptr);
  }
}

}  // namespace sim
