#pragma once

#include "device/halves.cuh"
#include "device/ptx/barrier.cuh"
#include "device/ptx/cp_async.cuh"
#include "device/ptx/ldmatrix.cuh"
#include "device/ptx/mma_sm80.cuh"
#include "ops/attention/small_rows_sm90.cuh"
#include "ops/head_rows.cuh"

namespace smla::attention::small {

/// The power of two above a row's largest number by which it is divided to become fp16 numbers, and one over it. Very
/// small and very large numbers get the nearest one that has an inverse.
__device__ inline float unit_above(float largest) {
  const std::uint32_t exponent = min(max(__float_as_uint(largest) >> 23, 1U), 250U);
  return __uint_as_float(exponent + 1 << 23);
}
__device__ inline float per_unit(float unit) { return __uint_as_float((254U << 23) - __float_as_uint(unit)); }

/// A warp that computes: 64 numbers of the rows' products with all queries, and as many columns of the output.
template <int kBlocks>
struct Compute {
  using Work = small::Work<kBlocks>;
  static constexpr int kOwnHeads = Work::kOwnHeads;
  static constexpr float kLeastUnit = 0x1p-126F;
  static constexpr float kMostUnit = 0x1p126F;
  static constexpr float kUnits = 0x1p64F;      ///< how far apart units may be, or sums could overflow
  static constexpr float kHalfRange = 0x1p10F;  ///< how far apart a tile's scales may be where weights are fp16 numbers
  const Work& w;
  int warp;  ///< and the group of 64 numbers
  int lane = static_cast<int>(threadIdx.x) % 32;
  int row = lane / 4;     ///< of its heads: this one and 8 more
  int fourth = lane % 4;  ///< its numbers of a row, and its keys
  bool codes;             ///< whether its numbers are codes
  float o[8][4] = {};
  float reference = -INFINITY;   ///< of softmax_head()
  float sum = 0;                 ///< this thread's
  float largest_scale = 0;       ///< of the tile
  float smallest_scale = 0;      ///< likewise
  float unit = kLeastUnit;       ///< a power of two by which o is divided: the largest scale of the last tile
  float most_unit = kLeastUnit;  ///< so far

  __device__ Compute(const Work& work, int warp_in)
      : w(work), warp(warp_in), codes(warp_in < work.c.layout[0].key.code_groups) {}

  /// The head whose softmax the thread's half of a warp makes: two apart, which have no bank in common.
  __device__ int softmax_head() const { return warp / 2 * 4 + warp % 2 + lane / 16 * 2; }
  __device__ static void meet() { device::bar_sync(kBarrier, kComputeThreads); }

