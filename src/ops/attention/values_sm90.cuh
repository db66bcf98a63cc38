#pragma once

#include "device/ptx/wgmma_sm90.cuh"
#include "ops/attention/roles_sm90.cuh"

namespace smla::attention::sm90 {

/// Two numbers rounded to bf16 or fp16, the first in the lower half.
struct Bf16Pair {
  __device__ std::uint32_t operator()(float low, float high) const {
    std::uint32_t bits;
    asm volatile("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
  }
};
struct HalfPair {
  __device__ std::uint32_t operator()(float low, float high) const {
    std::uint32_t bits;
    asm volatile("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
    return bits;
  }
};

/// A warpgroup that adds values: side 0 the left 256 columns of the output, 1 the right ones. A thread has, of two heads
/// r = lane / 4 and r + 8 of its warp's 16, the 16 numbers of each group that its lane has (roles_sm90.cuh). kQuantised:
/// o is E4M3.
template <Form kForm, class Item, bool kQuantised>
struct Values {
  using Place = Layout<kForm>;
  static constexpr int kGroups = Place::kPieceGroups;
  static constexpr int kNumbers = 16;  ///< of a head and a group

  const TileCall& c;
  Block<kForm> block;
  int side;
  StageTurn<kForm.stages> at;
  std::uint32_t turn = 0;

  float output[2][64];  ///< of 128 columns each

  __device__ Values(const TileCall& call, const Block<kForm>& b, int of) : c(call), block(b), side(of) {}

  __device__ static std::uint32_t number_of(std::uint32_t turn) {
    asm volatile("" : "+r"(turn));
    return blockIdx.x + turn * gridDim.x;
  }

  /// The number `i` of 16 of a group of the side and head r of the thread's two.
  __device__ float& out(int r, int group, int i) {
    return output[group / 2][group % 2 * 32 + i / 2 * 4 + 2 * r + i % 2];
  }

  /// Adds the present tile, and frees the side's piece of it.
  __device__ void add() {
    const std::uint32_t stage = Place::weight_stage(at.tile);
    device::mbarrier_wait(block.weighed(stage), Place::weight_parity(at.tile));
    if (const Lane me = Lane::fresh(); __any_sync(kAll, device::ld_shared_u32(block.changed(stage) + 4 * me.warp) != 0)) {
      const std::uint32_t fades = block.fades(stage) + 4 * me.row();
      const float f[2] = {device::ld_shared_f32(fades), device::ld_shared_f32(fades + 32)};
#pragma unroll
      for (int i = 0; i < 128; ++i) output[i / 64][i % 64] *= f[i / 2 % 2];
    }
    const std::uint64_t v = device::wgmma_matrix(block.keys(at.stage(), side), Place::kGroupBytes, 1024);
    const std::uint64_t p = device::wgmma_matrix(block.weights(stage), 16, 1024);
    device::wgmma_fence();
#pragma unroll
    for (int i = 0; i < kTileKeys / 16; ++i) {
#pragma unroll
      for (int h = 0; h < 2; ++h)
#ifdef X_NOPV
        if (i + h == 0)
#endif
        device::wgmma_ss_n128(output[h], p + (i * 32 >> 4), v + ((i * 2048 + h * 2 * Place::kGroupBytes) >> 4));
    }
    device::wgmma_commit();
    device::wgmma_wait<0>();
    device::mbarrier_arrive_warp(block.free(at.stage(), side));
    device::mbarrier_arrive_warp(block.added(stage));
    at.next();
  }

  /// Stores 16 bytes if `there`. Not a branch around it, so that a rehearsal runs through the code.
  __device__ static void store16(bool there, void* to, std::uint32_t a, std::uint32_t b, std::uint32_t d,
                                 std::uint32_t e) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %5, 0;\n@p st.global.v4.b32 [%0], {%1, %2, %3, %4}; }" ::"l"(to),
                 "r"(a), "r"(b), "r"(d), "r"(e), "r"(there ? 1 : 0)
                 : "memory");
  }

  /// Stores 32 bytes of each lane, kLaneBytes from a lane to the next. Two lanes exchange halves first, so that each
  /// store fills sectors of 32 bytes.
  template <int kLaneBytes>
  __device__ static void store32(bool there, std::uint8_t* to, const std::uint32_t (&low)[4],
                                 const std::uint32_t (&high)[4]) {
    const bool odd = (threadIdx.x & 1) != 0;
    std::uint32_t first[4];
    std::uint32_t second[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t other = __shfl_xor_sync(kAll, odd ? low[i] : high[i], 1);
      first[i] = odd ? other : low[i];
      second[i] = odd ? high[i] : other;
    }
    to -= odd ? kLaneBytes - 16 : 0;
    store16(there, to, first[0], first[1], first[2], first[3]);
    store16(there, to + kLaneBytes, second[0], second[1], second[2], second[3]);
  }

  static constexpr int kRotatedGroup = kGroups - 1;  ///< of side 1, whose columns are rotated back

