#pragma once

#include <utility>

#include "ops/attention/block_sm90.cuh"

namespace smla::attention::sm90 {

__device__ inline uint4 load16(const std::uint8_t* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

/// Scale bytes that fp16 cannot represent (unrepresentable_scale()), the upper bit of each.
__device__ inline std::uint32_t unrepresentable_scales(std::uint32_t bytes) {
  constexpr std::uint32_t kLow = 0x7F7F'7F7FU;
  const std::uint32_t low = bytes & kLow;
  const std::uint32_t not_zero = low + kLow;                        // of the lower seven bits
  const std::uint32_t in_range = low + (128 - 101) * 0x0101'0101U;  // 101 and more
  return not_zero & (bytes | ~in_range) & ~kLow;
}

/// One arrival for a warp. mbarrier_arrive_warp() takes less time and a register that key warps do not have.
__device__ inline void arrive(std::uint32_t barrier) {
  __syncwarp();
  if ((fresh_thread() & 31) == 0) device::mbarrier_arrive(barrier);
}

/// Calls f<i>() for each piece of a tile.
template <class F>
__device__ __forceinline__ void each_piece(const F& f) {
  const auto all = [&]<int... kPiece>(std::integer_sequence<int, kPiece...>) {
    (f.template operator()<kPiece>(), ...);
  };
  all(std::make_integer_sequence<int, kKeyPieces>{});
}

/// The third warpgroup: converts the numbers of listed rows to fp16 and writes them to the stages. A thread has two
/// rows of a tile, of each group of 64 dims the same 16: of codes sixteen that follow one another, of bf16 numbers
/// eight of each half, so that four threads read whole sectors. Rows are asked for kAhead groups before they are
/// converted, across tiles and items. What it writes is made visible to wgmma by those who wait for it: a fence here
/// would wait for all rows that were asked for.
template <int kCodeGroups>
struct KeyLoader {
  static_assert(kCodeGroups == 0 || kCodeGroups == 7 || kCodeGroups == 8);
  static constexpr int kGroups = AttentionTile::kGroups;
  static constexpr int kRows = 64 / (8 * kKeyWarps);              ///< of a thread, 8 apart
  static constexpr bool kWide = kCodeGroups == 0;                 ///< rows are bf16 numbers
  static constexpr bool kRest = !kWide && kCodeGroups < kGroups;  ///< the group behind the codes is bf16 numbers
  static constexpr bool kScaled = kCodeGroups == 7;               ///< codes have scales in the rows
  static constexpr int kWords = kWide ? 2 : 1;                    ///< of 16 bytes, that a thread has of a group
  static constexpr int kAhead = 4 / kWords;
  static constexpr int kWaiting = kAhead;  ///< groups that `codes` holds; divides kGroups

  Shared shared;
  std::uint32_t taken = 0;     ///< tiles so far
  std::uint32_t parities = 0;  ///< bits 0 and 1: of the stages' barriers

  const std::uint8_t*
      row[kRows];  ///< of the tile that is being widened, or, once its last group is asked for, the next one
  uint2 scales[kRows];
  uint4 codes[kWaiting * kWords][kRows];
  uint4 rest[kRest ? 2 : 1][kRows];

  __device__ explicit KeyLoader(const Shared& s) : shared(s) {}

  /// The first of a thread's rows: sixteen for each warp, eight for each of its two rows, by bits because registers are
  /// short.
  __device__ static int row_of(int thread) {
    static_assert(kComputeThreads % kGroupThreads == 0 && kRows == 2);
    return (thread >> 1 & 0x30) | (thread >> 2 & 7);
  }

  /// Where a thread begins in its rows. Of bf16 numbers an odd row's begins with the second half of a group: eight
  /// threads, of two rows, then write to all banks.
  __device__ static int first_byte(int thread) { return kWide ? (thread & 7) * 16 : (thread & 3) * 16; }
  /// How far from there the other half of a group is, in bytes.
  __device__ static int other_half(int thread) { return 64 - (thread & 4) * 32; }

  /// Waits for the next listed tile and takes the places of this thread's rows. Returns what tile it is.
  __device__ std::uint32_t take() {
    const std::uint32_t slot = taken % kListed;
    device::mbarrier_wait(shared.listed(slot), taken / kListed & 1);
    const int thread = fresh_thread();
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const uint2 v = device::ld_shared_v2(place_of_row(slot) + r * 8 * 16);
      row[r] = reinterpret_cast<const std::uint8_t*>(std::uint64_t{v.y} << 32 | v.x) + first_byte(thread);
    }
    return device::ld_shared_u32(shared.what(taken++));
  }
  __device__ std::uint32_t place_of_row(std::uint32_t slot) const {
    return shared.at + Place::kRows + slot * 64 * 16 + row_of(fresh_thread()) * 16;
  }

  /// Waits for the scales of the tile that was taken last.
  __device__ void take_scales() {
    const std::uint32_t slot = (taken - 1) % kListed;
    device::mbarrier_wait(shared.scaled(slot), (taken - 1) / kListed & 1);
#pragma unroll
    for (int r = 0; r < kRows; ++r) scales[r] = device::ld_shared_v2(place_of_row(slot) + r * 8 * 16 + 8);
    arrive(shared.taken(slot));
  }

  /// Asks for group kGroup of the rows.
  template <int kGroup>
  __device__ void ask() {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if constexpr (kWide) {
        codes[kGroup % kWaiting * 2][r] = load16(row[r] + 128 * kGroup);
        codes[kGroup % kWaiting * 2 + 1][r] = load16(row[r] + 128 * kGroup + other_half(fresh_thread()));
      } else if constexpr (kGroup < kCodeGroups) {
        codes[kGroup % kWaiting][r] = load16(row[r] + 64 * kGroup);
      } else {
#pragma unroll
        for (int i = 0; i < 2; ++i) rest[i][r] = load16(row[r] + 64 * kCodeGroups + 16 * (fresh_thread() & 3) + 16 * i);
      }
    }
  }