  __device__ std::uint32_t query(int head) const { return w.shared + Place::kQueries + head * Place::kQueryBytes; }
  /// Starts copying two queries as they are.
  __device__ void copy_queries() const {
    const bool narrow = w.c.a.q_dtype == DType::kE4M3;
    const int bytes = narrow ? kDim : 2 * kDim;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int head = 2 * warp + h;
      const std::int64_t at = w.token * w.c.a.q_stride[0] + (w.first_head + head) * w.c.a.q_stride[1];
      const auto* q = static_cast<const std::uint8_t*>(w.c.a.q) + (narrow ? at : 2 * at) + 16 * lane;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (512 * i < bytes) device::cp_async<16>(query(head) + 16 * lane + 512 * i, q + 512 * i, head < w.heads);
      }
    }
    device::cp_async_commit();
  }
  /// Norms and rotates them where the call asks for it, and makes fp16 numbers over a power of two of those that meet
  /// codes; the others stay bf16. Of each 64 a lane of score() multiplies 16 in a row, four in each of four products:
  /// pairs of numbers lie in the order in which ldmatrix hands them out.
  __device__ void make_queries(const float* row_of) const {
    const TileCall& c = w.c;
    device::cp_async_wait<0>();
    __syncwarp();
#pragma unroll 1
    for (int head = 2 * warp; head < 2 * warp + 2; ++head) {
      uint2 raw[4];
      float4 v[4];
      if (w.c.a.q_dtype == DType::kE4M3) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          v[k] = device::widened_codes(device::ld_shared_u32(query(head) + 128 * k + 4 * lane));
          raw[k] = device::computed<BF16>(v[k]);
        }
      } else {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          raw[k] = device::ld_shared_v2(query(head) + 256 * k + 8 * lane);
          v[k] = device::widened(raw[k]);
        }
      }
      __syncwarp();  // others' numbers are written over
      if (row_of != nullptr) {
        device::Squares squares;
#pragma unroll
        for (int k = 0; k < 4; ++k) squares.add(v[k]);
        const float factor = inverse_root(device::sum_of_warp(squares.all()), kDim, c.a.q_eps);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          v[k] = device::scaled(v[k], factor);
          if (k == 3) v[k] = c.a.q_rope.rotated(v[k], 128 * k + 4 * lane, row_of);
          raw[k] = device::computed<BF16>(v[k]);
          v[k] = device::widened(raw[k]);
        }
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float unit = unit_above(device::max_of_lanes(device::largest_magnitude(v[k]), 16));
        const float per = per_unit(unit);
        const int group = 2 * k + lane / 16;
        if (group < c.layout[0].key.code_groups)
          raw[k] =
              make_uint2(device::halves_of(v[k].x * per, v[k].y * per), device::halves_of(v[k].z * per, v[k].w * per));
        const std::uint32_t to = query(head) + 128 * group + 32 * (lane % 4) + 4 * (lane / 4 % 4);
        device::st_shared_u32(to, raw[k].x);
        device::st_shared_u32(to + 16, raw[k].y);
        if (lane % 16 == 0) device::st_shared_f32(w.shared + Place::kQueryUnits + 4 * (head * kGroups + group), unit);
      }
    }
  }

  /// The key of a step that is a product's column, of the first of two products; the second has the next key. Two
  /// columns next to each other are four or twelve keys apart, whose rows have no bank in common.
  __device__ static int key_of_column(int column) { return column % 2 == 0 ? column : 8 + (column + 3) % 8; }
  /// The share of the scores that the warp's group has.
  __device__ void score(int stage, int keys) {
    float top = 0;
    float bottom = INFINITY;
    float of_group[2];  // of two heads
    std::uint32_t a[4][4];
    const std::uint32_t queries = query(lane % 16) + 128 * warp + 16 * (lane / 16);
#pragma unroll
    for (int k = 0; k < 4; ++k) device::ldmatrix_x4(a[k], queries + 32 * k);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::uint32_t at = w.shared + Place::kQueryUnits + 4 * ((row + 8 * r) * kGroups + warp);
      of_group[r] = codes ? device::ld_shared_f32(at) : 1.0F;
    }
    const std::uint32_t rows =
        w.row(stage, key_of_column(row)) + (codes ? 64 * warp + 16 * fourth : row_of_rest() + 32 * fourth);
    const std::uint32_t scores = w.shared + Place::kScores + (warp * kHeads + row) * Place::kScoreBytes;
    const int column[2] = {key_of_column(2 * fourth), key_of_column(2 * fourth + 1)};
    // Two products of eight keys at a time; what the next two read is asked for before these are made.
    const auto each = [&]<int kWords>(auto&& products) {
      uint4 v[2][kWords];
      float2 scale[2];  // of two keys next to each other, in either column
      const auto ask = [&](int key) {
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          scale[n] = numbers_at(w.scale(stage, warp, key + column[n]));
#pragma unroll
          for (int i = 0; i < kWords; ++i) v[n][i] = device::ld_shared_v4(rows + (key + n) * Place::kRowBytes + 16 * i);
        }
      };
      ask(0);
