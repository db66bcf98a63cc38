#pragma once

#include "device/ptx/cp_async.cuh"
#include "device/ptx/mbarrier_sm90.cuh"
#include "device/ptx/pdl.cuh"
#include "device/ptx/shared.cuh"
#include "ops/projection/stream_tiles_sm90.cuh"
#include "ops/projection/widen_codes.cuh"

namespace smla::projection::sm90 {

/// The warpgroup that brings NVFP4 weights and widens them to bf16. A thread has one of the tile's 128 outputs: of a
/// stage its 64 codes and their four scales are copied to where the bf16 weights will lie, and widened in place.
template <class Shape>
class WideningProducer {
 public:
  __device__ WideningProducer(const StreamCall& call, const Tiles<Shape>& tiles, std::uint32_t shared)
      : call_(call), tiles_(tiles), shared_(shared), row_(static_cast<int>(threadIdx.x) % kGroupThreads) {}

  __device__ void run() const {
    work_ring<Shape, kLag>(
        tiles_, shared_, [&](const Cursor<Shape>& at, int slot) { bring(at, slot); },
        [&](const Tile& /*tile*/, int slot) {
          widen(slot);
          device::fence_proxy_async();
          device::mbarrier_arrive_warp(shared_ + Shape::weights_there(slot));
        });
    device::pdl_wait();  // every thread of a kernel that was launched early must, at some time
  }

 private:
  static constexpr int kLag = 1;         ///< see work_ring()
  static constexpr int kInputs = 64;     ///< of a stage
  static constexpr int kCodeBytes = 32;  ///< of an output in a stage
  static constexpr int kScaleChunk = 2;  ///< where its scales lie, behind the codes
  static_assert(Shape::kOutputs == kGroupThreads && kInputs * 2 == kPiece);
  static_assert(kInputs == 4 * Projection::kNvfp4Group);

  /// 16 bytes of the thread's row of a stage, where the swizzle puts them.
  __device__ std::uint32_t chunk(int slot, int i) const {
    return shared_ + slot * Shape::kStage + row_ * kPiece + ((i ^ row_) % 8) * 16;
  }

  __device__ void bring(const Cursor<Shape>& at, int slot) const {
    const StreamPart& part = call_.part[at.tile.number];
    const bool there = at.tile.column + row_ < part.n;
    const std::int64_t output = there ? at.tile.group * static_cast<std::int64_t>(part.n) + at.tile.column + row_ : 0;
    const std::uint8_t* codes =
        static_cast<const std::uint8_t*>(part.w) + output * (call_.k / 2) + at.stage * kCodeBytes;
    device::cp_async<16>(chunk(slot, 0), codes, there);
    device::cp_async<16>(chunk(slot, 1), codes + 16, there);
    device::cp_async<4>(chunk(slot, kScaleChunk),
                        part.group_scale + output * (call_.k / Projection::kNvfp4Group) + at.stage * 4, there);
  }

  __device__ void widen(int slot) const {
    const uint4 low = device::ld_shared_v4(chunk(slot, 0));
    const uint4 high = device::ld_shared_v4(chunk(slot, 1));
    const std::uint32_t scales = device::ld_shared_u32(chunk(slot, kScaleChunk));
    const std::uint32_t codes[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t scale = widen_nvfp4_scale(scales, i / 2);
      device::st_shared_v4(chunk(slot, i), in_code_order(widen_nvfp4(codes[i], scale)));
    }
  }

  const StreamCall& call_;
  const Tiles<Shape>& tiles_;
  std::uint32_t shared_;
  int row_;  ///< of the tile's outputs
};

}  // namespace smla::projection::sm90
