// PackSequences and UnpackSequences on any GPU: a block for each piece of a row, with the widest loads that the
// addresses allow.
#include <algorithm>

#include "device/copy.cuh"
#include "device/launch.cuh"
#include "ops/cuda_row.h"
#include "sparsemla/ops/sequences.h"

namespace smla {

namespace {

constexpr std::int64_t kPiece = 16384;        ///< bytes of a row that a block copies
constexpr std::int64_t kMaxBlocks = 1 << 20;  ///< with more pieces, a block takes several

/// The arguments of both ops; strides in bytes. The tensor that is read is not written through its pointer.
struct PackCall {
  std::int64_t requests = 0;
  std::int64_t tokens = 0;
  std::int64_t max_len = 0;
  std::int64_t row_bytes = 0;
  std::int64_t pieces = 0;  ///< pieces of a row
  int word = 1;
  const std::int32_t* start = nullptr;
  std::uint8_t* rows = nullptr;
  std::int64_t row_stride = 0;
  std::uint8_t* packed = nullptr;
  std::int64_t request_stride = 0;
  std::int64_t packed_stride = 0;

  std::int64_t items() const { return requests * max_len * pieces; }
  /// Threads that have a word to copy.
  unsigned threads() const {
    const std::int64_t words = std::min(row_bytes, kPiece) / word;
    return static_cast<unsigned>(std::clamp<std::int64_t>((words + 31) / 32 * 32, 32, 256));
  }
};

template <class Rows, class Packed>
PackCall call_of(const PackSequences::Problem& p, const Rows& rows, const Packed& packed,
                 const ConstTensorView& start) {
  const std::int64_t size = size_of(p.dtype);
  PackCall c{.requests = p.requests,
             .tokens = p.tokens,
             .max_len = p.max_len,
             .row_bytes = p.row * size,
             .pieces = (p.row * size + kPiece - 1) / kPiece,
             .start = static_cast<const std::int32_t*>(start.data),
             .rows = static_cast<std::uint8_t*>(const_cast<void*>(rows.data)),
             .row_stride = rows.stride[0] * size,
             .packed = static_cast<std::uint8_t*>(const_cast<void*>(packed.data)),
             .request_stride = packed.stride[0] * size,
             .packed_stride = packed.stride[1] * size};
  c.word = device::common_word(c.row_bytes, c.rows, c.row_stride, c.packed, c.request_stride, c.packed_stride);
  return c;
}

template <bool kPack>
__global__ void copy_pieces(const __grid_constant__ PackCall c) {
  const std::int64_t items = c.requests * c.max_len * c.pieces;
  for (std::int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const std::int64_t at = item % c.pieces * kPiece;
    const std::int64_t i = item / c.pieces % c.max_len;
    const std::int64_t b = item / c.pieces / c.max_len;
    const std::int64_t first = c.start[b];
    const std::int64_t end = min(static_cast<std::int64_t>(c.start[b + 1]), c.tokens);
    const bool there = first >= 0 && first + i < end;
    if (!there && !kPack) continue;
    std::uint8_t* packed = c.packed + b * c.request_stride + i * c.packed_stride + at;
    std::uint8_t* row = there ? c.rows + (first + i) * c.row_stride + at : nullptr;
    const std::int64_t bytes = min(c.row_bytes - at, kPiece);
    device::copy_row(kPack ? packed : row, kPack ? row : packed, bytes, c.word, static_cast<int>(threadIdx.x),
                     static_cast<int>(blockDim.x));
  }
}

template <bool kPack>
void launch(const PackCall& c, const RunContext& context) {
  if (c.items() == 0) return;
  copy_pieces<kPack>
      <<<static_cast<unsigned>(std::min(c.items(), kMaxBlocks)), c.threads(), 0, stream_of(context.stream)>>>(c);
  check_launch(kPack ? "pack_sequences" : "unpack_sequences");
}

void run(const PackSequences::Problem& p, const PackSequences::Args& a, const RunContext& context) {
  launch<true>(call_of(p, a.rows, a.packed, a.query_start_loc), context);
}

void run(const UnpackSequences::Problem& p, const UnpackSequences::Args& a, const RunContext& context) {
  launch<false>(call_of(p, a.rows, a.packed, a.query_start_loc), context);
}

}  // namespace

template <>
Implementation<PackSequences> cuda_row() {
  return any_gpu_row<PackSequences>(run);
}

template <>
Implementation<UnpackSequences> cuda_row() {
  return any_gpu_row<UnpackSequences>(run);
}

}  // namespace smla
