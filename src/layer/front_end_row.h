#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "sparsemla/front_end.h"
#include "sparsemla/layer.h"

namespace smla {

class AttentionCalls;
struct AttentionPlanning;

/// Everything that sets one front-end apart from the others. Its row and its calls stand in front_end_<name>.cpp.
struct FrontEndRow {
  FrontEnd id;
  std::span<const std::string_view> names;  ///< accepted ones, its own first, then upstream's (spec 8.1, 15)
  /// Compute capability (major) of the devices on which "auto" and a name shared with another front-end mean this one;
  /// 0: all that no other claims.
  int device_major;
  const RowFormat& (*auto_rows)();  ///< cache dtype "auto"
  const RowFormat& (*fp8_rows)();   ///< cache dtypes "fp8", "fp8_e4m3", "fp8_inc"
  bool reads_slots;                 ///< C4A: reads entries by slot, which the top-k may write
  bool reads_mixed_rows;            ///< needs LayerStep::mixed_indices of window-only and C128A layers
  bool gathers_prefills;            ///< knows LayerOptions::gather_prefill

  /// Upstream's refusals, with its texts: of a cache dtype, of a head count, of a call; and what it says when a step
  /// has no entries for a layer of this kind ("c4a", "c128a").
  void (*check_dtype)(std::string_view cache_dtype);
  std::int64_t (*padded_heads)(std::int64_t heads);
  void (*check_call)(const UpstreamCall& call);
  std::string (*no_entries_text)(std::string_view kind);

  /// The calls of one step.
  std::unique_ptr<const AttentionCalls> (*plan)(const AttentionPlanning& planning);
  /// AttentionCalls::buffer_bytes() that no step of `tokens` tokens and sequences of `max_seq_len` exceeds.
  std::size_t (*most_buffer_bytes)(const LayerConfig& config, const LayerOptions& options, std::int64_t tokens,
                                   std::int64_t max_seq_len);
};

/// In the order of FrontEnd.
std::span<const FrontEndRow* const> front_end_rows();
const FrontEndRow& row_of(FrontEnd front_end);

const FrontEndRow& flashmla_row();
const FrontEndRow& flashinfer_row();
const FrontEndRow& sm120_row();

/// Upstream's name of two backends: FlashInfer's on most devices, another on sm_12x.
inline constexpr std::string_view kFlashInferDsv4 = "FLASHINFER_MLA_SPARSE_DSV4";
/// Head counts that FlashInfer's sparse MLA kernels are compiled for.
inline constexpr std::array<std::int64_t, 5> kFlashInferHeads{8, 16, 32, 64, 128};
/// The next of these. @throws InvalidArgument with upstream's text above 128.
std::int64_t flashinfer_heads(std::int64_t heads);
/// fp8, fp8_e4m3, fp8_inc: the FP8 rows of a front-end.
bool is_plain_fp8(std::string_view cache_dtype);
/// What upstream says when a step has no entries for a layer of this kind.
std::string missing_schedule_text(std::string_view kind);
/// What upstream says of cache dtypes to a front-end whose rows are fp8_ds_mla (spec 8.2).
void check_ds_mla_dtype(std::string_view cache_dtype);

}  // namespace smla
