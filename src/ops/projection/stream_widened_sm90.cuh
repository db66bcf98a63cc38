#pragma once

#include "device/ptx/cp_async.cuh"
#include "device/ptx/mbarrier_sm90.cuh"
#include "device/ptx/pdl.cuh"
#include "device/ptx/shared.cuh"
#include "ops/projection/stream_tiles_sm90.cuh"
#include "ops/projection/widen_codes.cuh"

namespace smla::projection::sm90 {

/// The warpgroup that brings NVFP4 weights and widens them to bf16. A warp has 32 of the tile's 128 outputs. It copies
/// the codes and scales of two stages at a time to a ring of its own, four lanes an output, so that a line of memory is
/// asked for once. Then a lane widens the 64 codes of an output and a stage.
template <class Shape>
class WideningProducer {
 public:
  __device__ WideningProducer(const StreamCall& call, const Tiles<Shape>& tiles, std::uint32_t shared)
      : call_(call),
        tiles_(tiles),
        shared_(shared),
        warp_(static_cast<int>(threadIdx.x) % kGroupThreads / 32),
        lane_(static_cast<int>(threadIdx.x) % 32) {}

  __device__ void run() const {
    Cursor<Shape> fetched(tiles_);
#pragma unroll 1
    for (int raw = 0; raw < kDeep; ++raw) bring(fetched, raw);
    Tiles<Shape> tiles = tiles_;
    Tile tile = tiles.first();
    RingSlot<Shape> slot;
    int raw = 0;
    do {
#pragma unroll 1
      for (int stage = tile.begin; stage < tile.end; stage += 2) {
        device::cp_async_wait<kDeep - 1>();
        __syncwarp();
        const int stages = min(tile.end - stage, 2);
#pragma unroll 1
        for (int i = 0; i < stages; ++i) {
          slot.wait_free(shared_);
          widen(raw, i, slot.number);
          device::fence_proxy_async();
          device::mbarrier_arrive_warp(shared_ + Shape::weights_there(slot.number));
          slot.step();
        }
        __syncwarp();  // the warp has read what lies there
        bring(fetched, raw);
        raw = raw + 1 == kDeep ? 0 : raw + 1;
      }
    } while (tiles.next(tile));
    device::cp_async_wait<0>();
    device::pdl_wait();  // every thread of a kernel that was launched early must, at some time
  }

 private:
  static constexpr int kDeep = Shape::kRawDeep;
  static constexpr int kInputs = 64;     ///< of a stage
  static constexpr int kCodeBytes = 32;  ///< of an output in a stage
  static constexpr int kPairBytes = 64;  ///< of two stages
  static constexpr int kScaleBytes = 4;  ///< of an output in a stage
  static constexpr int kWarpOutputs = 32;
  static_assert(Shape::kOutputs == kGroupWarps * kWarpOutputs && kInputs * 2 == kPiece);
  static_assert(kInputs == kScaleBytes * Projection::kNvfp4Group);

  /// 16 bytes of an output's codes, such that eight lanes with as many outputs meet in no bank.
  __device__ std::uint32_t raw_codes(int raw, int output, int piece) const {
    return shared_ + Shape::kRawCodes + (raw * Shape::kOutputs + output) * kPairBytes +
           ((piece ^ (output / 2)) % 4) * 16;
  }
  __device__ std::uint32_t raw_scales(int raw, int output) const {
    return shared_ + Shape::kRawScales + (raw * Shape::kOutputs + output) * 2 * kScaleBytes;
  }

  /// Starts copying the next two stages of a tile, if there are any; a group of copies in any case.
  __device__ void bring(Cursor<Shape>& at, int raw) const {
    if (at.there) {
      const StreamPart& part = call_.part[at.tile.number];
      const bool two = at.stage + 1 < at.tile.end;
      const int outputs = static_cast<int>(min(part.n - at.tile.column, std::int64_t{Shape::kOutputs}));
      const std::int64_t first = at.tile.group * static_cast<std::int64_t>(part.n) + at.tile.column;
      const int piece = lane_ % 4;
      const int output = warp_ * kWarpOutputs + lane_ / 4;
      const std::int64_t row_bytes = call_.k / 2;
      const std::uint8_t* codes =
          static_cast<const std::uint8_t*>(part.w) + (first + output) * row_bytes + at.stage * kCodeBytes + 16 * piece;
      const int there = two || piece < 2 ? outputs : 0;
      const std::uint32_t to = raw_codes(raw, output, piece);
#pragma unroll
      for (int i = 0; i < kWarpOutputs; i += 8) {
        device::cp_async_once(to + i * kPairBytes, codes, output + i < there);
        codes += 8 * row_bytes;
      }
      const int own = warp_ * kWarpOutputs + lane_;
      const std::uint8_t* scales =
          part.group_scale + (first + own) * (call_.k / Projection::kNvfp4Group) + at.stage * kScaleBytes;
      device::cp_async<4>(raw_scales(raw, own), scales, own < outputs);
      device::cp_async<4>(raw_scales(raw, own) + kScaleBytes, scales + kScaleBytes, two && own < outputs);
      at.skip(two ? 2 : 1);
    }
    device::cp_async_commit();
  }

  __device__ void widen(int raw, int i, int slot) const {
    const int output = warp_ * kWarpOutputs + lane_;
    const uint4 low = device::ld_shared_v4(raw_codes(raw, output, 2 * i));
    const uint4 high = device::ld_shared_v4(raw_codes(raw, output, 2 * i + 1));
    const std::uint32_t scales = device::ld_shared_u32(raw_scales(raw, output) + i * kScaleBytes);
    const std::uint32_t codes[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    const std::uint32_t to = shared_ + slot * Shape::kStage + output * kPiece;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const std::uint32_t scale = widen_nvfp4_scale(scales, j / 2);
      device::st_shared_v4(to + ((j ^ output) % 8) * 16, in_code_order(widen_nvfp4(codes[j], scale)));
    }
  }

  const StreamCall& call_;
  const Tiles<Shape>& tiles_;
  std::uint32_t shared_;
  int warp_, lane_;
};

}  // namespace smla::projection::sm90
