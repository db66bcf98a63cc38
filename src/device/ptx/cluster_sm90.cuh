#pragma once

#include <cstdint>

namespace smla::device {

// Clusters of thread blocks, from sm_90 on. On older GPUs, where none is launched, these do nothing.

/// A barrier of all threads of a cluster, in two halves. What was written before cluster_arrive(), also to another
/// block's shared memory, can be read after cluster_wait().
__device__ inline void cluster_arrive() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ inline void cluster_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
/// Writes a number to another block of the cluster, to the place of a __shared__ variable there.
__device__ inline void st_shared_cluster(float* shared, unsigned block, float v) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const auto own = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile(
      "{ .reg .b32 place;\n"
      "mapa.shared::cluster.u32 place, %0, %1;\n"
      "st.shared::cluster.f32 [place], %2; }" ::"r"(own),
      "r"(block), "f"(v)
      : "memory");
#endif
}

/// The number of the calling block in its cluster.
__device__ inline int cluster_rank() {
  std::uint32_t rank = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return static_cast<int>(rank);
}
/// The place of the calling block's shared address `at` in another block of the cluster, for the accesses below.
__device__ inline std::uint32_t place_in_block(std::uint32_t at, unsigned block) {
  std::uint32_t place = at;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(place) : "r"(at), "r"(block));
#endif
  return place;
}
__device__ inline std::uint32_t ld_shared_cluster_u32(std::uint32_t place) {
  std::uint32_t v = 0;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v) : "r"(place) : "memory");
#endif
  return v;
}
__device__ inline uint2 ld_shared_cluster_v2(std::uint32_t place) {
  uint2 v = {};
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(place) : "memory");
#endif
  return v;
}
__device__ inline float4 ld_shared_cluster_v4(std::uint32_t place) {
  float4 v = {};
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(place)
               : "memory");
#endif
  return v;
}
__device__ inline void st_shared_cluster_u32(std::uint32_t place, std::uint32_t v) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(place), "r"(v) : "memory");
#endif
}
/// Writes to a block of the cluster without waiting: the mbarrier at `barrier`, in the same block as `place`, counts
/// the bytes that arrive.
__device__ inline void st_async(std::uint32_t place, std::uint32_t v, std::uint32_t barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(place), "r"(v),
               "r"(barrier)
               : "memory");
#endif
}
__device__ inline void st_async(std::uint32_t place, const uint2& v, std::uint32_t barrier) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.u32 [%0], {%1, %2}, [%3];" ::"r"(place),
               "r"(v.x), "r"(v.y), "r"(barrier)
               : "memory");
#endif
}
/// Orders what this thread has read and written before and after, for other threads of the cluster.
__device__ inline void cluster_fence() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.acq_rel.cluster;" ::: "memory");
#endif
}
/// Arrives at the mbarrier that lies at the calling block's shared address `at` in another block of the cluster. What
/// was written before can be read after mbarrier_wait_cluster().
__device__ inline void mbarrier_arrive_cluster(std::uint32_t at, int block) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(place_in_block(at, block))
               : "memory");
#endif
}
/// The same where nothing was written that the others read, but they may write to what this thread has read and used.
/// It does not wait for the thread's stores, as the one above does.
__device__ inline void mbarrier_arrive_read(std::uint32_t at, int block) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(place_in_block(at, block)) : "memory");
#endif
}
/// Waits for the end of a phase of the block's own mbarrier, at which other blocks of the cluster arrive.
__device__ inline void mbarrier_wait_cluster(std::uint32_t at, std::uint32_t parity) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .pred done;\n"
      "again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again; }" ::"r"(at),
      "r"(parity)
      : "memory");
#endif
}

}  // namespace smla::device