  /// Finishes the columns that are rotated back.
  __device__ void rotate_back(const float* back, const float (&factor)[2], const Lane& me) {
    const int first = (AttentionTile::kGroup * (AttentionTile::kGroups - 1) + kNumbers * me.part() - c.rope.nope) / 2;
#pragma unroll
    for (int i = 0; i < kNumbers; i += 2) {
      const int pair = first + i / 2;
      const bool turned = static_cast<std::uint32_t>(pair) < static_cast<std::uint32_t>(c.rope.pairs);
      const float cosine = turned ? __ldg(back + pair) : 1;
      const float sine = turned ? -__ldg(back + c.rope.pairs + pair) : 0;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float& even = out(r, kRotatedGroup, i);
        float& odd = out(r, kRotatedGroup, i + 1);
        even = finished(even, factor[r]), odd = finished(odd, factor[r]);
        if (!turned) continue;
        if (kQuantised || c.a.o_dtype == DType::kBF16) {
          const std::uint32_t both = Bf16Pair{}(even, odd);
          even = __uint_as_float(both << 16), odd = __uint_as_float(both & 0xFFFF'0000U);
        }
        Rope::rotate(even, odd, cosine, sine);
      }
      asm volatile("" ::: "memory");  // not all of the table's numbers at once: there are no registers for them
    }
  }

