// A libFuzzer target: bytes become a DLPack tensor, which the series' code
// judges and copies. Each answer is compared with one that is worked out here,
// in wide integers and element by element.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <vector>

#include "taichi/program/dlpack_tensor.h"

namespace {

namespace dlpack = taichi::lang::dlpack;
using Wide = __int128;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMaxExtent = std::numeric_limits<int32_t>::max();
// No shape is read past this many dimensions; Taichi takes fewer.
constexpr int kMaxExtents = 16;
// Stride 0 makes a big array of a small buffer. Bounds the time of one copy.
constexpr Wide kMaxCopy = 1 << 11;

// What the tensors point into. The sanitizer guards both ends.
constexpr int kBufferSize = 2048;
alignas(64) unsigned char buffer[kBufferSize];

#define EXPECT(condition)                                            \
  do {                                                               \
    if (!(condition)) {                                              \
      std::fprintf(stderr, "%s:%d: wrong: %s\n", __FILE__, __LINE__, \
                   #condition);                                      \
      std::abort();                                                  \
    }                                                                \
  } while (false)

// Takes the input apart. Past its end there are zeros.
class Reader {
 public:
  Reader(const uint8_t *data, std::size_t size) : data_(data), size_(size) {
  }

  template <typename T>
  T take() {
    T value{};
    const std::size_t n = std::min(sizeof(T), size_);
    std::memcpy(&value, data_, n);
    data_ += n;
    size_ -= n;
    return value;
  }

  uint8_t below(int bound) {
    return take<uint8_t>() % bound;
  }

 private:
  const uint8_t *data_;
  std::size_t size_;
};

int64_t take_extent(Reader &in) {
  static constexpr int64_t kOdd[] = {-1,      kMax,       kMin,
                                     1 << 30, kMaxExtent, kMaxExtent + 1};
  const uint8_t kind = in.take<uint8_t>();
  if (kind < 224) {
    return kind % 8;
  }
  return kind < 248 ? kOdd[kind % 6] : in.take<int64_t>();
}

int64_t take_stride(Reader &in) {
  const uint8_t kind = in.take<uint8_t>();
  if (kind < 240) {
    return (int64_t)(kind % 80) - 40;
  }
  return kind < 244 ? kMax : kind < 248 ? kMin : in.take<int64_t>();
}

dlpack::DLDataType take_dtype(Reader &in) {
  static constexpr const char *kNames[] = {"f16", "f32", "f64", "i8",
                                           "i16", "i32", "i64", "u8",
                                           "u16", "u32", "u64", "u1"};
  const uint8_t kind = in.take<uint8_t>();
  if (kind < 240) {
    return dlpack::to_element_type(kNames[kind % 12]).dtype;
  }
  const auto code = in.take<uint8_t>();
  const auto bits = in.take<uint8_t>();
  return {code, bits, in.take<uint16_t>()};
}

// A tensor whose shape and strides lie in blocks of just their size.
struct Input {
  std::unique_ptr<int64_t[]> shape;
  std::unique_ptr<int64_t[]> strides;
  dlpack::DLTensor tensor{};

  explicit Input(Reader &in) {
    const uint8_t ndim = in.take<uint8_t>();
    tensor.ndim = ndim < 240 ? ndim % 14 : in.take<int32_t>();
    tensor.dtype = take_dtype(in);
    tensor.device = {dlpack::kDLCPU, 0};
    const int n = std::max(0, std::min<int>(tensor.ndim, kMaxExtents));
    if (in.below(16) != 0) {
      shape = std::make_unique<int64_t[]>(n);
      for (int i = 0; i < n; i++) {
        shape[i] = take_extent(in);
      }
    }
    take_strides(in, n);
    take_data(in);
    tensor.shape = shape.get();
    tensor.strides = strides.get();
  }

 private:
  void take_strides(Reader &in, int n) {
    const uint8_t kind = in.below(4);
    if (kind == 0) {
      return;
    }
    strides = std::make_unique<int64_t[]>(n);
    uint64_t compact = 1;
    for (int i = n - 1; i >= 0; i--) {
      // Row-major strides, of which some are changed, or any.
      const bool keep = kind == 1 || (kind == 2 && in.below(4) != 0);
      strides[i] = keep ? (int64_t)compact : take_stride(in);
      compact *= shape ? (uint64_t)shape[i] : 1;
    }
  }

  void take_data(Reader &in) {
    const uint8_t kind = in.below(16);
    uintptr_t address = 0;
    if (kind > 1) {
      // In units of the widest element, but for some.
      const int step = kind < 12 ? 8 : 1;
      const auto offset = in.take<uint16_t>() % (kBufferSize / step) * step;
      address = reinterpret_cast<uintptr_t>(buffer) + offset;
    } else if (kind == 1) {
      address = in.take<uintptr_t>();
    }
    tensor.data = reinterpret_cast<void *>(address);
    const uint8_t offset_kind = in.below(16);
    if (offset_kind == 0) {
      tensor.byte_offset = in.take<uint64_t>();
    } else if (offset_kind < 8) {
      tensor.byte_offset = in.take<uint8_t>();
    }
  }
};

// The size of an element, or 0 for a type that Taichi does not share.
int item_size(const dlpack::DLDataType &dtype) {
  const bool is_float = dtype.code == dlpack::kDLFloat && dtype.bits >= 16;
  const bool is_int =
      dtype.code == dlpack::kDLInt || dtype.code == dlpack::kDLUInt;
  const bool is_bool = dtype.code == dlpack::kDLBool && dtype.bits == 8;
  const bool is_width = dtype.bits == 8 || dtype.bits == 16 ||
                        dtype.bits == 32 || dtype.bits == 64;
  const bool shared = (is_float || is_int || is_bool) && is_width;
  return shared && dtype.lanes == 1 ? dtype.bits / 8 : 0;
}

// The number of elements, -1 beyond int64. All extents are within int32.
Wide count_elements(const dlpack::DLTensor &t) {
  Wide count = 1;
  for (int i = 0; i < t.ndim; i++) {
    if (t.shape[i] == 0) {
      return 0;
    }
  }
  for (int i = 0; i < t.ndim && count >= 0; i++) {
    count *= t.shape[i];
    count = count > kMax ? -1 : count;
  }
  return count;
}

bool has_known_form(const dlpack::DLTensor &t) {
  if (item_size(t.dtype) == 0 || t.ndim < 0 || t.ndim > 12 ||
      (t.ndim > 0 && t.shape == nullptr)) {
    return false;
  }
  for (int i = 0; i < t.ndim; i++) {
    if (t.shape[i] < 0 || t.shape[i] > kMaxExtent) {
      return false;
    }
  }
  return true;
}

uintptr_t first_address(const dlpack::DLTensor &t) {
  const auto data = reinterpret_cast<uintptr_t>(t.data);
  return data == 0 ? 0 : data + t.byte_offset;
}

// Whether the offset of every element, in bytes, is within int64, whichever way
// the strides lead.
bool lies_within_int64(const dlpack::DLTensor &t, int size) {
  Wide reach = 0;
  for (int i = 0; i < t.ndim && t.strides != nullptr; i++) {
    const Wide stride = t.strides[i];
    reach += (t.shape[i] - 1) * (stride < 0 ? -stride : stride);
  }
  return reach * size <= kMax;
}

bool is_importable(const dlpack::DLTensor &t) {
  if (!has_known_form(t)) {
    return false;
  }
  const int size = item_size(t.dtype);
  const Wide count = count_elements(t);
  if (count < 0 || count * size > kMax) {
    return false;
  }
  if (count > 0 && !lies_within_int64(t, size)) {
    return false;
  }
  const uintptr_t address = first_address(t);
  return count == 0 || (address != 0 && address % size == 0);
}

bool is_row_major(const dlpack::DLTensor &t, Wide count) {
  Wide below = 1;
  for (int i = t.ndim - 1; i >= 0 && t.strides != nullptr && count > 0; i--) {
    if (t.shape[i] != 1 && t.strides[i] != below) {
      return false;
    }
    below *= t.shape[i];
  }
  return true;
}

// The stride along axis `i`, in elements. One that is never used is 0.
Wide stride_of(const dlpack::DLTensor &t, int i) {
  if (t.shape[i] == 1) {
    return 0;
  }
  if (t.strides != nullptr) {
    return t.strides[i];
  }
  Wide stride = 1;
  for (int j = i + 1; j < t.ndim; j++) {
    stride *= t.shape[j];
  }
  return stride;
}

// Whether every element lies in the buffer.
bool lies_in_buffer(const dlpack::DLTensor &t) {
  const int size = item_size(t.dtype);
  const Wide buffer_begin = reinterpret_cast<uintptr_t>(buffer);
  Wide begin = first_address(t);
  Wide end = begin + size;
  for (int i = 0; i < t.ndim; i++) {
    // Below 2^31 times 2^63 times 8: no overflow.
    const Wide reach = (Wide)(t.shape[i] - 1) * stride_of(t, i) * size;
    (reach < 0 ? begin : end) += reach;
  }
  return begin >= buffer_begin && end <= buffer_begin + kBufferSize;
}

// The elements in row-major order, one at a time.
std::vector<unsigned char> gather(const dlpack::DLTensor &t, int64_t count) {
  const int size = item_size(t.dtype);
  const auto begin = reinterpret_cast<uintptr_t>(buffer);
  std::vector<unsigned char> elements;
  for (int64_t n = 0; n < count; n++) {
    Wide address = first_address(t);
    int64_t rest = n;
    for (int i = t.ndim - 1; i >= 0; i--) {
      address += (rest % t.shape[i]) * stride_of(t, i) * size;
      rest /= t.shape[i];
    }
    const auto offset = (std::size_t)(address - begin);
    elements.insert(elements.end(), buffer + offset, buffer + offset + size);
  }
  return elements;
}

// Whether `function` does not throw SharingError. Its message must say
// something.
template <typename F>
bool passes(F function) {
  try {
    function();
  } catch (const dlpack::SharingError &e) {
    EXPECT(std::strlen(e.what()) > 10);
    return false;
  }
  return true;
}

void check_strides_of_export(const dlpack::DLTensor &t) {
  auto strides = dlpack::compact_strides({t.shape, t.shape + t.ndim});
  dlpack::DLTensor exported = t;
  exported.strides = strides.data();
  EXPECT(dlpack::is_compact(exported));
}

void check_copy(const dlpack::DLTensor &t, int64_t count) {
  // Of just the size that is needed, so that the sanitizer sees a byte too
  // much.
  std::vector<unsigned char> copied((std::size_t)count * item_size(t.dtype));
  dlpack::copy_to_compact(t, copied.data());
  EXPECT(copied == gather(t, count));
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int *, char ***) {
  for (int i = 0; i < kBufferSize; i++) {
    buffer[i] = (unsigned char)(i * 151 + i / 256);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, std::size_t size) {
  Reader in(data, size);
  const Input input(in);
  const dlpack::DLTensor &t = input.tensor;

  const bool importable = passes([&] { dlpack::check_importable(t); });
  EXPECT(importable == is_importable(t));
  if (!importable) {
    return 0;
  }
  const Wide count = count_elements(t);
  EXPECT(dlpack::num_elements(t) == count);
  EXPECT(reinterpret_cast<uintptr_t>(dlpack::first_element(t)) ==
         first_address(t));
  const bool compact = is_row_major(t, count);
  EXPECT(dlpack::is_compact(t) == compact);
  EXPECT(passes([&] { dlpack::check_compact(t); }) == compact);
  check_strides_of_export(t);

  if (count == 0) {
    dlpack::copy_to_compact(t, nullptr);
  } else if (count * item_size(t.dtype) <= kMaxCopy && lies_in_buffer(t)) {
    check_copy(t, (int64_t)count);
  }
  return 0;
}