#pragma unroll 1
      for (int key = 0; key < keys; key += kStep) {
        float d[2][4] = {};
        uint4 now[2][kWords];
        const float2 of_columns[2] = {scale[0], scale[1]};
#pragma unroll
        for (int n = 0; n < 2; ++n) {
#pragma unroll
          for (int i = 0; i < kWords; ++i) now[n][i] = v[n][i];
        }
        if (key + kStep < keys) ask(key + kStep);
        products(now, d);
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const float2 f = of_columns[n];
          top = fmaxf(top, fmaxf(f.x, f.y));
          bottom = fminf(bottom, fminf(f.x, f.y));
          const std::uint32_t to = scores + 4 * (key + column[n]);
          put_numbers(to, d[0][n] * (f.x * of_group[0]), d[1][n] * (f.y * of_group[0]));
          put_numbers(to + 8 * Place::kScoreBytes, d[0][2 + n] * (f.x * of_group[1]),
                      d[1][2 + n] * (f.y * of_group[1]));
        }
      }
    };
    if (codes) {
      each.template operator()<1>([&](const uint4(&v)[2][1], float(&d)[2][4]) {
        std::uint32_t b[2][8];
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          device::widen_codes(v[n][0].x, b[n][0], b[n][1]), device::widen_codes(v[n][0].y, b[n][2], b[n][3]);
          device::widen_codes(v[n][0].z, b[n][4], b[n][5]), device::widen_codes(v[n][0].w, b[n][6], b[n][7]);
        }
        float rest[2][4] = {};
#pragma unroll
        for (int k = 0; k < 4; k += 2) {
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            device::mma_m16n8k16_f16(d[n], a[k], b[n][2 * k], b[n][2 * k + 1]);
            device::mma_m16n8k16_f16(rest[n], a[k + 1], b[n][2 * k + 2], b[n][2 * k + 3]);
          }
        }
#pragma unroll
        for (int i = 0; i < 8; ++i) d[i / 4][i % 4] += rest[i / 4][i % 4];
      });
    } else {
      each.template operator()<2>([&](const uint4(&v)[2][2], float(&d)[2][4]) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            const uint4& u = v[n][k / 2];
            device::mma_m16n8k16_bf16(d[n], a[k], k % 2 == 0 ? u.x : u.z, k % 2 == 0 ? u.y : u.w);
          }
        }
      });
    }
    top = fmaxf(top, __shfl_xor_sync(kAll, top, 1));
    largest_scale = fmaxf(top, __shfl_xor_sync(kAll, top, 2));
    bottom = fminf(bottom, __shfl_xor_sync(kAll, bottom, 1));
    smallest_scale = fminf(bottom, __shfl_xor_sync(kAll, bottom, 2));
  }
  /// Where the warp's bf16 numbers begin in a row.
  __device__ int row_of_rest() const {
    const int groups = w.c.layout[0].key.code_groups;
    return 64 * groups + 128 * (warp - groups);
  }

  /// Makes weights of a head's scores, 16 threads a head.
  __device__ void weigh(int stage, int steps) {
    const int own = lane % 16;
    const int head = softmax_head();
    const std::uint32_t scores = w.shared + Place::kScores + head * Place::kScoreBytes + 4 * own;
    const std::uint32_t masks = w.shared + Place::kMasks + (stage * kKeys + own) * 8;
    const std::uint32_t weights = w.shared + Place::kWeights + head * Place::kScoreBytes + 4 * own;
    const std::uint32_t of_weights = w.shared + Place::kWeigh + (stage * kKeys + own) * 4;
    float s[kSteps];
    float factor[kSteps];
    float largest = reference;
    const auto part = [&](int i) {
      float x[kGroups];
#pragma unroll
      for (int g = 0; g < kGroups; ++g)
        x[g] = device::ld_shared_f32(scores + g * kHeads * Place::kScoreBytes + 4 * kStep * i);
      const float2 mask = numbers_at(masks + 8 * kStep * i);
      factor[i] = device::ld_shared_f32(of_weights + 4 * kStep * i);
      s[i] = fmaf(((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7])), mask.x, mask.y);
      if (i >= steps) s[i] = -INFINITY;
      largest = fmaxf(largest, s[i]);
    };
    part(0);
    if (steps > 1) {
      part(1);
      if (steps > 2) part(2), part(3), part(4);
    }
