// IndexerQ on any GPU: one warp for a head, which stays in registers from load to store; half a warp for heads of 128.
#include <cmath>
#include <type_traits>

#include "cache/row_encoder.cuh"
#include "device/hadamard.cuh"
#include "device/launch_pdl.cuh"
#include "device/row_views.cuh"
#include "ops/cuda_row.h"
#include "ops/head_rows.cuh"
#include "sparsemla/ops/indexer.h"

namespace smla {

namespace {

constexpr int kMaxDim = 512;

struct QueryCall {
  const void* q = nullptr;
  std::int64_t q_stride[2] = {0, 0};
  bool by_fours = false;  ///< whether q can be loaded four numbers at a time
  const void* weights = nullptr;
  std::int64_t weights_stride = 0;
  const std::int64_t* positions = nullptr;
  Rope rope;
  std::uint8_t* out = nullptr;
  std::int64_t out_stride[2] = {0, 0};  ///< bytes
  std::uint8_t* scale = nullptr;
  std::int64_t scale_stride[2] = {0, 0};
  float* weights_out = nullptr;
  std::int64_t weights_out_stride = 0;
  std::int64_t heads = 0;
  HeadGrid grid;
  int dim = 0;
  int group = 0;
  Element element = Element::kF32;
  bool hadamard = false;
  float dim_factor = 0;
  float head_factor = 0;
};

template <int kVec4s>
__device__ void round_all(float4 (&x)[kVec4s]) {
#pragma unroll
  for (int k = 0; k < kVec4s; ++k) x[k] = device::rounded_to_bf16(x[k]);
}

/// Loads and rotates the vec4s of a head; numbers past dim are 0.
template <int kVec4s, class In>
__device__ void load_head(const QueryCall& c, const In* q, const float* cos_sin, float4 (&x)[kVec4s]) {
#pragma unroll
  for (int k = 0; k < kVec4s; ++k) {
    const int i = 128 * k + 4 * static_cast<int>(threadIdx.x);
    x[k] = float4{0, 0, 0, 0};
    if (i >= c.dim) continue;
    x[k] = device::widened(c.by_fours ? device::load_vec4<true>(q, i, c.dim) : device::load_vec4<false>(q, i, c.dim));
    x[k] = c.rope.rotated(x[k], i, cos_sin);
  }
}

/// Stores a head as e4m3 with one scale and returns the scale.
template <int kVec4s>
__device__ float store_fp8(const QueryCall& c, const float4 (&x)[kVec4s], std::uint8_t* out) {
  float amax = 0;
#pragma unroll
  for (int k = 0; k < kVec4s; ++k) amax = fmaxf(amax, device::largest_magnitude(x[k]));
  const int e = e4m3_group_exponent(device::max_of_lanes(amax, 32), false);
#pragma unroll
  for (int k = 0; k < kVec4s; ++k) {
    const int q = 32 * k + static_cast<int>(threadIdx.x);
    if (4 * q < c.dim) device::store_part(Element::kE4M3, out, q, device::scaled(x[k], exp2_int(-e)));
  }
  return exp2_int(e);
}

template <int kVec4s>
__device__ void store_mxfp4(const QueryCall& c, const float4 (&x)[kVec4s], std::uint8_t* out, std::uint8_t* scales) {
  const int lanes = c.group / 4;
#pragma unroll
  for (int k = 0; k < kVec4s; ++k) {
    const int q = 32 * k + static_cast<int>(threadIdx.x);
    const int e = e2m1_group_exponent(device::max_of_lanes(device::largest_magnitude(x[k]), lanes));
    if (4 * q >= c.dim) continue;
    device::store_part(Element::kE2M1, out, q, device::scaled(x[k], exp2_int(-e)));
    if (q % lanes == 0) scales[q / lanes] = static_cast<std::uint8_t>(e + 127);
  }
}

template <int kVec4s, class In>
__global__ void __launch_bounds__(32 * HeadGrid::kWarps) queries(const __grid_constant__ QueryCall c) {
  device::pdl_wait_and_trigger();
  const std::int64_t token = c.grid.token();
  const std::int64_t head = c.grid.head();
  if (head >= c.heads) return;
  const std::int64_t position = min(max(c.positions[token], std::int64_t{0}), c.rope.rows - 1);
  float4 x[kVec4s];
  load_head(c, static_cast<const In*>(c.q) + token * c.q_stride[0] + head * c.q_stride[1], c.rope.row(position), x);

  const bool quantised = c.element != Element::kF32;
  if (quantised) round_all(x);
  if (c.hadamard) {
    device::hadamard(x, c.dim);
    if (quantised) round_all(x);
  }

  std::uint8_t* out = c.out + token * c.out_stride[0] + head * c.out_stride[1];
  float weight = device::widened(static_cast<const In*>(c.weights)[token * c.weights_stride + head]);
  if (c.element == Element::kE4M3) {
    weight = __fmul_rn(weight, store_fp8(c, x, out));
  } else if (c.element == Element::kE2M1) {
    store_mxfp4(c, x, out, c.scale + token * c.scale_stride[0] + head * c.scale_stride[1]);
  } else {
#pragma unroll
    for (int k = 0; k < kVec4s; ++k) {
      const int q = 32 * k + static_cast<int>(threadIdx.x);
      if (4 * q < c.dim) device::store_part(Element::kF32, out, q, x[k]);
    }
  }
  if (threadIdx.x == 0)
    c.weights_out[token * c.weights_out_stride + head] = __fmul_rn(__fmul_rn(weight, c.dim_factor), c.head_factor);
}

/// How many pairs of heads a warp takes. It loads them all at once. With many tokens it takes many, so that its work
/// for the token is shared.
constexpr int kManyPairs = 4;
int pairs_of_warp(std::int64_t tokens) { return tokens < 256 ? 1 : kManyPairs; }

/// Loads a word, past L1 where that may have what the word was before.
template <bool kPastL1, class Word>
__device__ Word load_word(const Word* from) {
  if constexpr (kPastL1) return __ldcg(from);
  return *from;
}

/// Quantised heads of 128 numbers, loaded 16 bytes at a time. Half a warp has a head, so the Hadamard transform needs
/// fewer shuffles. Position and rotation of the token are looked up once for all pairs of heads.
///
/// kRehearses: a round before the wait (IndexerQ::Args::rehearses). L1 has what that round has read when the kernels
/// ahead have ended, so that everything is read past it.
template <int kPairs, bool kRehearses, class In>
__global__ void __launch_bounds__(32 * HeadGrid::kWarps) queries_of_128(const __grid_constant__ QueryCall c) {
  const std::int64_t token = c.grid.token();
  const int first = 2 * kPairs * static_cast<int>(c.grid.head());
  const int heads = static_cast<int>(c.heads);
  const int lane = static_cast<int>(threadIdx.x) % 16;
  // Past the last head, the last one is computed again and not stored.
  const auto head_of = [&](int pair) { return min(first + 2 * pair + static_cast<int>(threadIdx.x) / 16, heads - 1); };
  const In* q = static_cast<const In*>(c.q) + token * c.q_stride[0] + 8 * lane;
  const In* given = static_cast<const In*>(c.weights) + token * c.weights_stride;
#pragma unroll 1
  for (int round = kRehearses ? 0 : 1; round < 2; ++round) {
    const bool last = round == 1;
    if (last) device::pdl_wait_and_trigger();
    if (first >= heads) continue;
    const auto* const positions = reinterpret_cast<const long long*>(c.positions);
    const std::int64_t given_position = load_word<kRehearses>(positions + token);
    const std::int64_t position = min(max(given_position, std::int64_t{0}), c.rope.rows - 1);
    float4 x[kPairs][2];
    float weight[kPairs];
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      const In* from = q + head_of(p) * c.q_stride[1];
      if constexpr (sizeof(In) == 2) {
        const uint4 raw = load_word<kRehearses>(reinterpret_cast<const uint4*>(from));
        x[p][0] = device::widened(make_uint2(raw.x, raw.y)), x[p][1] = device::widened(make_uint2(raw.z, raw.w));
      } else {
        const auto* const fours = reinterpret_cast<const float4*>(from);
        x[p][0] = load_word<kRehearses>(fours), x[p][1] = load_word<kRehearses>(fours + 1);
      }
      using Bits = std::conditional_t<sizeof(In) == 2, std::uint16_t, std::uint32_t>;
      const Bits bits = load_word<kRehearses>(reinterpret_cast<const Bits*>(given) + head_of(p));
      weight[p] = __uint_as_float(sizeof(In) == 2 ? static_cast<std::uint32_t>(bits) << 16 : bits);
    }
    const float* cos_sin = c.rope.row(position);
    float cosine[4];
    float sine[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int pair = (8 * lane + 2 * k - c.rope.nope) / 2;
      const bool in_rope = 8 * lane + 2 * k >= c.rope.nope && pair < c.rope.pairs;
      cosine[k] = in_rope ? load_word<kRehearses>(cos_sin + pair) : 1.0F;
      sine[k] = in_rope ? load_word<kRehearses>(cos_sin + c.rope.pairs + pair) : 0.0F;
    }
    const int first_rope_pair = (c.rope.nope - 8 * lane + 1) / 2;  // first of this lane's pairs that is rotated
    const auto rotate = [&](float& even, float& odd, int k) {
      if (k >= first_rope_pair) Rope::rotate(even, odd, cosine[k], sine[k]);
    };
    std::uint8_t* const out = c.out + token * c.out_stride[0];
    float* const weights_out = c.weights_out + token * c.weights_out_stride;
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      float4(&v)[2] = x[p];
      rotate(v[0].x, v[0].y, 0), rotate(v[0].z, v[0].w, 1), rotate(v[1].x, v[1].y, 2), rotate(v[1].z, v[1].w, 3);
      round_all(v);
      if (c.hadamard) {
        device::hadamard_of_half(v);
        round_all(v);
      }
      const int head = head_of(p);
      const bool there = last && first + 2 * p + static_cast<int>(threadIdx.x) / 16 < heads;
      std::uint8_t* const to = out + head * c.out_stride[1];
      const float amax = fmaxf(device::largest_magnitude(v[0]), device::largest_magnitude(v[1]));
      if (c.element == Element::kE4M3) {
        const int e = e4m3_group_exponent(device::max_of_lanes(amax, 16), false);
        const float factor = exp2_int(-e);
        const auto codes = [&](float4 a) { return device::narrowed<E4M3>(device::scaled(a, factor)); };
        if (there) device::put(to + 8 * lane, make_uint2(codes(v[0]), codes(v[1])));
        weight[p] = __fmul_rn(weight[p], exp2_int(e));
      } else {
        constexpr int kLanes = 4;  // lanes of a group of 32
        const int e = e2m1_group_exponent(device::max_of_lanes(amax, kLanes));
        const float factor = exp2_int(-e);
        const auto codes = [&](float4 a) {
          return static_cast<std::uint32_t>(device::e2m1_codes(device::scaled(a, factor)));
        };
        if (there) device::put(to + 4 * lane, codes(v[0]) | codes(v[1]) << 16);
        std::uint8_t* scales = c.scale + token * c.scale_stride[0] + head * c.scale_stride[1];
        if (there && lane % kLanes == 0) scales[lane / kLanes] = static_cast<std::uint8_t>(e + 127);
      }
      if (there && lane == 0) weights_out[head] = __fmul_rn(__fmul_rn(weight[p], c.dim_factor), c.head_factor);
    }
  }
}

