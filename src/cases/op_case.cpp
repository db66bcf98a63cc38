#include "cases/op_case.h"

#include <cstring>
#include <type_traits>
#include <vector>

namespace smla::op_case {

void ReadTensors::out(const char* name, TensorView& view) const {
  const HostTensor* before = file.find("in." + std::string(name) + "_before");
  const HostTensor* want = file.find("out." + std::string(name));
  if (before == nullptr && want == nullptr) return;  // an optional output that nobody wants
  HostTensor made = before != nullptr ? before->clone() : HostTensor(want->dtype(), want->shape());
  if (before == nullptr && made.bytes() > 0) std::memset(made.data(), 0xFF, made.bytes());
  view = result.results.insert_or_assign(name, std::move(made)).first->second.view();
}

void ReadTensors::cache(const char* name, PagedCache& cache, CacheAccess access) const {
  const std::string key(name);
  const std::string tensor = "in." + key + (access == CacheAccess::kWrite ? "_before" : "");
  const HostTensor* memory = file.find(tensor);
  if (memory == nullptr && !params.has(key + "_format")) return;  // a call without this cache
  const HostTensor& bytes = file.tensor(tensor);
  check_tensor(file.path, tensor, bytes.view(), {kAny, kAny}, {DType::kU8});
  cache.format = &row_format(params.text(key + "_format"));
  cache.num_blocks = bytes.size(0);
  cache.block_size = params.integer(key + "_block_size", 1, INT32_MAX);
  cache.block_stride_bytes = bytes.size(1);
  cache.scale = static_cast<float>(params.number(key + "_scale", -3.4e38, 3.4e38, 1.0));
  const std::int64_t least = block_bytes(*cache.format, cache.block_size);
  check_that(bytes.size(0) == 0 || bytes.size(1) >= least, file.path, tensor + " block stride", bytes.size(1),
             "at least " + std::to_string(least) + " bytes");
  if (access == CacheAccess::kRead) {
    cache.base =
        const_cast<std::uint8_t*>(bytes.as<std::uint8_t>());  // PagedCache serves writers too and so has no const form
    return;
  }
  HostTensor& made = result.results.insert_or_assign(key, bytes.clone()).first->second;
  cache.base = made.as<std::uint8_t>();
}

std::span<const ReplayEntry> table() {
  static const std::vector<ReplayEntry> kTable = [] {
    std::vector<ReplayEntry> entries;
    for_each_op([&entries]<class Op>() {
      if (!std::is_same_v<Op, SparseAttention>) entries.push_back({Op::kName, replay_op<Op>});
    });
    return entries;
  }();
  return kTable;
}

}  // namespace smla::op_case
