#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "device/numbers.cuh"
#include "ops/projection/implementations.h"

namespace smla::projection {

// The arguments of the kernels that stream weights past rows of x, for one or several weights in one launch.

/// One of the weights of a call, and what is made with it.
struct StreamPart {
  const void* w = nullptr;
  const float* w_scale = nullptr;             ///< of E4M3 w; of NVFP4 w the scale of all
  const std::uint8_t* group_scale = nullptr;  ///< of NVFP4 w
  void* y = nullptr;
  std::int64_t y_row = 0, y_group = 0;  ///< strides in elements
  std::int64_t w_scale_group = 0, w_scale_row = 0;
  int n = 0;
  std::uint32_t tiles = 0;                           ///< in all groups, of all rows
  std::uint32_t columns = 1;                         ///< `sm90_stream`: items along the outputs
  int sharing = 1;                                   ///< `sm90_stream`: blocks that share a tile's inputs
  unsigned at_a_time = 1;                            ///< `sm90_stream`: tiles that a cluster computes at once
  unsigned stages = 0, more_stages = 0;              ///< `sm90_stream`: of each of those; so many have one more
  bool e4m3 = false, nvfp4 = false, y_bf16 = false;  ///< dtypes; otherwise w is bf16 and y float32

  __device__ void store(std::int64_t row, std::int64_t group, std::int64_t column, float v) const {
    const std::int64_t at = row * y_row + group * y_group + column;
    if (y_bf16) {
      static_cast<BF16*>(y)[at] = to_bf16(v);
    } else {
      static_cast<float*>(y)[at] = v;
    }
  }
};

/// x as E4M3 numbers, where `sm90_stream` has it split before (split_inputs_sm90.cuh).
struct SplitX {
  std::uint8_t* upper = nullptr;  ///< [groups, rows, k]
  std::uint8_t* lower = nullptr;  ///< [groups, rows, k]
  float* scales = nullptr;        ///< [groups, chunks, rows]
  std::int64_t rows = 0;          ///< m, rounded up to a multiple of four
  std::uint32_t chunks = 0;       ///< of 128 inputs
};

/// x that the caller has in E4M3.
struct CodedX {
  const std::uint8_t* codes = nullptr;
  const float* scales = nullptr;  ///< one for each 128 inputs of a row
  std::int64_t scale_group = 0, scale_chunk = 0;
};

/// What `sm90_stream` makes of y beside it: E4M3 numbers, a scale for each 128 outputs of a row.
struct QuantisedY {
  E4M3* values = nullptr;  ///< null: nothing
  float* scales = nullptr;
  std::int64_t values_row = 0, scale_chunk = 0;  ///< strides in elements
  int padding = 0;                               ///< scales behind the last row, zeros
};

/// Of a chained call (output_projection_sm90.cu): the second product, of what the first one makes. Clusters tell each
/// other through memory that nobody has cleared: what is not the launch's `nonce`, or up to some hundreds more, is
/// nothing.
struct ChainedProduct {
  const BF16* x = nullptr;  ///< [m, k], the first product's outputs, all groups of a row side by side
  std::int64_t x_row = 0;   ///< stride in elements
  int k = 0;
  std::uint32_t first_tiles = 0;     ///< of the first product
  bool halved = false;               ///< two clusters share a tile of the second
  std::int64_t width = 0;            ///< outputs of the second product's tiles
  float* sums = nullptr;             ///< [2, rows of a tile, width] of those clusters
  std::uint64_t* made = nullptr;     ///< [k / 128, 2]: the nonce, once a block of the cluster has stored its rows
  std::uint64_t* met = nullptr;      ///< [tiles of n, rows of a tile]: clusters that have stored their sums
  std::uint64_t* claimed = nullptr;  ///< [clusters]: the nonce, once a cluster's tiles have been taken on
  std::uint64_t* done = nullptr;     ///< blocks that read none of these any more
  std::uint64_t nonce = 0;
};

/// The weights of one input.
struct StreamCall {
  static constexpr int kMaxParts = 8;
  const BF16* x = nullptr;
  std::int64_t x_row = 0, x_group = 0;  ///< strides in elements
  int m = 0, k = 0;
  std::uint32_t groups = 1;
  std::uint32_t row_blocks = 1;
  std::uint32_t tiles = 0;  ///< of all parts
  int together = 1;         ///< `sm90_stream`: blocks of a cluster
  int under_way = 1;        ///< `sm90_stream`: stages of weights that a block has on their way at a time
  SplitX split;
  CodedX coded;
  QuantisedY quantised;    ///< of a call of one weight
  ChainedProduct chained;  ///< its weights are part[1]
  int parts = 0;
  StreamPart part[kMaxParts];
  const BF16* x_weight = nullptr;  ///< `sm90_stream`: of x that is normed first, and its epsilon
  float x_eps = 0;
  bool leaves_room = false;  ///< `sm90_stream`: JointProjection::Problem::leaves_room
};
static_assert(StreamCall::kMaxParts == JointProjection::kMaxParts);

/// One weight as a call of several.
inline JointProjection::Problem joint_problem(const ProjectionProblem& p) {
  JointProjection::Problem out{.m = p.m, .k = p.k, .groups = p.groups, .x = p.x};
  out.part[0] = {.n = p.n, .w = p.w, .y = p.y};
  return out;
}
inline JointProjection::Args joint_args(const Projection::Args& a) {
  JointProjection::Args out{.x = a.x};
  out.parts[0] = {.w = a.w, .y = a.y, .w_scale = a.w_scale, .w_global_scale = a.w_global_scale};
  return out;
}

/// What a kernel takes beside bf16 x and bf16 and E4M3 w.
struct StreamTakes {
  bool nvfp4 = false;    ///< w
  bool e4m3_x = false;   ///< beside E4M3 w alone
  bool norms_x = false;  ///< beside E4M3 w alone
};

/// What of a problem these kernels do not take; empty if they take all.
inline std::string not_streamed(const JointProjection::Problem& p, const StreamTakes& takes) {
  const bool takes_nvfp4 = takes.nvfp4;
  if (p.norms_x && !takes.norms_x) return "it takes x as it is";
  if (p.x != DType::kBF16 && !(takes.e4m3_x && p.x == DType::kE4M3))
    return std::string("it takes bf16 x") + (takes.e4m3_x ? ", and E4M3 x beside E4M3 w" : "");
  std::int64_t multiple = 8;
  for (int i = 0; i < p.parts; ++i) {
    const JointProjection::Part& part = p.part[static_cast<std::size_t>(i)];
    const bool nvfp4 = part.w == Projection::kNvfp4;
    if (part.w == DType::kF32 || (nvfp4 && !takes_nvfp4))
      return std::string("it takes w in bf16") + (takes_nvfp4 ? ", E4M3 and NVFP4" : " and E4M3");
    if (p.x == DType::kE4M3 && part.w != DType::kE4M3) return "beside E4M3 x it takes E4M3 w";
    if (p.norms_x && part.w != DType::kE4M3) return "with norms_x it takes E4M3 w";
    if (part.w == DType::kE4M3) multiple = std::max<std::int64_t>(multiple, 16);
    if (nvfp4) multiple = 64;
    if (part.n > INT32_MAX) return "it takes m and n to 2^31-1";
  }
  if (p.k % multiple != 0)
    return std::string("it takes k in multiples of 8, with E4M3 w of 16") + (takes_nvfp4 ? ", with NVFP4 w of 64" : "");
  if (p.m > INT32_MAX) return "it takes m and n to 2^31-1";
  return "";
}

/// Whether all operands can be read 16 bytes at a time, scales of NVFP4 w four, and a norm's weight is bf16. Of one row
/// the stride counts, too: its bits are those that it has among others.
inline bool streamable(const JointProjection::Problem& p, const JointProjection::Args& a) {
  const auto whole = [](const void* at) { return reinterpret_cast<std::uintptr_t>(at) % 16 == 0; };
  const std::int64_t inputs = 16 / size_of(p.x);
  bool all = whole(a.x.data) && a.x.stride[0] % inputs == 0 && (p.groups == 1 || a.x.stride[1] % inputs == 0);
  if (p.norms_x) all = all && whole(a.x_weight.data) && a.x_weight.dtype == DType::kBF16;
  for (int i = 0; i < p.parts; ++i) {
    const JointProjection::PartArgs& part = a.parts[static_cast<std::size_t>(i)];
    all = all && whole(part.w.data);
    if (p.part[static_cast<std::size_t>(i)].w == Projection::kNvfp4)
      all = all && reinterpret_cast<std::uintptr_t>(part.w_scale.data) % 4 == 0;
  }
  return all;
}

/// The weights of a call that have outputs.
inline StreamCall stream_call(const JointProjection::Problem& p, const JointProjection::Args& a) {
  StreamCall call{.x = static_cast<const BF16*>(a.x.data),
                  .x_row = a.x.stride[0],
                  .x_group = a.x.stride[1],
                  .m = static_cast<int>(p.m),
                  .k = static_cast<int>(p.k),
                  .groups = static_cast<std::uint32_t>(p.groups),
                  .x_weight = p.norms_x ? static_cast<const BF16*>(a.x_weight.data) : nullptr,
                  .x_eps = p.eps,
                  .leaves_room = p.leaves_room};
  for (int i = 0; i < p.parts; ++i) {
    const JointProjection::Part& shape = p.part[static_cast<std::size_t>(i)];
    const JointProjection::PartArgs& t = a.parts[static_cast<std::size_t>(i)];
    if (shape.n == 0) continue;
    const bool nvfp4 = shape.w == Projection::kNvfp4;
    call.part[call.parts++] = {.w = t.w.data,
                               .w_scale = static_cast<const float*>((nvfp4 ? t.w_global_scale : t.w_scale).data),
                               .group_scale = nvfp4 ? static_cast<const std::uint8_t*>(t.w_scale.data) : nullptr,
                               .y = t.y.data,
                               .y_row = t.y.stride[0],
                               .y_group = t.y.stride[1],
                               .w_scale_group = nvfp4 ? 0 : t.w_scale.stride[0],
                               .w_scale_row = nvfp4 ? 0 : t.w_scale.stride[1],
                               .n = static_cast<int>(shape.n),
                               .e4m3 = shape.w == DType::kE4M3,
                               .nvfp4 = nvfp4,
                               .y_bf16 = shape.y == DType::kBF16};
  }
  return call;
}

}  // namespace smla::projection
