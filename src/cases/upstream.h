#pragma once

// What the adapters of upstream dumps (upstream_*.cpp) share. An adapter renames arguments, makes views and pre-fills
// outputs; it computes nothing.

#include <cstring>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "cases/replay.h"
#include "core/check.h"
#include "ops/staging.h"

namespace smla::upstream {

inline constexpr std::int64_t kMaxCount = std::int64_t{1} << 40;

/// The first of several spellings that the case has. @throws InvalidArgument naming the first.
inline const HostTensor& input(const CaseFile& file, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const HostTensor* found = file.find(std::string("in.") + name)) return *found;
  }
  return file.tensor(std::string("in.") + *names.begin());
}
inline const HostTensor& input(const CaseFile& file, const char* name) { return input(file, {name}); }

/// Its checked view; kAny matches every size.
inline ConstTensorView input(const CaseFile& file, const char* name, std::initializer_list<std::int64_t> shape,
                             DType dtype) {
  const HostTensor& tensor = input(file, name);
  check_tensor(file.path, std::string("in.") + name, tensor.view(), shape, {dtype});
  return tensor.view();
}

/// Shape of an expected result, or `otherwise` when the case does not expect it.
inline std::vector<std::int64_t> shape_of(const CaseFile& file, const std::string& result,
                                          const std::vector<std::int64_t>& otherwise) {
  const HostTensor* want = file.find("out." + result);
  if (want != nullptr) return want->shape();
  return otherwise;
}

/// An output full of bytes that no result has, so that what an op forgets to write shows.
inline HostTensor poisoned(DType dtype, std::vector<std::int64_t> shape) {
  HostTensor out(dtype, std::move(shape));
  if (out.bytes() > 0) std::memset(out.data(), 0xFF, out.bytes());
  return out;
}

/// Memory of a cache as the op sees it: any tensor whose first dimension counts blocks.
/// @throws InvalidArgument naming `name` when a block does not fit.
inline PagedCache cache_of(const CaseFile& file, std::string_view name, const HostTensor& memory,
                           const RowFormat& format, std::int64_t block_size) {
  check_that(memory.rank() >= 2, file.path, name, describe(memory.view()), "[blocks, ...]");
  const std::int64_t blocks = memory.size(0);
  const std::int64_t stride =
      blocks == 0 ? block_bytes(format, block_size) : static_cast<std::int64_t>(memory.bytes()) / blocks;
  check_that(stride >= block_bytes(format, block_size), file.path, std::string(name) + " block stride", stride,
             "at least " + std::to_string(block_bytes(format, block_size)) + " bytes, " + std::to_string(block_size) +
                 " rows of " + std::string(format.name));
  return {.format = &format,
          .base = const_cast<std::uint8_t*>(static_cast<const std::uint8_t*>(
              memory.data())),  // ops that read take the same struct as those that write
          .num_blocks = blocks,
          .block_size = block_size,
          .block_stride_bytes = stride};
}

/// Records on the written slots, everything else equal.
inline Tolerance written_rows(const PagedCache& cache, const ConstTensorView& slots, std::int64_t steps,
                              std::int64_t ulp) {
  Tolerance out;
  out.rows = RowsTolerance{.format = cache.format,
                           .block_size = cache.block_size,
                           .steps = steps,
                           .ulp = ulp,
                           .written = std::set<std::int64_t>()};
  const auto* slot = slots.as<std::int64_t>();
  for (std::int64_t i = 0; i < slots.size(0); ++i) {
    if (slot[i] >= 0) out.rows->written->insert(slot[i]);
  }
  return out;
}
inline Tolerance ulps(std::int64_t n) {
  Tolerance out;
  out.ulp = n;
  return out;
}
inline Tolerance floats() {
  Tolerance out;
  out.rel = 1e-5;
  out.abs_of_largest = 1e-6;
  return out;
}
inline Tolerance scores() {
  Tolerance out;
  out.l2 = 5e-4;
  out.abs_of_largest = 1e-3;
  return out;
}

/// Plans and runs an op over host memory, on whatever device the options name.
template <class Op>
void run(const typename Op::Problem& problem, const ReplayOptions& options, const typename Op::Args& args,
         ReplayResult& result) {
  const Plan<Op> plan(problem, options.plan);
  run_staged(plan, args, options.plan.device);
  result.implementation = std::string(plan.implementation());
}

// One adapter each; the table is in upstream.cpp.
ReplayResult q_kv_rmsnorm(const CaseFile& file, const ReplayOptions& options);
ReplayResult insert_fp8_ds_mla(const CaseFile& file, const ReplayOptions& options);
ReplayResult insert_bf16(const CaseFile& file, const ReplayOptions& options);
ReplayResult insert_fp8(const CaseFile& file, const ReplayOptions& options);
ReplayResult insert_keys(const CaseFile& file, const ReplayOptions& options);
ReplayResult inverse_rope_quant(const CaseFile& file, const ReplayOptions& options);
ReplayResult compress(const CaseFile& file, const ReplayOptions& options);
ReplayResult gather_rows(const CaseFile& file, const ReplayOptions& options);
ReplayResult indexer_q(const CaseFile& file, const ReplayOptions& options);
ReplayResult gather_index_rows(const CaseFile& file, const ReplayOptions& options);
ReplayResult paged_logits(const CaseFile& file, const ReplayOptions& options);
ReplayResult ragged_logits(const CaseFile& file, const ReplayOptions& options);
ReplayResult topk(const CaseFile& file, const ReplayOptions& options);
ReplayResult combine_indices(const CaseFile& file, const ReplayOptions& options);
ReplayResult global_indices(const CaseFile& file, const ReplayOptions& options);
ReplayResult compressed_slots(const CaseFile& file, const ReplayOptions& options);
ReplayResult mixed_indices(const CaseFile& file, const ReplayOptions& options);

/// The adapters, by upstream's name with "upstream:" before it.
std::span<const ReplayEntry> table();

}  // namespace smla::upstream
