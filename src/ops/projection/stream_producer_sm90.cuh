#pragma once

#include "device/ptx/cp_async.cuh"
#include "device/ptx/mbarrier_sm90.cuh"
#include "device/ptx/pdl.cuh"
#include "device/ptx/shared.cuh"
#include "ops/projection/stream_tiles_sm90.cuh"

namespace smla::projection::sm90 {

/// The producer warpgroup, which brings weights and x: a stage is 128 bytes of each of the tile's weight rows,
/// swizzled, and the same inputs of the rows of x, as wgmma reads them. Weights depend on no kernel, so the ring is
/// filled with them before pdl_wait().
template <class Shape>
class Producer {
 public:
  __device__ Producer(const StreamCall& call, std::uint32_t shared)
      : call_(call),
        shared_(shared),
        warp_(static_cast<int>(threadIdx.x) % kGroupThreads / 32),
        lane_(static_cast<int>(threadIdx.x) % 32) {}

  __device__ void run() const {
    Cursor fetched(call_);
#pragma unroll 1
    for (int slot = 0; slot < kDeep; ++slot) {
      if (fetched.there) bring_weights(fetched, slot);
      device::cp_async_commit();
      fetched.step();
    }
    device::pdl_wait_and_trigger();
    fetched = Cursor(call_);
#pragma unroll 1
    for (int slot = 0; slot < kDeep; ++slot) {
      if (fetched.there) bring_x(fetched, slot);
      device::cp_async_commit();
      fetched.step();
    }
    Tiles<Shape::kRows> tiles(call_);
    Tile tile;
    int slot = 0;
    std::uint32_t parity = 0;  // of the ring's round
    bool first = true;
#pragma unroll 1
    while (tiles.next(tile)) {
      const bool e4m3 = call_.part[tile.number].e4m3;
#pragma unroll 1
      for (int stage = tile.begin; stage < tile.end; ++stage) {
        device::cp_async_wait<kDeep - 2>();
        if (e4m3) {
          __syncwarp();
          permute(slot);
        }
        device::fence_proxy_async();
        device::mbarrier_arrive_warp(full(slot));
        // The slot of the stage before is filled again when that is multiplied, which needs nothing more from here.
        if (!first) {
          const int before = slot == 0 ? kDeep - 1 : slot - 1;
          if (fetched.there) {
            device::mbarrier_wait(empty(before), slot == 0 ? parity ^ 1 : parity);
            bring_weights(fetched, before);
            bring_x(fetched, before);
          }
          device::cp_async_commit();
          fetched.step();
        }
        first = false;
        slot = slot + 1 == kDeep ? 0 : slot + 1;
        parity ^= slot == 0 ? 1 : 0;
      }
      __syncwarp();
      // Every thread of a cluster takes part in its barriers: two for each time that sums are added.
#pragma unroll 1
      for (int i = 0; i < 2 * Shape::kRows / Shape::kSumRows; ++i) {
        device::cluster_arrive();
        device::cluster_wait();
      }
    }
    device::cp_async_wait<0>();
  }

 private:
  static constexpr int kDeep = Shape::kDeep;
  static constexpr int kWarpRows = Shape::kRows / kProducerWarps;

  /// The stages of the block's tiles, one after the other.
  struct Cursor {
    Tiles<Shape::kRows> tiles;
    Tile tile;
    int stage = 0;
    bool there = true;

    __device__ explicit Cursor(const StreamCall& call) : tiles(call) { settle(); }
    __device__ void step() {
      ++stage;
      settle();
    }
    __device__ void settle() {
#pragma unroll 1
      while (there && stage >= tile.end) {
        there = tiles.next(tile);
        stage = tile.begin;
      }
    }
  };

  __device__ std::uint32_t full(int slot) const { return shared_ + Shape::kBarriers + 8 * slot; }
  __device__ std::uint32_t empty(int slot) const { return full(slot) + 8 * kDeep; }
  __device__ std::uint32_t x_of(int slot) const { return shared_ + slot * Shape::kStage + kWeightBytes; }

