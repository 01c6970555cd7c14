#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "config.h"
#include "context.h"
#include "json.h"
#include "log.h"

namespace sim {

namespace {

constexpr size_t kReservation = size_t(1) << 40;
constexpr size_t kPage = 4096;
// The driver promises no more than 256 bytes of alignment. Half a page keeps
// callers from taking more for granted.
constexpr size_t kOffsetInPage = 512;
// Fresh memory holds this; only so much of it, to leave large blocks cheap.
constexpr int kPoison = 0xa5;
constexpr size_t kPoisonedBytes = size_t(1) << 20;
// Freed allocations that are known by name.
constexpr size_t kFreedKept = 50000;

size_t round_to_pages(size_t size) {
  return (size + kPage - 1) / kPage * kPage;
}

char *map_bytes(size_t size, int protection) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void *bytes = mmap(nullptr, size, protection, flags, -1, 0);
  return bytes != MAP_FAILED ? static_cast<char *>(bytes) : nullptr;
}

bool is_host_accessible(MemoryKind kind) {
  return kind == MemoryKind::kManaged || kind == MemoryKind::kPinned;
}

}  // namespace

const char *to_string(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kDevice:
      return "device";
    case MemoryKind::kPool:
      return "pool";
    case MemoryKind::kManaged:
      return "managed";
    case MemoryKind::kPinned:
      return "pinned";
  }
  return "unknown";
}

std::string Allocation::describe() const {
  return "allocation " + std::to_string(id) + " (" + to_string(kind) +
         " memory of device " + std::to_string(device) + ", " +
         std::to_string(size) + " bytes at " + hex(address) + ")";
}

Memory::Memory() {
  reservation_ = reinterpret_cast<CUdeviceptr>(map_bytes(kReservation, 0));
  next_ = reservation_ + kPage;
}

std::shared_ptr<Allocation> Memory::allocate(MemoryKind kind,
                                             Context *context,
                                             size_t size) {
  const size_t capacity = config().memory_mb << 20;
  if (size > capacity - live_bytes_[context->device]) {
    return nullptr;
  }
  auto allocation = std::make_shared<Allocation>();
  allocation->kind = kind;
  allocation->id = next_id_;
  allocation->size = size;
  allocation->device = context->device;
  allocation->context = context;
  allocation->bytes = map_bytes(round_to_pages(size), PROT_READ | PROT_WRITE);
  if (allocation->bytes == nullptr) {
    return nullptr;
  }
  std::memset(allocation->bytes, kPoison, std::min(size, kPoisonedBytes));
  if (is_host_accessible(kind)) {
    allocation->address = reinterpret_cast<CUdeviceptr>(allocation->bytes);
  } else {
    allocation->address = next_ + kOffsetInPage;
    next_ += round_to_pages(kOffsetInPage + size) + kPage;
  }
  next_id_++;
  live_bytes_[allocation->device] += size;
  table_[allocation->address] = allocation;
  return allocation;
}

void Memory::release(Allocation &allocation) {
  if (is_host_accessible(allocation.kind)) {
    // The address must not come back, and the host must not touch it.
    madvise(allocation.bytes, round_to_pages(allocation.size), MADV_DONTNEED);
    mprotect(allocation.bytes, round_to_pages(allocation.size), PROT_NONE);
  } else {
    munmap(allocation.bytes, round_to_pages(allocation.size));
  }
  live_bytes_[allocation.device] -= allocation.size;
  allocation.bytes = nullptr;
  allocation.free_requested = true;
  allocation.freed = true;
  allocation.allocated_by.reset();
  freed_.push_back(allocation.address);
  if (freed_.size() == 2 * kFreedKept) {
    forget_oldest_freed();
  }
}

void Memory::forget_oldest_freed() {
  for (size_t i = 0; i < kFreedKept; i++) {
    table_.erase(freed_[i]);
  }
  freed_.erase(freed_.begin(), freed_.begin() + kFreedKept);
}

std::shared_ptr<Allocation> Memory::find(CUdeviceptr address) const {
  auto after = table_.upper_bound(address);
  if (after == table_.begin()) {
    return nullptr;
  }
  const auto &allocation = std::prev(after)->second;
  const size_t extent = std::max<size_t>(allocation->size, 1);
  return address < allocation->address + extent ? allocation : nullptr;
}

std::shared_ptr<Allocation> Memory::find_start(CUdeviceptr address) const {
  auto found = table_.find(address);
  return found != table_.end() ? found->second : nullptr;
}

bool Memory::is_reserved(CUdeviceptr address) const {
  return address >= reservation_ && address < reservation_ + kReservation;
}

Range Memory::resolve(CUdeviceptr address,
                      size_t size,
                      const std::string &what) {
  auto allocation = find(address);
  if (allocation == nullptr) {
    report(is_reserved(address) ? "OUT_OF_BOUNDS" : "NOT_DEVICE_MEMORY",
           what + ": " + hex(address) + " is in no allocation");
    return {};
  }
  if (allocation->free_requested) {
    report("USE_AFTER_FREE", what + ": " + allocation->describe());
    return {};
  }
  const size_t offset = address - allocation->address;
  if (size > allocation->size - offset) {
    report("OUT_OF_BOUNDS", what + ": " + std::to_string(size) +
                                " bytes at offset " + std::to_string(offset) +
                                " of " + allocation->describe());
    return {};
  }
  return {allocation, offset, size};
}

std::vector<std::shared_ptr<Allocation>> Memory::live() const {
  std::vector<std::shared_ptr<Allocation>> found;
  for (const auto &[address, allocation] : table_) {
    if (!allocation->freed) {
      found.push_back(allocation);
    }
  }
  return found;
}

void Memory::release_all(const Context *context) {
  for (const auto &allocation : live()) {
    if (allocation->context == context) {
      release(*allocation);
    }
  }
}

Memory &memory() {
  static auto *instance = new Memory();
  return *instance;
}

}  // namespace sim