  /// Calls f(there, r, g, number) for each head and group of the thread, where number(i) is the i-th of its 16 numbers.
  template <class F>
  __device__ void each_group(const float (&factor)[2], bool rotated, int left, const F& f) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        f(8 * r < left, r, g, [&](int i) {
          const float done = finished(out(r, g, i), factor[r]);
          return g == kRotatedGroup && rotated ? out(r, g, i) : done;
        });
        asm volatile("" ::: "memory");
      }
    }
  }

  /// Stores rows of numbers. `to`: where the thread's first number of its first head goes; `stride`: bytes from a head
  /// to the next.
  template <class Pair>
  __device__ void store_pairs(std::uint8_t* to, std::int64_t stride, const float (&factor)[2], bool rotated, int left,
                              const Pair& pair) {
    each_group(factor, rotated, left, [&](bool there, int r, int g, auto number) {
      std::uint8_t* const at_group = to + 8 * r * stride + 128 * g;
      std::uint32_t words[2][4];
#pragma unroll
      for (int i = 0; i < kNumbers; i += 2) words[i / 8][i / 2 % 4] = pair(number(i), number(i + 1));
      store32<32>(there, at_group, words[0], words[1]);
    });
  }
  __device__ void store_f32(std::uint8_t* to, std::int64_t stride, const float (&factor)[2], bool rotated, int left) {
    each_group(factor, rotated, left, [&](bool there, int r, int g, auto number) {
      std::uint8_t* const at_group = to + 8 * r * stride + 256 * g;
#pragma unroll
      for (int i = 0; i < kNumbers; i += 8) {
        std::uint32_t words[2][4];
#pragma unroll
        for (int j = 0; j < 8; ++j) words[j / 4][j % 4] = __float_as_uint(number(i + j));
        store32<64>(there, at_group + 4 * i, words[0], words[1]);
      }
    });
  }
  /// The same number by number, where rows are not aligned to 16 bytes.
  template <class T, class Round>
  __device__ void store_singly(T* to, std::int64_t stride, const float (&factor)[2], bool rotated, int left,
                               const Round& round) {
    each_group(factor, rotated, left, [&](bool there, int r, int g, auto number) {
#pragma unroll
      for (int i = 0; i < kNumbers; ++i) {
        const T done = round(number(i));
        if (there) *const_cast<volatile T*>(to + 8 * r * stride + 64 * g + i) = done;
      }
    });
  }

  /// Stores rows as E4M3 with a scale for each 128 numbers, of which two groups of a side are one.
  __device__ void store_quantised(const Item& item, const float (&factor)[2], bool rotated, int left, const Lane& me) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int chunk = 0; chunk < 2; ++chunk) {
        float most = 0;
#pragma unroll
        for (int g = 2 * chunk; g < 2 * chunk + 2; ++g) {
#pragma unroll
          for (int i = 0; i < kNumbers; i += 2) {
            float& even = out(r, g, i);
            float& odd = out(r, g, i + 1);
            const std::uint32_t both = Bf16Pair{}(finished(even, factor[r]), finished(odd, factor[r]));
            if (g != kRotatedGroup || !rotated) {
              even = __uint_as_float(both << 16), odd = __uint_as_float(both & 0xFFFF'0000U);
            }
            most = fmaxf(fmaxf(most, fabsf(even)), fabsf(odd));
          }
        }
        most = fmaxf(1e-10F, device::max_of_lanes(most, 4));
        const int exponent = ceil_log2(__fmul_rn(most, 1.0F / 448.0F));
        const bool there = 8 * r < left;
        const float per_unit = exp2_int(-exponent);
        const std::uint32_t head = item.first_head() + static_cast<std::uint32_t>(there ? me.row() + 8 * r : 0);
        std::uint8_t* const to = quantised_head(c.a, item.token(), head) + 256 * side + kNumbers * me.part();
#pragma unroll
        for (int g = 2 * chunk; g < 2 * chunk + 2; ++g) {
          std::uint32_t codes[4];
#pragma unroll
          for (int i = 0; i < kNumbers; i += 4) {
            const float4 v = make_float4(out(r, g, i) * per_unit, out(r, g, i + 1) * per_unit,
                                         out(r, g, i + 2) * per_unit, out(r, g, i + 3) * per_unit);
            codes[i / 4] = device::e4m3_codes(v, v);
          }
          store16(there, to + 64 * g, codes[0], codes[1], codes[2], codes[3]);
        }
        if (there && me.part() == 0) {
          store_scale(c.a.quantised.packed, scale_place(c.a, item.token(), head, 2 * side + chunk),
                      scale_columns(c.a, item.token()), exponent);
        }
        asm volatile("" ::: "memory");
      }
    }
  }

  /// Stores an item's outputs, or its sums for the merge. Without heads it only runs through the code.
  __device__ void finish(const Item& item, const float (&factor)[2], int heads) {
    const Lane me = Lane::fresh();
    const int left = heads - me.row();  // heads from the thread's first on
    const int column = 256 * side + kNumbers * me.part();
    if (item.split()) {
      auto* const to = reinterpret_cast<std::uint8_t*>(c.sums + (item.state() + me.row()) * kDim);
      if (c.half_sums) {
        store_pairs(to + 2 * column, 4 * kDim, factor, false, left, HalfPair{});
      } else {
        store_f32(to + 4 * column, 4 * kDim, factor, false, left);
      }
      return;
    }
    const float* const back = side == 1 ? c.back_row(item.token()) : nullptr;
    const bool rotated = back != nullptr;
    if (rotated) rotate_back(back, factor, me);
    if constexpr (kQuantised) {
      store_quantised(item, factor, rotated, left, me);
      return;
    }
    const std::int64_t first =
        item.token() * c.a.o_stride[0] + (item.first_head() + me.row()) * c.a.o_stride[1] + column;
    if (c.a.o_dtype == DType::kBF16) {
      auto* const to = static_cast<std::uint16_t*>(c.a.o) + first;
      if (c.word == 16) {
        store_pairs(reinterpret_cast<std::uint8_t*>(to), 2 * c.a.o_stride[1], factor, rotated, left, Bf16Pair{});
      } else {
        store_singly(to, c.a.o_stride[1], factor, rotated, left, [](float x) { return device::to_bf16_bits(x); });
      }
    } else {
      auto* const to = static_cast<float*>(c.a.o) + first;
      if (c.word == 16) {
        store_f32(reinterpret_cast<std::uint8_t*>(to), 4 * c.a.o_stride[1], factor, rotated, left);
      } else {
        store_singly(to, c.a.o_stride[1], factor, rotated, left, [](float x) { return x; });
      }
    }
  }

  /// Zeros for the heads past the last, which some callers have.
  __device__ void clear_padding(const Item& item) const {
    if (item.split() || item.first_head() + kTileHeads < c.a.heads) return;
    const int thread = fresh_thread() - kGroupThreads * kValueGroup;
    for (std::int64_t h = c.a.heads + thread / 32; h < c.a.out_heads; h += 2 * kGroupWarps) {
      for (int d = 4 * (thread % 32); d < kDim; d += 128)
        store(c, item.token() * c.a.o_stride[0] + h * c.a.o_stride[1] + d, make_float4(0, 0, 0, 0));
    }
  }

  /// Begins with a rehearsal of the end of the first item, which writes nothing: while the first keys are on their way,
  /// the code of the end comes from memory.
  __device__ __forceinline__ void all_items(std::uint32_t items) {
    bool rehearsed = false;
    asm volatile("" : "+r"(turn));
#pragma unroll 1
    while (Item::is(block, items, number_of(turn), turn)) {
#pragma unroll
      for (int i = 0; i < 128; ++i) output[i / 64][i % 64] = 0;
      float factor[2] = {0, 0};
      int heads = 0;
      if (rehearsed) {
        device::mbarrier_wait(block.item_ready(turn), turn / kInfos & 1);
        std::uint32_t tiles = __shfl_sync(kAll, device::ld_shared_u32(block.info(turn)), 0);
#pragma unroll 1
        do {
          add();
        } while (--tiles > 0);
        device::mbarrier_wait(block.finished(turn), turn >> 1 & 1);
        const Lane me = Lane::fresh();
        factor[0] = device::ld_shared_f32(block.factors(turn) + 4 * me.row());
        factor[1] = device::ld_shared_f32(block.factors(turn) + 4 * me.row() + 32);
#ifdef X_NOSTORE
        heads = 0 ;if (turn > 1u << 30)
#endif
        heads = device::ld_shared_u32(block.skipped(turn)) != 0 ? 0 : Item(c, block, number_of(turn), turn).heads();
        device::mbarrier_arrive_warp(block.taken(turn));
      }
      const Item item(c, block, number_of(turn), turn);
      finish(item, factor, heads);
      if (rehearsed) {
        clear_padding(item);
        ++turn;
      }
      rehearsed = true;
    }
  }
};

}  // namespace smla::attention::sm90
