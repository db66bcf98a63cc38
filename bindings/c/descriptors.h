#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>

#include "sparsemla/c_api.h"
#include "sparsemla/device.h"
#include "sparsemla/error.h"
#include "sparsemla/kv_format.h"
#include "sparsemla/tensor_view.h"

namespace smla::c {

/// @throws InvalidArgument unless `size` can be that of a struct whose first version has `least` bytes.
void check_struct_size(std::string_view name, std::uint64_t size, std::size_t least);
/// @throws InvalidArgument when a byte of [first, last) is not zero: a field that this library does not know.
void check_unknown_tail(std::string_view name, const unsigned char* first, const unsigned char* last);

/// A copy of a struct that the caller may have compiled against another version: fields it does not know are 0.
/// @throws InvalidArgument for NULL, a size that no version has, or a value in a field that this library does not know.
template <class T>
T read_struct(std::string_view name, const T* given, std::size_t first_version_size = sizeof(T)) {
  if (given == nullptr) throw InvalidArgument(std::string(name) + ": got NULL, expected a struct");
  check_struct_size(name, given->struct_size, first_version_size);
  const auto size = static_cast<std::size_t>(given->struct_size);
  const auto* bytes = reinterpret_cast<const unsigned char*>(given);
  if (size > sizeof(T)) check_unknown_tail(name, bytes + sizeof(T), bytes + size);
  T copy{};
  std::memcpy(&copy, given, std::min(size, sizeof(T)));
  return copy;
}

/// Fills the caller's struct as far as it knows it; fields that only the caller knows become 0.
template <class T>
void write_struct(std::string_view name, T* given, T value, std::size_t first_version_size = sizeof(T)) {
  if (given == nullptr) throw InvalidArgument(std::string(name) + ": got NULL, expected a struct");
  check_struct_size(name, given->struct_size, first_version_size);
  const auto size = static_cast<std::size_t>(given->struct_size);
  value.struct_size = given->struct_size;
  auto* bytes = reinterpret_cast<unsigned char*>(given);
  std::memcpy(bytes, &value, std::min(size, sizeof(T)));
  if (size > sizeof(T)) std::memset(bytes + sizeof(T), 0, size - sizeof(T));
}

/// @throws InvalidArgument for a number that is no SMLA_* dtype.
DType read_dtype(std::string_view name, smla_dtype dtype);
smla_dtype write_dtype(DType dtype);

/// The view that a descriptor means; absent for NULL. That there is data where it is needed is checked by who uses it.
/// @throws InvalidArgument naming the tensor and the field that is wrong.
TensorView read_tensor(std::string_view name, const smla_tensor* tensor);

/// The cache that a descriptor means. @throws InvalidArgument naming the cache and the field that is wrong.
PagedCache read_cache(std::string_view name, const smla_cache* cache, float default_scale = 1.0F);

/// @throws InvalidArgument unless `value` is 0 or 1.
bool read_flag(std::string_view name, std::int32_t value);
/// @throws InvalidArgument for a number that is no device.
DeviceKind read_device(smla_device device);
/// @throws InvalidArgument for a number of threads that no machine should start.
int read_threads(std::int32_t threads);
/// @throws InvalidArgument unless `value` is 0.
void check_reserved(std::string_view name, std::int32_t value);

/// Memory lent for one call. @throws InvalidArgument when it is not aligned to 64 bytes or NULL but for 0 bytes.
void check_workspace(std::string_view name, const void* data, std::size_t bytes);

}  // namespace smla::c
