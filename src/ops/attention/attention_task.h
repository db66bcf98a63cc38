#pragma once

#include <cstdint>

#include "sparsemla/dtype.h"
#include "sparsemla/kv_format.h"

namespace smla {

/// Keys that are decoded, scored and added at a time, counted from the row's own list.
inline constexpr int kAttentionTile = 64;

/// One cache and one row of its index matrix, as plain numbers: the files built for one instruction set call nothing
/// that another file could emit.
struct KeyScope {
  const std::uint8_t* base = nullptr;
  std::int64_t num_slots = 0;
  std::int64_t block_size = 0;
  std::int64_t block_stride = 0;
  std::int64_t data_bytes = 0;
  std::int64_t scale_byte = 0;    ///< where the scales of a block's first row start in the block
  std::int64_t scale_stride = 0;  ///< from one row's scales to the next row's
  std::int64_t nope_bytes = 0;    ///< of the nope part
  std::int64_t rope_byte = 0;     ///< where the rope part starts in a row
  Element nope = Element::kF32;
  Element rope = Element::kF32;
  ScaleKind scale_kind = ScaleKind::kNone;
  int nope_dim = 0;
  int rope_dim = 0;
  int group = 0;
  float scale = 1.0F;  ///< kPerTensor
  bool whole_words =
      false;  ///< every part and group is a multiple of 16 numbers; otherwise rows are decoded by `decode_any`
  const void* cache = nullptr;
  const std::int32_t* indices = nullptr;
  std::int64_t entries = 0;
};

/// One row of q, heads [0, heads) of a group, and the scratch of one thread. Strides in elements.
struct AttentionTask {
  KeyScope scopes[2];
  int num_scopes = 0;
  void (*decode_any)(const void* cache, std::int64_t slot, float* values) = nullptr;

  int heads = 0;
  int dim = 0;                    ///< numbers of a key
  int value_dim = 0;              ///< numbers of a value, the first of its key
  std::int64_t padded_dim = 0;    ///< dim up to a whole number of register blocks; the rest of a scratch row is zeros
  std::int64_t padded_value = 0;  ///< value_dim likewise: the columns of o that are summed
  std::int64_t row_stride = 0;    ///< of scratch rows: padded by a cache line more, so that rows do not share L1 sets
  float scale = 1.0F;
  float q_scale = 1.0F;
  bool partial = false;
  DType q_type = DType::kBF16;
  DType o_type = DType::kBF16;
  const void* q = nullptr;
  std::int64_t q_stride = 0;
  const float* sink = nullptr;  ///< null: none
  std::int64_t sink_stride = 0;
  void* o = nullptr;
  std::int64_t o_stride = 0;
  float* lse = nullptr;  ///< null: not wanted
  std::int64_t lse_stride = 0;

  float* q_rows = nullptr;   ///< [heads, row_stride] fp32
  float* o_rows = nullptr;   ///< [heads, row_stride] sums, not yet divided
  float* keys = nullptr;     ///< [kAttentionTile, row_stride]
  float* scores = nullptr;   ///< [heads, kAttentionTile]
  float* largest = nullptr;  ///< [heads] largest score so far
  float* sum = nullptr;      ///< [heads] sum of exp(score - largest)
  float* rescale = nullptr;  ///< [heads] factor for the sums of earlier tiles
};

using AttendRow = void (*)(const AttentionTask& task);
void attend_row_avx2(const AttentionTask& task);
void attend_row_avx512(const AttentionTask& task);

}  // namespace smla