#pragma unroll
    for (int i = 8; i > 0; i /= 2) largest = fmaxf(largest, __shfl_xor_sync(kAll, largest, i));
    const float shift = largest == -INFINITY ? 0 : largest;
    const float rescale = exp2f(reference - shift);
    sum *= rescale;
    reference = largest;
    if (own == 0) device::st_shared_f32(w.shared + Place::kFactors + 4 * head, rescale);
    const auto weigh_part = [&](int i) {
      const float weight = i < steps ? device::exp2_approx(s[i] - shift) : 0;
      sum += weight;
      device::st_shared_f32(weights + 4 * kStep * i, weight * factor[i]);
    };
    weigh_part(0);
    if (steps > 1) {
      weigh_part(1);
      if (steps > 2) weigh_part(2), weigh_part(3), weigh_part(4);
    }
  }

  /// Adds weights times values to the warp's columns, o being divided by `unit` of codes. o[2 i + p] has columns
  /// 16 i + 4 fourth + p and + 2 of a group of codes, o[i] columns 8 i + 2 fourth and the next of a group of bf16
  /// numbers.
  __device__ void add_values(int stage, int keys) {
    const std::uint32_t factors = w.shared + Place::kFactors + 4 * row;
    float low = device::ld_shared_f32(factors);
    float high = device::ld_shared_f32(factors + 32);
    if (codes) {
      const float of_tile = fminf(fmaxf(fmaxf(largest_scale, most_unit / kUnits), kLeastUnit), kMostUnit);
      const float change = unit * per_unit(of_tile);
      unit = of_tile;
      most_unit = fmaxf(most_unit, unit);
      low *= change, high *= change;
    }
#pragma unroll
    for (int n = 0; n < 8; ++n) o[n][0] *= low, o[n][1] *= low, o[n][2] *= high, o[n][3] *= high;
    const std::uint32_t weights = w.shared + Place::kWeights + row * Place::kScoreBytes + 8 * fourth;
    const std::uint32_t rows = w.row(stage, lane % 8) + 16 * (lane / 8);
    if (!codes) {
      add_bf16(weights, w.row(stage, lane % 16) + row_of_rest() + 16 * (lane / 16), keys);
    } else if (smallest_scale * kHalfRange >= unit) {
      add_codes(weights, w.scale(stage, warp, 2 * fourth), rows + 64 * warp, keys);
    } else {
      add_codes_of_any_scale(weights, w.scale(stage, warp, 2 * fourth), rows + 64 * warp, keys);
    }
  }
  /// Weights of a step of 16 keys, of the lane's two heads.
  struct Weights {
    float2 x[2], y[2];
    __device__ void ask(std::uint32_t at) {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        x[i] = numbers_at(at + 32 * i), y[i] = numbers_at(at + 32 * i + 8 * Place::kScoreBytes);
    }
  };
  /// Codes and weights times scales as fp16 numbers: of a tile whose scales lie no further apart than kHalfRange.
  __device__ void add_codes(std::uint32_t weights, std::uint32_t scales, std::uint32_t rows, int keys) {
    const float per = per_unit(unit);
    Weights v;
    float2 scale[2];
    std::uint32_t columns[2][4];
    const auto ask = [&](int key) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        device::ldmatrix_x4_trans(columns[i], rows + (key + 8 * i) * Place::kRowBytes);
        scale[i] = numbers_at(scales + 4 * (key + 8 * i));
      }
      v.ask(weights + 4 * key);
    };
    ask(0);
