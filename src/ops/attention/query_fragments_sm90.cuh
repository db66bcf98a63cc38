#pragma once

#include "device/ptx/cp_async.cuh"
#include "ops/attention/roles_sm90.cuh"

namespace smla::attention::sm90 {

/// Asks for 16 bytes, or makes zeros.
__device__ inline void ask16(std::uint32_t* to, const std::uint8_t* from, bool there) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %5, 0;\n"
      "mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0;\n"
      "@p ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4]; }"
      : "=&r"(to[0]), "=&r"(to[1]), "=&r"(to[2]), "=&r"(to[3])
      : "l"(from), "r"(there ? 1 : 0));
}

/// The queries of an item as the score warps multiply them: of the first kForm.held groups the words of the products in
/// registers, of the others a matrix in shared memory. A thread has, of two heads 8 apart, the 16 numbers of each group
/// that its lane has (roles_sm90.cuh). Rows past the last head are zeros.
template <Form kForm>
struct QueryFragments {
  static constexpr int kGroups = AttentionTile::kGroups;
  static constexpr int kHeld = kForm.held;
  static constexpr int kStaged = kGroups - kHeld;
  static constexpr int kWords = 8;  ///< of a head and a group

  /// Of each group: while they are on their way word w of head r as 8 r + w, afterwards as the products take them.
  std::uint32_t words[kHeld][2 * kWords];

  /// Where a word of a head is in a product's four: of step w / 2.
  __device__ static constexpr int place(int r, int w) { return w / 2 * 4 + w % 2 * 2 + r; }

  /// Where a thread's 16 bytes `i` (0 or 1) of a head's raw numbers of a group are on their way through shared memory.
  __device__ static std::uint32_t raw_at(std::uint32_t group_at, const Lane& me, int r, int i) {
    return group_at + (me.row() + 8 * r) * 128 + (((2 * me.part() + i) ^ (me.row() & 7)) << 4);
  }

  /// Asks for an item's queries as they are. Nothing may be reading the ones before.
  template <class Item>
  __device__ void ask(const TileCall& c, const Block<kForm>& block, const Item& item) {
    if (c.a.q_dtype == DType::kE4M3) {
      ask_as<1>(c, block, item);
    } else {
      ask_as<2>(c, block, item);
    }
  }