  /// Two bf16 numbers as fp16, times kHalfUnit; what fp16 cannot represent is seen in `top` or in `overflow`. Where all
  /// rows are bf16 numbers half_pair() spills: it takes half of the instructions, and ptxas moves more loads before it.
  __device__ static std::uint32_t pair_of(std::uint32_t pair, std::uint32_t& top, std::uint32_t& overflow) {
    if constexpr (!kWide) return half_pair(pair, top);
    const std::uint32_t halves =
        halves_of(__uint_as_float(pair << 16) * kHalfUnit, __uint_as_float(pair & 0xFFFF'0000U) * kHalfUnit);
    overflow |= fp16_overflow(halves);
    return halves;
  }

  /// Widens group `kGroup` and writes it to a stage. `row_at`: where this thread's first row begins there.
  template <int kGroup>
  __device__ void widen(std::uint32_t row_at, std::uint32_t& overflow) {
    const std::uint32_t first = row_at + kGroup * Place::kGroupBytes;
    std::uint32_t top = 0;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      uint4 low;
      uint4 high;
      if constexpr (kGroup < kCodeGroups) {
        const uint4& v = codes[kGroup % kWaiting][r];
        widen_codes(v.x, low.x, low.y), widen_codes(v.y, low.z, low.w);
        widen_codes(v.z, high.x, high.y), widen_codes(v.w, high.z, high.w);
        if constexpr (kScaled) {
          const std::uint32_t byte = (kGroup < 4 ? scales[r].x : scales[r].y) >> (8 * (kGroup % 4)) & 0xFFU;
          const float scale = __uint_as_float((byte + 6) << 23);
          const std::uint32_t pair = halves_of(scale, scale);
          low.x = multiply_halves(low.x, pair), low.y = multiply_halves(low.y, pair);
          low.z = multiply_halves(low.z, pair), low.w = multiply_halves(low.w, pair);
          high.x = multiply_halves(high.x, pair), high.y = multiply_halves(high.y, pair);
          high.z = multiply_halves(high.z, pair), high.w = multiply_halves(high.w, pair);
        }
      } else {
        const uint4& a = kWide ? codes[kGroup % kWaiting * kWords][r] : rest[0][r];
        const uint4& b = kWide ? codes[kGroup % kWaiting * kWords + kWords - 1][r] : rest[kRest ? 1 : 0][r];
        low.x = pair_of(a.x, top, overflow), low.y = pair_of(a.y, top, overflow);
        low.z = pair_of(a.z, top, overflow), low.w = pair_of(a.w, top, overflow);
        high.x = pair_of(b.x, top, overflow), high.y = pair_of(b.y, top, overflow);
        high.z = pair_of(b.z, top, overflow), high.w = pair_of(b.w, top, overflow);
      }
      device::st_shared_v4(first + r * 1024, low);
      device::st_shared_v4((first ^ (kWide ? 64 : 16)) + r * 1024, high);
    }
    if constexpr (kRest && kGroup >= kCodeGroups) overflow |= half_overflow(top);
  }

  template <int kGroup>
  __device__ void step(std::uint32_t row_at, std::uint32_t& next, std::uint32_t& overflow) {
    widen<kGroup>(row_at, overflow);
    if constexpr (kGroup + kAhead == kGroups) next = take();
    ask<(kGroup + kAhead) % kGroups>();
  }

  /// One warp begins with a rehearsal: a tile of zeros that nobody is told of, so that the code comes from memory while
  /// the first lists do.
  __device__ __forceinline__ void all_tiles() {
    constexpr bool kRehearses = kScaled;  // for the others there is no register
    constexpr std::uint32_t kRehearsal = 1U << 31;
    std::uint32_t next = kRehearsal;
    if (kRehearses && fresh_thread() / 32 == kKeyRehearser) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        row[r] = reinterpret_cast<const std::uint8_t*>(kNoRow) + first_byte(fresh_thread());
        scales[r] = {};
      }
    } else {
      next = take();
    }
    const auto first = [&]<int... kGroup>(std::integer_sequence<int, kGroup...>) { (ask<kGroup>(), ...); };
    first(std::make_integer_sequence<int, kAhead>{});
#pragma unroll 1
    while ((next & kNoMoreTiles) == 0) {
      const std::uint32_t tile = next;
      const bool told = !kRehearses || (tile & kRehearsal) == 0;
      const std::uint32_t stage = tile & kTileStage;
      const std::uint32_t parity = parities >> stage & 1;
      const int thread = fresh_thread();
      const std::uint32_t row_at = shared.keys(static_cast<int>(stage)) + row_of(thread) * 128 +
                                   (((kWide ? thread & 7 : 2 * (thread & 3)) ^ (row_of(thread) & 7)) << 4);
      std::uint32_t overflow = 0;
      if (told) {
        parities ^= 1 << stage;
        take_scales();
      }
      each_piece([&]<int kPiece>() {
        if (told) device::mbarrier_wait(shared.free(static_cast<int>(stage), kPiece), parity ^ 1);
        if constexpr (kPiece == 0) {
          if (told && thread == kComputeThreads)
            device::st_shared_v2(shared.at + Place::kValid + 8 * stage, device::ld_shared_v2(shared.named(taken - 1)));
        }
        if constexpr (kScaled && kPiece == kKeyPieces - 1) {
#pragma unroll
          for (int r = 0; r < kRows; ++r)
            overflow |= unrepresentable_scales(scales[r].x) | unrepresentable_scales(scales[r].y & 0x00FF'FFFFU);
        }
        const auto steps = [&]<int... kGroup>(std::integer_sequence<int, kGroup...>) {
          (step<kPiece * kPieceGroups + kGroup>(row_at, next, overflow), ...);
        };
        steps(std::make_integer_sequence<int, kPieceGroups>{});
        // Overflow of fp16 is the upper bit of a half, a bad scale that of a byte.
        if (kPiece == kKeyPieces - 1 && (overflow & (kScaled ? 0x8080'8080U : 0x8000'8000U)) != 0U)
          device::st_shared_u32(shared.info(tile >> kTileItemShift) + 8, 1);
        if (told) arrive(shared.full(static_cast<int>(stage), kPiece));
      });
    }
  }
};