#pragma unroll 1
    for (int key = 0; key < keys; key += kStep) {
      std::uint32_t a[4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float2 f = {scale[i].x * per, scale[i].y * per};
        a[2 * i] = device::halves_of(v.x[i].x * f.x, v.x[i].y * f.y);
        a[2 * i + 1] = device::halves_of(v.y[i].x * f.x, v.y[i].y * f.y);
      }
      // Two keys' codes of a column next to each other, as products take their numbers.
      std::uint32_t b[2][4];
#pragma unroll
      for (int i = 0; i < 8; ++i) b[i / 4][i % 4] = __byte_perm(columns[i / 4][i % 4], 0, 0x3120);
      if (key + kStep < keys) ask(key + kStep);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        std::uint32_t even[2];
        std::uint32_t odd[2];
        device::widen_codes(b[0][i], even[0], odd[0]);
        device::widen_codes(b[1][i], even[1], odd[1]);
        device::mma_m16n8k16_f16(o[2 * i], a, even[0], even[1]);
        device::mma_m16n8k16_f16(o[2 * i + 1], a, odd[0], odd[1]);
      }
    }
  }
  /// Numbers stored as bf16, times weights as sums of two bf16 numbers.
  __device__ void add_bf16(std::uint32_t weights, std::uint32_t rows, int keys) {
#pragma unroll 1
    for (int key = 0; key < keys; key += kStep) {
      std::uint32_t b[4][4];  // of two times eight columns each: of keys, of the next eight
#pragma unroll
      for (int i = 0; i < 4; ++i) device::ldmatrix_x4_trans(b[i], rows + key * Place::kRowBytes + 32 * i);
      Weights v;
      v.ask(weights + 4 * key);
      std::uint32_t a[4];
      std::uint32_t rest[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 f = i % 2 == 0 ? v.x[i / 2] : v.y[i / 2];
        a[i] = bf16_pair(f.x, f.y);
        rest[i] = bf16_pair(f.x - __uint_as_float(a[i] << 16), f.y - __uint_as_float(a[i] & 0xFFFF'0000U));
      }
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        device::mma_m16n8k16_bf16(o[i], a, b[i / 2][i % 2 * 2], b[i / 2][i % 2 * 2 + 1]);
        device::mma_m16n8k16_bf16(o[i], rest, b[i / 2][i % 2 * 2], b[i / 2][i % 2 * 2 + 1]);
      }
    }
  }
  /// Codes of any tile, by products of tf32 numbers, which have the range of fp32.
  __device__ void add_codes_of_any_scale(std::uint32_t weights, std::uint32_t scales, std::uint32_t rows, int keys) {
    const float per = per_unit(unit);
#pragma unroll 1
    for (int key = 0; key < keys; key += 8) {
      const float2 x = numbers_at(weights + 4 * key);
      const float2 y = numbers_at(weights + 4 * key + 8 * Place::kScoreBytes);
      const float2 scale = numbers_at(scales + 4 * key);
      const float2 f = {scale.x * per, scale.y * per};
      const std::uint32_t a[4] = {device::to_tf32(x.x * f.x), device::to_tf32(y.x * f.x), device::to_tf32(x.y * f.y),
                                  device::to_tf32(y.y * f.y)};
      std::uint32_t b[4];
      device::ldmatrix_x4_trans(b, rows + key * Place::kRowBytes);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float4 v = device::widened_codes(b[i]);  // of two keys two numbers each
        device::mma_m16n8k8_tf32(o[2 * i], a, __float_as_uint(v.x), __float_as_uint(v.z));
        device::mma_m16n8k8_tf32(o[2 * i + 1], a, __float_as_uint(v.y), __float_as_uint(v.w));
      }
    }
  }
  __device__ static std::uint32_t bf16_pair(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    std::uint32_t bits;
    memcpy(&bits, &pair, 4);
    return bits;
  }

  /// Sends each head's sums to the block that finishes it, as fp16 numbers over a power of two.
  __device__ void send() {
    float largest[2] = {0, 0};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float of_four[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        of_four[i] = fmaxf(fmaxf(fabsf(o[2 * i][2 * r]), fabsf(o[2 * i][2 * r + 1])),
                           fmaxf(fabsf(o[2 * i + 1][2 * r]), fabsf(o[2 * i + 1][2 * r + 1])));
      largest[r] = fmaxf(fmaxf(of_four[0], of_four[1]), fmaxf(of_four[2], of_four[3]));
    }
#pragma unroll
    for (int i = 8; i > 0; i /= 2) {
      sum += __shfl_xor_sync(kAll, sum, i);
      if (i > 2) continue;
#pragma unroll
      for (int r = 0; r < 2; ++r) largest[r] = fmaxf(largest[r], __shfl_xor_sync(kAll, largest[r], i));
    }
    const auto inbox = [&](std::uint32_t at, int head, int bytes) {
      return device::place_in_block(w.shared + at + (w.rank * kOwnHeads + head % kOwnHeads) * bytes, head / kOwnHeads);
    };
    std::uint32_t to[2];
    float of_halves[2];
    std::uint32_t halves[2][8];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      to[r] = inbox(Place::kSums, row + 8 * r, 2 * kDim) + 128 * warp + (codes ? 8 : 4) * fourth;
      of_halves[r] = unit_above(largest[r]);
      const float per = per_unit(of_halves[r]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float(&x)[4] = o[2 * i];
        const float(&y)[4] = o[2 * i + 1];
        halves[r][2 * i] = device::halves_of(x[2 * r] * per, (codes ? y[2 * r] : x[2 * r + 1]) * per);
        halves[r][2 * i + 1] = device::halves_of((codes ? x[2 * r + 1] : y[2 * r]) * per, y[2 * r + 1] * per);
      }
    }
    device::cluster_wait();
    const auto barrier_of = [&](int head) {
      return device::place_in_block(w.shared + Place::kInbox, head / kOwnHeads);
    };
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const std::uint32_t barrier = barrier_of(row + 8 * r);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (codes) {
          device::st_async(to[r] + 32 * i, make_uint2(halves[r][2 * i], halves[r][2 * i + 1]), barrier);
        } else {
          device::st_async(to[r] + 32 * i, halves[r][2 * i], barrier);
          device::st_async(to[r] + 32 * i + 16, halves[r][2 * i + 1], barrier);
        }
      }
      if (fourth == 0)
        device::st_async(inbox(Place::kUnits, row + 8 * r, kGroups * 4) + 4 * warp,
                         __float_as_uint(of_halves[r] * (codes ? unit : 1.0F)), barrier);
    }
    if (lane % 16 == 0) {
      const int head = softmax_head();
      device::st_async(inbox(Place::kStates, head, 8), make_uint2(__float_as_uint(reference), __float_as_uint(sum)),
                       barrier_of(head));
    }
  }

  /// Adds up what the cluster's blocks have sent of a head of the block, and writes it. `row`: of cos_sin, by which it
  /// is rotated back, or null.
  __device__ void finish_head(int own, const float* row) const {
    const int of_cluster = kOwnHeads * w.rank + own;
    const int head = w.first_head + of_cluster;
    if (of_cluster >= kHeads || head >= w.c.a.out_heads) return;
    const TileCall& c = w.c;
    const int column = (32 * warp + lane) % (kDim / 4) * 4;
    float2 state[kBlocks];
    float unit[kBlocks];
    uint2 bits[kBlocks];
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      const int from = i * kOwnHeads + own;
      state[i] = numbers_at(w.shared + Place::kStates + from * 8);
      unit[i] = device::ld_shared_f32(w.shared + Place::kUnits + (from * kGroups + column / 64) * 4);
      bits[i] = device::ld_shared_v2(w.shared + Place::kSums + 2 * (from * kDim + column));
    }
    float top = state[0].x;
