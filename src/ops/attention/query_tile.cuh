#pragma once

#include "device/ptx/cp_async.cuh"
#include "device/ptx/prefetch.cuh"
#include "device/ptx/shared.cuh"
#include "ops/attention/attention_block.cuh"
#include "ops/attention/tile_math.cuh"
#include "ops/head_rows.cuh"

namespace smla::attention {

/// The queries of a block in shared memory, in fp16 once finish() has run. Rows past the last head are zeros.
template <AttentionTile kTile>
struct Queries {
  const TileCall& c;
  std::uint32_t shared;
  std::int64_t first;  ///< index of the first head's first number in q
  std::uint32_t list;
  std::uint32_t first_head;
  int heads;
  bool codes;

  __device__ Queries(const TileCall& call, std::uint32_t shared_at, std::int64_t token, std::int64_t first_of_tile,
                     int heads_in)
      : c(call),
        shared(shared_at),
        first(token * call.a.q_stride[0] + first_of_tile * call.a.q_stride[1]),
        list(static_cast<std::uint32_t>(token)),
        first_head(static_cast<std::uint32_t>(first_of_tile)),
        heads(heads_in),
        codes(call.a.q_dtype == DType::kE4M3) {}

  /// Starts copying the queries unconverted; each group's pieces go to the group's place.
  __device__ void start() const {
    if (codes) {
      start_pieces<1>();
    } else {
      start_pieces<2>();
    }
  }

  /// Prefetches the queries of a later token to L2.
  __device__ void fetch_later(std::int64_t tokens_ahead) const {
    constexpr int kLine = 128;
    const int bytes = codes ? AttentionTile::kDim : 2 * AttentionTile::kDim;
    const auto* from =
        static_cast<const std::uint8_t*>(c.a.q) + (codes ? 1 : 2) * (first + tokens_ahead * c.a.q_stride[0]);
    const std::int64_t head_bytes = (codes ? 1 : 2) * c.a.q_stride[1];
#pragma unroll 1
    for (int i = kLine * static_cast<int>(threadIdx.x); i < heads * bytes; i += kLine * kThreads)
      device::prefetch(from + i / bytes * head_bytes + i % bytes);
  }

  /// Norms the queries and rotates them by `row` of cos_sin, those of packed tokens by a row each, in place, in bf16. A
  /// warp takes kAtOnce heads at a time. Needs a barrier before and after.
  template <Lists kLists>
  __device__ void norm_and_rotate(const float* row) const {
    constexpr int kAtOnce = 2;
    constexpr int kVec4s = kDim / 128;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const auto place = [&](int head, int k) { return shared + q_at(head, 16 * k + lane / 2) + lane % 2 * 8; };
#pragma unroll 1
    for (int head = static_cast<int>(threadIdx.x) / 32 * kAtOnce; head < heads;
         head += AttentionTile::kWarps * kAtOnce) {
      float4 v[kAtOnce][kVec4s];
#pragma unroll
      for (int h = 0; h < kAtOnce; ++h) {
#pragma unroll
        for (int k = 0; k < kVec4s; ++k) v[h][k] = device::widened(device::ld_shared_v2(place(head + h, k)));
      }
      const float* rows[kAtOnce];
#pragma unroll
      for (int h = 0; h < kAtOnce; ++h)
        rows[h] = kLists == Lists::kPacked ? c.a.q_row(list, first_head + head + h) : row;
      smla::norm_and_rotate(v, kDim, c.a.q_eps, c.a.q_rope, rows);
#pragma unroll
      for (int h = 0; h < kAtOnce; ++h) {
        if (kLists == Lists::kPacked && rows[h] == nullptr) continue;
#pragma unroll
        for (int k = 0; k < kVec4s; ++k) device::st_shared_v2(place(head + h, k), device::computed<BF16>(v[h][k]));
      }
    }
  }

  /// Converts the queries to fp16 in place; a thread takes one group of one head. Needs a barrier before and after.
  /// Returns whether fp16 cannot represent a number.
  __device__ bool finish() const {
    std::uint32_t overflow = 0;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < kTile.heads * AttentionTile::kGroups; i += kThreads) {
      const int head = i % kTile.heads;
      const int group = i / kTile.heads;
      std::uint32_t pairs[32];
      if (codes) {
#pragma unroll
        for (int p = 0; p < 4; ++p) {
          const uint4 v = device::ld_shared_v4(shared + q_at(head, 8 * group + p));
          const std::uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
          for (int w = 0; w < 4; ++w) {
            std::uint32_t(&low) = pairs[8 * p + 2 * w];
            std::uint32_t(&high) = pairs[8 * p + 2 * w + 1];
            if (misread_nan(word[w])) overflow = ~0U;
            widen_codes(word[w], low, high);
            constexpr std::uint32_t kRest = ((15U + kCodeShift) << 10) * 0x1'0001U;
            if constexpr (kCodeShift != 0) low = multiply_halves(low, kRest), high = multiply_halves(high, kRest);
          }
        }
      } else {
#pragma unroll
        for (int p = 0; p < 8; ++p) {
          const uint4 v = device::ld_shared_v4(shared + q_at(head, 8 * group + p));
          const std::uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
          for (int w = 0; w < 4; ++w) {
            pairs[4 * p + w] = halves_of(__uint_as_float(word[w] << 16), __uint_as_float(word[w] & 0xFFFF'0000U));
            overflow |= fp16_overflow(pairs[4 * p + w]);
          }
        }
      }
#pragma unroll
      for (int p = 0; p < 8; ++p) {
        device::st_shared_v4(shared + q_at(head, 8 * group + p),
                             make_uint4(pairs[p], pairs[8 + p], pairs[16 + p], pairs[24 + p]));
      }
    }
    return (overflow & 0x8000'8000U) != 0U;
  }

 private:
  /// start() for numbers of kBytes bytes. A thread copies the same piece of every kStep-th head.
  template <int kBytes>
  __device__ void start_pieces() const {
    constexpr int kPieces = kBytes * AttentionTile::kGroup / 16;  // of a group
    constexpr int kRow = kPieces * AttentionTile::kGroups;
    constexpr int kStep = kThreads / kRow;  // heads at once
    const int piece = static_cast<int>(threadIdx.x) % kRow;
    const int head = static_cast<int>(threadIdx.x) / kRow;
    const int place = piece / kPieces * 8 + piece % kPieces;
    const std::uint8_t* from =
        static_cast<const std::uint8_t*>(c.a.q) + kBytes * (first + head * c.a.q_stride[1]) + 16 * piece;
    const std::int64_t step = kBytes * kStep * c.a.q_stride[1];
    const auto each = [&](auto&& copy) {
#pragma unroll
      for (int i = 0; i < kTile.heads / kStep; ++i) {
        copy(shared + q_at(head + i * kStep, place), head + i * kStep < heads);
        from += step;
      }
    };
    if (c.q_aligned) {
      each([&](std::uint32_t to, bool there) { device::cp_async<16>(to, from, there); });
    } else {
#pragma unroll 1
      for (int i = 0; i < kTile.heads / kStep; ++i, from += step) {
        copy_piece(shared + q_at(head + i * kStep, place), from, head + i * kStep < heads);
      }
    }
  }
};

}  // namespace smla::attention