/// The third warpgroup where rows were widened before: copies them to the stages, 16 bytes at a time. A warp has 16
/// rows of a tile, of which it copies 128 bytes of four at once.
struct KeyCopier {
  static constexpr int kRows = 4;  ///< of a thread, 4 apart

  Shared shared;

  /// Copies a piece of a tile.
  template <int kPiece>
  __device__ void copy(const std::uint8_t* const (&row)[kRows], std::uint32_t to) const {
#pragma unroll
    for (int g = kPiece * kPieceGroups; g < (kPiece + 1) * kPieceGroups; ++g) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        // Rows 4 apart differ in the upper bit of the swizzle.
        const std::uint32_t at = (to ^ (r % 2 * 64)) + r * 4 * 128 + g * Place::kGroupBytes;
        device::cp_async<16>(at, row[r] + g * 128, true);
      }
    }
  }

  __device__ __forceinline__ void all_tiles() const {
    std::uint32_t parities = 0;
#pragma unroll 1
    for (std::uint32_t taken = 0;; ++taken) {
      const std::uint32_t slot = taken % kListed;
      device::mbarrier_wait(shared.listed(slot), taken / kListed & 1);
      const std::uint32_t what = device::ld_shared_u32(shared.what(taken));
      if ((what & kNoMoreTiles) != 0) return;
      const auto stage = static_cast<int>(what & kTileStage);
      const std::uint32_t parity = parities >> stage & 1;
      parities ^= 1 << stage;
      const int thread = fresh_thread() - kComputeThreads;
      const int first = thread / 32 * 4 * kRows + thread % 32 / 8;
      const int piece = thread % 8;
      const std::uint8_t* row[kRows];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const uint2 v = device::ld_shared_v2(shared.at + Place::kRows + (slot * 64 + first + 4 * r) * 16);
        row[r] = reinterpret_cast<const std::uint8_t*>(std::uint64_t{v.y} << 32 | v.x) + 16 * piece;
      }
      const uint2 valid = device::ld_shared_v2(shared.named(taken));
      arrive(shared.taken(slot));
      const std::uint32_t to = shared.keys(stage) + first * 128 + ((piece ^ (first & 7)) << 4);
      each_piece([&]<int kPiece>() {
        device::mbarrier_wait(shared.free(stage, kPiece), parity ^ 1);
        if (kPiece == 0 && thread == 0) {
          device::st_shared_v2(shared.at + Place::kValid + 8 * stage, valid);
          device::mbarrier_arrive(shared.full(stage, 0));
        }
        copy<kPiece>(row, to);
        device::cp_async_arrive(shared.full(stage, kPiece));
      });
    }
  }
};

}  // namespace smla::attention::sm90
