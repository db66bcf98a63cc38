#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "sparsemla/export.h"

namespace SMLA_API smla {

/// The element type of numbers in a cache row.
enum class Element : std::uint8_t { kF32, kBF16, kE4M3, kE2M1 };

/// Which scales a row's numbers have.
enum class ScaleKind : std::uint8_t {
  kNone,       ///< stored value = number
  kUe8m0,      ///< one power-of-two byte for each group of `group` dims of the nope part
  kF32,        ///< one fp32 for each group
  kPerTensor,  ///< one fp32 for the whole cache, kept outside of it (`PagedCache::scale`)
};

/// Which floor a quantiser puts under a tiny group (spec 5.1): under its largest magnitude, or under the scale itself.
enum class ClampRule : std::uint8_t { kAmax, kScale };

/// A cache record as data. Within a block of `bs` rows the bytes are segregated: first bs x data_bytes, then bs x
/// scale_bytes (spec 4.4, 5.1), then padding up to the block's stride. A format with inline scales keeps them in the
/// row instead, between its nope and its rope numbers; then scale_bytes is 0 and data_bytes is the whole row.
///
/// Every record size in the library is derived from one of these; nowhere else does one appear as a literal.
struct RowFormat {
  std::string_view name;
  int dim = 0;                   ///< numbers in a row: nope dims first, rope dims last
  int nope_dim = 0;              ///< dims stored as `nope`; the other dim - nope_dim are stored as `rope`
  Element nope = Element::kF32;  ///< element of the nope dims
  Element rope = Element::kF32;  ///< element of the rope dims
  ScaleKind scale = ScaleKind::kNone;
  int group = 0;               ///< dims a scale covers
  int data_bytes = 0;          ///< bytes of a row's numbers
  int scale_bytes = 0;         ///< bytes of a row's scales, padding of the scale slot included
  int page_alignment = 0;      ///< a page is rounded up to a multiple of this
  int inline_scale_bytes = 0;  ///< bytes of the scales inside a row, counted in data_bytes

  int rope_dim() const { return dim - nope_dim; }                   ///< dims stored as `rope`
  int row_bytes() const { return data_bytes + scale_bytes; }        ///< bytes of a row: numbers and scales
  int groups() const { return group == 0 ? 0 : nope_dim / group; }  ///< scales of a row

  /// Member by member: two formats are the same when they say the same, wherever they stand.
  friend bool operator==(const RowFormat&, const RowFormat&) = default;
};

/// The attention rows (512 numbers): fp8_ds_mla, bf16, fp8_per_tensor, f32.
const RowFormat& fp8_ds_mla_rows();
const RowFormat& bf16_rows();
const RowFormat& fp8_per_tensor_rows();
const RowFormat& f32_rows();

/// DeepSeek-V3.2's rows (576 numbers, of which the first 512 are the value: SparseAttention with value_dim 512):
/// fp8_v32.
const RowFormat& fp8_v32_rows();

/// The indexer's rows (128 numbers): index_fp8, index_mxfp4, index_f32. By its name alone: index_fp8_ue8m0.
const RowFormat& index_fp8_rows();
const RowFormat& index_mxfp4_rows();
const RowFormat& index_f32_rows();

/// Compressor state rows of `coff` halves of `dim` values and as many scores, fp32 (spec 3): (512,2) C4A, (512,1)
/// C128A, (128,2) indexer.
/// @throws InvalidArgument for another pair.
const RowFormat& state_rows(int dim, int coff);

/// All formats above, and index_fp8_ue8m0.
std::span<const RowFormat* const> all_row_formats();

/// The format of that name. @throws InvalidArgument with the accepted names.
const RowFormat& row_format(std::string_view name);

/// Bytes of a block of `block_size` rows: block_bytes without padding, page_bytes rounded up to the format's page
/// alignment.
std::int64_t block_bytes(const RowFormat& format, std::int64_t block_size);
std::int64_t page_bytes(const RowFormat& format, std::int64_t block_size);

/// A paged cache whose memory belongs to the caller.
/// Row of slot s: block s / block_size at base + (s / block_size) * block_stride_bytes, offset s % block_size in it.
/// All in 64 bits.
struct PagedCache {
  const RowFormat* format = nullptr;    ///< how rows are stored
  std::uint8_t* base = nullptr;         ///< first block
  std::int64_t num_blocks = 0;          ///< blocks that may be read and written
  std::int64_t block_size = 0;          ///< rows in a block
  std::int64_t block_stride_bytes = 0;  ///< from one block to the next; at least block_bytes(format, block_size)
  float scale = 1.0F;                   ///< kPerTensor: number = e4m3 * scale

  std::int64_t num_slots() const { return num_blocks * block_size; }
  std::uint8_t* block(std::int64_t index) const { return base + index * block_stride_bytes; }
};

/// Checks a cache. @throws InvalidArgument naming `name` when its base is null, its stride too small or a size
/// negative.
void check_cache(std::string_view name, const PagedCache& cache);

}  // namespace smla