  __device__ void bring_weights(const Cursor& at, int slot) const {
    const StreamPart& part = call_.part[at.tile.number];
    const std::int64_t row_bytes = static_cast<std::int64_t>(call_.k) * (part.e4m3 ? 1 : 2);
    const std::int64_t along = static_cast<std::int64_t>(at.stage) * kPiece + 16 * (lane_ % 8);
    const int row = 4 * warp_ + lane_ / 8;
    const std::int64_t left = part.n - at.tile.column - row;
    const std::uint8_t* from = static_cast<const std::uint8_t*>(part.w) +
                               (static_cast<std::int64_t>(at.tile.group) * part.n + at.tile.column + row) * row_bytes +
                               along;
    const std::uint32_t to = shared_ + slot * Shape::kStage + row * kPiece + ((lane_ ^ row) % 8) * 16;
    constexpr int kRowsAtOnce = 4 * kProducerWarps;
#pragma unroll 4
    for (int i = 0; i < kOutputs / kRowsAtOnce; ++i) {
      const bool there = along < row_bytes && kRowsAtOnce * i < left;
      device::cp_async<16>(to + kRowsAtOnce * kPiece * i, there ? from : call_.part[0].w, there);
      from += kRowsAtOnce * row_bytes;
    }
  }

  __device__ void bring_x(const Cursor& at, int slot) const {
    call_.part[at.tile.number].e4m3 ? bring_x<16>(at, slot) : bring_x<8>(at, slot);
  }
  /// A warp copies all inputs of its rows, so that it can permute them without the others.
  template <int kPieces>
  __device__ void bring_x(const Cursor& at, int slot) const {
    const int input = at.stage * (8 * kPieces) + lane_ % kPieces * 8;
    int row = kWarpRows * warp_ + lane_ / kPieces;
    const std::uint32_t column = x_of(slot) + lane_ % kPieces / 8 * Shape::kColumnBytes;
    const BF16* x = call_.x + at.tile.group * call_.x_group + input;
    constexpr int kRowsAtOnce = 32 / kPieces;
#pragma unroll 4
    for (int i = 0; i < kWarpRows / kRowsAtOnce; ++i) {
      const bool there = at.tile.row + row < call_.m && input < call_.k;
      device::cp_async<16>(column + row * 128 + ((lane_ ^ row) % 8) * 16,
                           there ? x + (at.tile.row + row) * call_.x_row : call_.x, there);
      row += kRowsAtOnce;
    }
  }

  /// Puts sixteen inputs into the order of widened codes: 0 and 2 of each four first, then 1 and 3.
  __device__ void permute(int slot) const {
    constexpr int kColumnGroups = kWarpRows * 4;
#pragma unroll
    for (int i = 0; i < 2 * kColumnGroups / 32; ++i) {
      const int number = lane_ + 32 * i;
      const int row = kWarpRows * warp_ + number % kColumnGroups / 4;
      const std::uint32_t line = x_of(slot) + number / kColumnGroups * Shape::kColumnBytes + row * 128;
      const std::uint32_t low_at = line + ((2 * (number % 4)) ^ row % 8) * 16;
      const std::uint32_t high_at = low_at ^ 16;
      const uint4 low = device::ld_shared_v4(low_at);
      const uint4 high = device::ld_shared_v4(high_at);
      const auto even = [](std::uint32_t a, std::uint32_t b) { return __byte_perm(a, b, 0x5410); };
      const auto odd = [](std::uint32_t a, std::uint32_t b) { return __byte_perm(a, b, 0x7632); };
      device::st_shared_v4(
          low_at, make_uint4(even(low.x, low.y), even(low.z, low.w), even(high.x, high.y), even(high.z, high.w)));
      device::st_shared_v4(high_at,
                           make_uint4(odd(low.x, low.y), odd(low.z, low.w), odd(high.x, high.y), odd(high.z, high.w)));
    }
  }

  const StreamCall& call_;
  std::uint32_t shared_;
  int warp_, lane_;
};

}  // namespace smla::projection::sm90