/// Whether queries_of_128 takes the call's heads.
bool by_halves(const IndexerQ::Problem& p, const ConstTensorView& q) {
  const std::int64_t eights = 16 / size_of(q.dtype);
  const bool aligned = reinterpret_cast<std::uintptr_t>(q.data) % 16 == 0 &&
                       (q.size(0) <= 1 || q.stride[0] % eights == 0) && (q.size(1) <= 1 || q.stride[1] % eights == 0);
  const bool group = p.format->nope == Element::kE4M3 || (p.format->nope == Element::kE2M1 && p.format->group == 32);
  return aligned && group && p.dim == 128;
}

Decision decide(const IndexerQ::Problem& p, const PlanOptions& /*options*/, const Machine& machine) {
  std::string reason = needs_gpu(machine);
  if (reason.empty() && p.dim > kMaxDim) reason = "dim above " + std::to_string(kMaxDim);
  if (reason.empty() && p.format->nope == Element::kE2M1) reason = device::encoder_refusal(*p.format);
  return refused(std::move(reason));
}

void run(const IndexerQ::Problem& p, const IndexerQ::Args& a, const RunContext& context) {
  if (p.tokens == 0) return;
  const bool has_scale = !a.q_scale.absent();
  const std::int64_t out_bytes = size_of(a.q_out.dtype);
  const bool halves = by_halves(p, a.q);
  const int pairs = pairs_of_warp(p.tokens);
  const QueryCall c{.q = a.q.data,
                    .q_stride = {a.q.stride[0], a.q.stride[1]},
                    .by_fours = device::by_fours(a.q),
                    .weights = a.weights.data,
                    .weights_stride = a.weights.stride[0],
                    .positions = static_cast<const std::int64_t*>(a.positions.data),
                    .rope = rope_of(a.cos_sin, p.dim, p.rope_dim),
                    .out = static_cast<std::uint8_t*>(a.q_out.data),
                    .out_stride = {a.q_out.stride[0] * out_bytes, a.q_out.stride[1] * out_bytes},
                    .scale = has_scale ? static_cast<std::uint8_t*>(a.q_scale.data) : nullptr,
                    .scale_stride = {has_scale ? a.q_scale.stride[0] : 0, has_scale ? a.q_scale.stride[1] : 0},
                    .weights_out = static_cast<float*>(a.weights_out.data),
                    .weights_out_stride = a.weights_out.stride[0],
                    .heads = p.heads,
                    .grid = HeadGrid::of(halves ? (p.heads + 2 * pairs - 1) / (2 * pairs) : p.heads),
                    .dim = p.dim,
                    .group = p.format->group,
                    .element = p.format->nope,
                    .hadamard = p.hadamard,
                    .dim_factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(p.dim))),
                    .head_factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(p.heads)))};
  const bool rehearses = a.rehearses && device::current_gpu().capability >= 90;  // others start no kernel early
  device::with_float(p.in, [&]<class In>(In) {
    const auto start = [&]<auto kKernel>() {
      device::launch_pdl<kKernel>("queries", c.grid.blocks(p.tokens), c.grid.block(), 0, stream_of(context.stream), c);
    };
    if (halves && pairs == 1 && rehearses) {
      start.template operator()<queries_of_128<1, true, In>>();
    } else if (halves && pairs == 1) {
      start.template operator()<queries_of_128<1, false, In>>();
    } else if (halves) {
      start.template operator()<queries_of_128<kManyPairs, false, In>>();
    } else if (p.dim <= 128) {
      start.template operator()<queries<1, In>>();
    } else {
      start.template operator()<queries<kMaxDim / 128, In>>();
    }
  });
}

}  // namespace

template <>
Implementation<IndexerQ> cuda_row() {
  return any_gpu_row<IndexerQ>(run, decide);
}

}  // namespace smla
