#pragma once

#include "ops/projection/stream_consumer_sm90.cuh"
#include "ops/projection/stream_inputs_sm90.cuh"
#include "ops/projection/stream_weights_sm90.cuh"
#include "ops/projection/stream_widened_sm90.cuh"

namespace smla::projection::sm90 {

// Weights that are streamed past up to some hundred rows of x by wgmma: docs/kernels/projection_stream.md.

/// Registers of a thread at the launch and of the roles: what warpgroups give up is all that others can get. Blocks of
/// 128 outputs leave half of a multiprocessor to the next kernel, or to another block. Those of a chained call leave no
/// shared memory to any, so that all roles can have what they need.
template <class Shape>
struct Registers {
  static constexpr int kBlocks = Shape::kShared <= 113 << 10 ? 2 : 1;  ///< of a multiprocessor
  static constexpr int kLaunch = kBlocks == 2 ? 64 : 128;
  static constexpr bool kBf16 = Shape::kX == StreamedX::kBF16;
  static constexpr bool kNvfp4 = Shape::kX == StreamedX::kBesideNvfp4;
  static constexpr int kConsumer = kBlocks == 1 ? 192 : (kBf16 ? 80 : kNvfp4 ? 88 : 96);
  static constexpr int kInputs = kBf16 ? 64 : (kBlocks == 1 ? 40 : 32);  ///< more where x is split
  static constexpr int kWeights = kBlocks == 1 || kNvfp4 ? 48 : 32;      ///< more where weights are widened
  static_assert(kThreads * kLaunch * kBlocks <= 65536);
  static_assert(kConsumers * kConsumer + kInputs + kWeights <= (kConsumers + 2) * kLaunch);
};

template <int kOutputs, int kRows, int kDeep, StreamedX kX, bool kChained = false, bool kNorms = false>
__global__ void __launch_bounds__(kThreads,
                                  (Registers<StreamShape<kOutputs, kRows, kDeep, kX, kChained, kNorms>>::kBlocks))
    stream_rows(const __grid_constant__ StreamCall call) {
  using Shape = StreamShape<kOutputs, kRows, kDeep, kX, kChained, kNorms>;
  extern __shared__ __align__(1024) std::uint8_t stream_shared[];
  const std::uint32_t shared = device::shared_address(stream_shared);
  static_assert(kDeep <= kThreads / 32);
  const int warp = __shfl_sync(0xFFFF'FFFFU, static_cast<int>(threadIdx.x) / 32, 0);
  const int group = warp / kGroupWarps;
  if (warp < kDeep && threadIdx.x % 32 == 0) {
    device::mbarrier_init(shared + Shape::weights_there(warp),
                          kX == StreamedX::kBesideNvfp4 ? kGroupWarps : kGroupThreads);
    device::mbarrier_init(shared + Shape::inputs_there(warp), Shape::kInputArrivals);
    device::mbarrier_init(shared + Shape::free(warp), kConsumers * kGroupWarps);
  }
  if (threadIdx.x == 0) {
    device::mbarrier_init(shared + Shape::kSumsThere, (kChained ? 1 : call.together) * kConsumers * kGroupWarps);
    device::mbarrier_init(shared + Shape::kSumsRead, call.together * kConsumers * kGroupWarps);
    if constexpr (kChained) {
      device::mbarrier_init(shared + Shape::kWorkersKnown, 1);
      device::mbarrier_init(shared + Shape::kInputsMade, 1);
#pragma unroll
      for (int i = 0; i < kGroupWarps; ++i) device::st_shared_u32(shared + Shape::kMoreUnderWay + 4 * i, 0);
    }
  }
  const Tiles<Shape> tiles(call, shared);
  __syncthreads();
  if (call.together > 1) device::cluster_arrive();
  if (group < kConsumers) {
    if constexpr (!kChained) device::more_registers<Registers<Shape>::kConsumer>();
    Consumer<Shape>(call, tiles, shared).run();
  } else if (group == kConsumers) {
    if constexpr (!kChained) device::fewer_registers<Registers<Shape>::kInputs>();
    InputProducer<Shape>(call, tiles, shared).run();
  } else {
    if constexpr (!kChained) device::fewer_registers<Registers<Shape>::kWeights>();
    std::conditional_t<kX == StreamedX::kBesideNvfp4, WideningProducer<Shape>, WeightProducer<Shape>>(call, tiles,
                                                                                                      shared)
        .run();
  }
  // A block stays until the others have read its sums.
  if (call.together == 1) return;
  __syncwarp();
  // Of the arrival above, as consumers have before, and of a chained call those that bring x.
  if (group > kConsumers || (group == kConsumers && !kChained)) device::cluster_wait();
  device::cluster_arrive();
  device::cluster_wait();
}

}  // namespace smla::projection::sm90
