#include "c/descriptors.h"

#include <array>
#include <limits>
#include <utility>

namespace smla::c {

namespace {

constexpr std::array<std::pair<smla_dtype, DType>, 8> kDTypes{{{SMLA_F32, DType::kF32},
                                                               {SMLA_F64, DType::kF64},
                                                               {SMLA_BF16, DType::kBF16},
                                                               {SMLA_E4M3, DType::kE4M3},
                                                               {SMLA_U8, DType::kU8},
                                                               {SMLA_I32, DType::kI32},
                                                               {SMLA_I64, DType::kI64},
                                                               {SMLA_BOOL, DType::kBool}}};

// No struct of the interface will ever be larger; a size above this is a forgotten initialisation.
constexpr std::uint64_t kLargestStruct = 4096;

// OpenMP ends the process when it cannot start its threads.
constexpr std::int32_t kMostThreads = 1024;

[[noreturn]] void fail(std::string_view name, const std::string& got, const std::string& expected) {
  throw InvalidArgument(std::string(name) + ": got " + got + ", expected " + expected);
}

/// a * b for numbers of 0 or more. @throws InvalidArgument when it does not fit.
std::int64_t multiply(std::string_view name, std::int64_t a, std::int64_t b) {
  if (b != 0 && a > std::numeric_limits<std::int64_t>::max() / b)
    fail(name, "a tensor of more than 2^63 bytes", "one that memory can hold");
  return a * b;
}

}  // namespace

void check_struct_size(std::string_view name, std::uint64_t size, std::size_t least) {
  if (size < least || size > kLargestStruct) {
    fail(name, "struct_size " + std::to_string(size), "sizeof the struct, " + std::to_string(least) + " or more");
  }
}

void check_unknown_tail(std::string_view name, const unsigned char* first, const unsigned char* last) {
  if (std::any_of(first, last, [](unsigned char byte) { return byte != 0; })) {
    fail(name, "a value in a field that is newer than this library (" + std::string(smla_version()) + ")", "0 there");
  }
}

DType read_dtype(std::string_view name, smla_dtype dtype) {
  for (const auto& [number, type] : kDTypes) {
    if (number == dtype) return type;
  }
  fail(name, "dtype " + std::to_string(dtype), "one of SMLA_F32 (1) to SMLA_BOOL (8)");
}

smla_dtype write_dtype(DType dtype) {
  for (const auto& [number, type] : kDTypes) {
    if (type == dtype) return number;
  }
  return 0;
}

TensorView read_tensor(std::string_view name, const smla_tensor* tensor) {
  if (tensor == nullptr) return {};
  const smla_tensor given = read_struct(name, tensor);
  TensorView view;
  view.data = given.data;
  view.dtype = read_dtype(name, given.dtype);
  if (given.rank < 1 || given.rank > TensorView::kMaxRank) fail(name, "rank " + std::to_string(given.rank), "1 to 4");
  view.rank = given.rank;
  const auto rank = static_cast<std::size_t>(given.rank);
  const bool contiguous = std::all_of(given.strides, given.strides + rank, [](std::int64_t s) { return s == 0; });
  std::int64_t step = 1;
  std::int64_t last_byte = size_of(view.dtype);  // of the element with the largest address; sizes of 0 count as 1
  for (std::size_t i = rank; i-- > 0;) {
    const std::int64_t n = given.shape[i];
    const std::int64_t stride = contiguous ? step : given.strides[i];
    if (n < 0) fail(name, "dimension " + std::to_string(i) + " of " + std::to_string(n), "0 or more");
    if (stride < 0) fail(name, "stride " + std::to_string(i) + " of " + std::to_string(stride), "0 or more");
    view.shape[i] = n;
    view.stride[i] = stride;
    step = multiply(name, step, n);
    const std::int64_t reach =
        multiply(name, multiply(name, std::max<std::int64_t>(n - 1, 0), stride), size_of(view.dtype));
    if (last_byte > std::numeric_limits<std::int64_t>::max() - reach)
      fail(name, "a tensor of more than 2^63 bytes", "one that memory can hold");
    last_byte += reach;
  }
  multiply(name, step, size_of(view.dtype));
  const auto address = reinterpret_cast<std::uintptr_t>(given.data);
  if (address % static_cast<std::uintptr_t>(size_of(view.dtype)) != 0) {
    fail(name, "data that is not aligned", "an address that is a multiple of " + std::to_string(size_of(view.dtype)));
  }
  return view;
}

PagedCache read_cache(std::string_view name, const smla_cache* cache, float default_scale) {
  const smla_cache given = read_struct(name, cache);
  check_reserved(name, given.reserved);
  if (given.format == nullptr) fail(name, "no format", "the name of one");
  const RowFormat& format = row_format(given.format);
  if (given.block_size < 1 || given.block_size > std::numeric_limits<std::int32_t>::max()) {
    fail(name, "block size " + std::to_string(given.block_size), "1 to 2147483647");
  }
  if (given.block_stride_bytes < 0) fail(name, "block stride " + std::to_string(given.block_stride_bytes), "0 or more");
  const PagedCache out{.format = &format,
                       .base = static_cast<std::uint8_t*>(given.base),
                       .num_blocks = given.num_blocks,
                       .block_size = given.block_size,
                       .block_stride_bytes = given.block_stride_bytes == 0 ? block_bytes(format, given.block_size)
                                                                           : given.block_stride_bytes,
                       .scale = given.kv_scale == 0.0F ? default_scale : given.kv_scale};
  if (given.num_blocks < 0) fail(name, std::to_string(given.num_blocks) + " blocks", "0 or more");
  multiply(name, out.num_blocks, std::max(out.block_stride_bytes, out.block_size));
  return out;
}

bool read_flag(std::string_view name, std::int32_t value) {
  if (value != 0 && value != 1) fail(name, std::to_string(value), "0 or 1");
  return value == 1;
}

DeviceKind read_device(smla_device device) {
  if (device == SMLA_CPU) return DeviceKind::kCpu;
  if (device == SMLA_CUDA) return DeviceKind::kCuda;
  throw InvalidArgument("device: got " + std::to_string(device) + ", expected SMLA_CPU or SMLA_CUDA");
}

int read_threads(std::int32_t threads) {
  if (threads < 0 || threads > kMostThreads)
    fail("threads", std::to_string(threads), "0 to " + std::to_string(kMostThreads));
  return threads;
}

void check_reserved(std::string_view name, std::int32_t value) {
  if (value != 0) fail(name, std::to_string(value) + " in a reserved field", "0");
}

void check_workspace(std::string_view name, const void* data, std::size_t bytes) {
  if (data == nullptr && bytes > 0) fail(name, "NULL of " + std::to_string(bytes) + " bytes", "memory");
  if (reinterpret_cast<std::uintptr_t>(data) % 64 != 0)
    fail(name, "memory that is not aligned", "an address that is a multiple of 64");
}

}  // namespace smla::c