#pragma unroll
    for (int i = 1; i < kBlocks; ++i) top = fmaxf(top, state[i].x);
    const float shift = top == -INFINITY ? 0 : top;
    float all = 0;
    float4 total = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      const float weight = exp2f(state[i].x - shift);
      all = fmaf(state[i].y, weight, all);
      const float2 low = device::numbers_of(bits[i].x);
      const float2 high = device::numbers_of(bits[i].y);
      const float f = weight * unit[i];
      total.x = fmaf(low.x, f, total.x), total.y = fmaf(low.y, f, total.y);
      total.z = fmaf(high.x, f, total.z), total.w = fmaf(high.y, f, total.w);
    }
    const Finish f = finish(c.a.partial, device::ld_shared_f32(w.shared + Place::kSinks + 4 * of_cluster), top, all);
    if (f.factor == 0) total = make_float4(0, 0, 0, 0);  // infinite sums times 0 would be NaN
    total = c.rotated_back(row, column, finished(total, f.factor * c.unit));
    if (head >= c.a.heads) total = make_float4(0, 0, 0, 0);
    const std::int64_t at = w.token * c.a.o_stride[0] + head * c.a.o_stride[1] + column;
    store(c, at, total);
    if (column == 0 && head < c.a.heads && c.a.lse != nullptr)
      c.a.lse[w.token * c.a.lse_stride[0] + head * c.a.lse_stride[1]] = f.lse;
  }
};

}  // namespace smla::attention::small
