#pragma once

#include "ops/projection/stream_consumer_sm90.cuh"
#include "ops/projection/stream_producer_sm90.cuh"

namespace smla::projection::sm90 {

// Weights that are streamed past up to some hundred rows of bf16 x by wgmma: docs/kernels/projection.md.

/// Registers of a thread at the launch, of a consumer and of the producer: what warpgroups give up is all
/// that others can get.
template <class Shape>
struct Registers {
  static constexpr int kLaunch = Shape::kConsumers == 4 ? 96 : 168;
  static constexpr int kConsumer = Shape::kConsumers == 4 ? 104 : 224;
  static constexpr int kProducer = Shape::kConsumers == 4 ? 64 : 56;
  static_assert(Shape::kThreads * kLaunch <= 65536);
  static_assert(Shape::kConsumers * kConsumer + kProducer <= (Shape::kConsumers + 1) * kLaunch);
};

template <int kWidth, int kParts, int kDeep>
__global__ void __launch_bounds__((StreamShape<kWidth, kParts, kDeep>::kThreads), 1)
    stream_rows(const __grid_constant__ StreamCall call) {
  using Shape = StreamShape<kWidth, kParts, kDeep>;
  extern __shared__ __align__(1024) std::uint8_t stream_shared[];
  const std::uint32_t shared = device::shared_address(stream_shared);
  const int group = __shfl_sync(0xFFFF'FFFFU, static_cast<int>(threadIdx.x) / kGroupThreads, 0);
  if (threadIdx.x < kDeep) {
    const std::uint32_t barrier = shared + Shape::kBarriers + 8 * threadIdx.x;
    device::mbarrier_init(barrier, kProducerWarps);
    device::mbarrier_init(barrier + 8 * kDeep, Shape::kConsumers * kGroupThreads / 32);
  }
  __syncthreads();
  if (group == Shape::kConsumers) {
    device::fewer_registers<Registers<Shape>::kProducer>();
    Producer<Shape>(call, shared).run();
  } else {
    device::more_registers<Registers<Shape>::kConsumer>();
    Consumer<Shape>(call, shared).run();
  }
}

}  // namespace smla::projection::sm90