  /// Makes fp16 numbers of them. Returns whether fp16 cannot represent one. All warps of the group have to meet before
  /// they multiply, because of those in shared memory.
  template <class Item>
  __device__ bool convert(const TileCall& c, const Block<kForm>& block, const Item& item) {
    device::cp_async_wait<0>();
    std::uint32_t top = 0;
    if (c.a.q_dtype == DType::kE4M3) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        std::uint32_t raw[2 * kWords];
        take<1>(block, g, raw);
        std::uint32_t done[2 * kWords];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
#pragma unroll
          for (int i = 0; i < kWords / 2; ++i)
            widen_codes(raw[8 * r + i], done[place(r, 2 * i)], done[place(r, 2 * i + 1)]);
        }
        put(block, g, done);
      }
    } else {
      if (const float* const rotation = c.a.q_row(item.token()); rotation != nullptr)
        norm_and_rotate(c, block, rotation);
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
#pragma unroll 1
        do {
          std::uint32_t raw[2 * kWords];
          take<2>(block, g, raw);
          std::uint32_t done[2 * kWords];
#pragma unroll
          for (int r = 0; r < 2; ++r) {
#pragma unroll
            for (int w = 0; w < kWords; ++w) done[place(r, w)] = half_pair(raw[8 * r + w], top);
          }
          put(block, g, done);
        } while (gridDim.x == 0x8000'0000U + g);
      }
    }
    device::fence_proxy_async();
    // 65,536, the least number of bf16 that fp16 makes infinite, has the bits 0x4780. Codes are all below it.
    return (((top & 0x7FFF'7FFFU) + (0x8000 - 0x4780) * 0x1'0001U) & 0x8000'8000U) != 0;
  }

 private:
  template <int kBytes, class Item>
  __device__ void ask_as(const TileCall& c, const Block<kForm>& block, const Item& item) {
    const Lane me = Lane::fresh();
    const int left = item.heads() - me.row();
    const auto* from = static_cast<const std::uint8_t*>(c.a.q) +
                       kBytes * (item.token() * c.a.q_stride[0] +
                                 (item.first_head() + me.row()) * c.a.q_stride[1] + 16 * me.part());
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool there = 8 * r < left;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const std::uint8_t* const at = from + kBytes * 64 * g;
#pragma unroll
        for (int i = 0; i < kBytes; ++i) {
          if (g < kHeld) {
            ask16(words[g < kHeld ? g : 0] + 8 * r + 4 * i, at + 16 * i, there);
          } else {
            device::cp_async<16>(raw_at(block.queries(g), me, r, i), at + 16 * i, there);
          }
        }
      }
      from += 8 * kBytes * c.a.q_stride[1];
    }
    device::cp_async_commit();
  }

  /// The raw words of a group: word w of head r as 8 r + w.
  template <int kBytes>
  __device__ void take(const Block<kForm>& block, int g, std::uint32_t (&raw)[2 * kWords]) const {
    if (g < kHeld) {
#pragma unroll
      for (int i = 0; i < 2 * kWords; ++i) raw[i] = words[g < kHeld ? g : 0][i];
      return;
    }
    const Lane me = Lane::fresh();
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int i = 0; i < kBytes; ++i) {
        const uint4 v = device::ld_shared_v4(raw_at(block.queries(g), me, r, i));
        raw[8 * r + 4 * i] = v.x, raw[8 * r + 4 * i + 1] = v.y;
        raw[8 * r + 4 * i + 2] = v.z, raw[8 * r + 4 * i + 3] = v.w;
      }
    }
  }
  /// Keeps the words of a group as the products take them.
  __device__ void put(const Block<kForm>& block, int g, const std::uint32_t (&done)[2 * kWords]) {
    if (g < kHeld) {
#pragma unroll
      for (int i = 0; i < 2 * kWords; ++i) words[g < kHeld ? g : 0][i] = done[i];
      return;
    }
    const Lane me = Lane::fresh();
    __syncwarp();  // four lanes share the bytes of a head
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        const std::uint32_t row = block.queries(g) + (me.row() + 8 * r) * 128 + 4 * me.part();
        device::st_shared_u32(row + ((w ^ (me.row() & 7)) << 4), done[place(r, w)]);
      }
    }
  }

  __device__ static float4 numbers(std::uint32_t low, std::uint32_t high) {
    return {__uint_as_float(low << 16), __uint_as_float(low & 0xFFFF'0000U), __uint_as_float(high << 16),
            __uint_as_float(high & 0xFFFF'0000U)};
  }
  /// Two bf16 numbers as fp16; `top`: see device::largest_sizes().
  __device__ static std::uint32_t half_pair(std::uint32_t pair, std::uint32_t& top) {
    top = device::largest_sizes(top, pair);
    return halves_of(__uint_as_float(pair << 16), __uint_as_float(pair & 0xFFFF'0000U));
  }

  /// Norms the queries, bf16 as all such are, and rotates those in shared memory.
  __device__ void norm_and_rotate(const TileCall& c, const Block<kForm>& block, const float* rotation) {
    float inverse[2];
    inverse_roots(c, block, inverse);
#pragma unroll
    for (int g = 0; g < kHeld; ++g) {
#pragma unroll
      for (int i = 0; i < 2 * kWords; ++i) {
        const float factor = inverse[i / kWords];
        asm volatile("" : "+r"(words[g][i]));  // or else all would be kept as fp32 since their squares were taken
        words[g][i] = device::bf16_pair(__fmul_rn(__uint_as_float(words[g][i] << 16), factor),
                                        __fmul_rn(__uint_as_float(words[g][i] & 0xFFFF'0000U), factor));
      }
    }
    const Lane me = Lane::fresh();
#pragma unroll 1
    for (int i = 0; i < 4 * kStaged; ++i) {
      const int group = kHeld + i / 4;
      const int r = i / 2 % 2;
      const std::uint32_t at = raw_at(block.queries(group), me, r, i % 2);
      const uint4 raw = device::ld_shared_v4(at);
      const float factor = r == 0 ? inverse[0] : inverse[1];
      const int first = 64 * group + 16 * me.part() + 8 * (i % 2);
      const float4 a = c.a.q_rope.rotated(device::scaled(numbers(raw.x, raw.y), factor), first, rotation);
      const float4 b = c.a.q_rope.rotated(device::scaled(numbers(raw.z, raw.w), factor), first + 4, rotation);
      device::st_shared_v4(at, make_uint4(device::bf16_pair(a.x, a.y), device::bf16_pair(a.z, a.w),
                                          device::bf16_pair(b.x, b.y), device::bf16_pair(b.z, b.w)));
    }
  }

  /// The factors of the norms of both heads, with the bits of norm_and_rotate(): there lane 16 b + 4 t + m has numbers
  /// 16 t + 4 m to 16 t + 4 m + 3 of the groups 2 k + b, and sums go over lanes 16, 8, 4, 2 and 1 apart.
  __device__ void inverse_roots(const TileCall& c, const Block<kForm>& block, float (&inverse)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float of[4];
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        float half[2];
#pragma unroll
        for (int b = 0; b < 2; ++b) {
          device::Squares squares;
#pragma unroll
          for (int g = b; g < kGroups; g += 2) {
            if (g < kHeld) {
              const auto& w = words[g < kHeld ? g : 0];
              squares.add(numbers(w[8 * r + 2 * m], w[8 * r + 2 * m + 1]));
            } else {
              const std::uint32_t at = raw_at(block.queries(g), Lane::fresh(), r, m / 2);
              const uint2 v = device::ld_shared_v2(at + m % 2 * 8);
              squares.add(numbers(v.x, v.y));
            }
          }
          half[b] = squares.all();
        }
        of[m] = half[0] + half[1];
        of[m] += __shfl_xor_sync(kAll, of[m], 2);
        of[m] += __shfl_xor_sync(kAll, of[m], 1);
      }
      inverse[r] = inverse_root((of[0] + of[2]) + (of[1] + of[3]), kDim, c.a.q_eps);
    }
  }
};

}  // namespace smla::attention::sm90
