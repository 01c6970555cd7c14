#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "abi.h"

// The memory of the simulated machine.
//
// The address of device memory is one in a reservation that nobody may touch:
// the host that does so dies of it. The bytes lie elsewhere. An address is
// given out once only, so that a stale pointer never hits a later allocation.

namespace sim {

struct Context;
struct Operation;

enum class MemoryKind { kDevice, kPool, kManaged, kPinned };
const char *to_string(MemoryKind kind);

struct Allocation {
  MemoryKind kind;
  uint64_t id;
  CUdeviceptr address;
  size_t size;
  int device;
  Context *context;
  // The bytes; null once freed.
  char *bytes{nullptr};
  // Pool memory: the operation after which it may be used.
  std::shared_ptr<Operation> allocated_by;
  // Set when the program asked to free it, which may be before it is freed.
  bool free_requested{false};
  bool freed{false};

  // "allocation 7 (pool memory, 4096 bytes at 0x...)"
  std::string describe() const;
};

// A part of an allocation that an operation reads or writes.
struct Range {
  std::shared_ptr<Allocation> allocation;
  size_t offset{0};
  size_t size{0};

  char *bytes() const {
    return allocation->bytes + offset;
  }
};

class Memory {
 public:
  Memory();

  // Null where the device has not enough left.
  std::shared_ptr<Allocation> allocate(MemoryKind kind,
                                       Context *context,
                                       size_t size);
  // Gives the bytes back and keeps the address as one that was freed.
  void release(Allocation &allocation);

  // The allocation, live or freed, that holds the address; null for other
  // addresses.
  std::shared_ptr<Allocation> find(CUdeviceptr address) const;
  // The allocation that starts at the address.
  std::shared_ptr<Allocation> find_start(CUdeviceptr address) const;
  // Whether the address lies where device memory is given out.
  bool is_reserved(CUdeviceptr address) const;

  // The range at an address, after the checks that make it one: notes a fault
  // and gives an empty range for any other.
  Range resolve(CUdeviceptr address, size_t size, const std::string &what);

  size_t live_bytes(int device) {
    return live_bytes_[device];
  }
  std::vector<std::shared_ptr<Allocation>> live() const;
  // What a context that is destroyed takes with it.
  void release_all(const Context *context);

 private:
  char *reserve_addresses(size_t size);
  void forget_oldest_freed();

  CUdeviceptr reservation_{0};
  CUdeviceptr next_{0};
  uint64_t next_id_{1};
  std::map<CUdeviceptr, std::shared_ptr<Allocation>> table_;
  std::vector<CUdeviceptr> freed_;
  std::map<int, size_t> live_bytes_;
};

Memory &memory();

}  // namespace sim
