#pragma once

#include <cstdint>

namespace smla::device {

// mma.sync of sm_80 and later: a warp multiplies 16 x 16 by 16 x 8.

/// d += a b, the inner dimension being 16: a is 16 x 16 fp16, b 16 x 8 fp16, d 16 x 8 fp32. Lane l holds d of rows l/4
/// (d[0], d[1]) and l/4+8 (d[2], d[3]), columns 2(l%4) and 2(l%4)+1.
__device__ inline void mma_m16n8k16_f16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                        std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// The same with the four words of a in a uint4.
__device__ inline void mma_m16n8k16_f16(float (&d)[4], const uint4& a, std::uint32_t b0, std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

/// The same for bf16 numbers, with the words of a and b given one by one.
__device__ inline void mma_m16n8k16_bf16(float (&d)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                                         std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ inline void mma_m16n8k16_bf16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                         std::uint32_t b1) {
  mma_m16n8k16_bf16(d, a[0], a[1], a[2], a[3], b0, b1);
}

/// A finite number as tf32, which has the upper 19 bits of it: rounded to nearest, ties away from zero. NaN may get
/// lost.
__device__ inline std::uint32_t to_tf32(float x) { return __float_as_uint(x) + 0x1000U; }
/// d += a b, the inner dimension being 8, of tf32 numbers. Lane l holds of a rows l/4 (a[0], a[2]) and l/4+8 (a[1],
/// a[3]), numbers l%4 (a[0], a[1]) and l%4+4, and of b numbers l%4 (b0) and l%4+4 of column l/4; d as above.
__device__ inline void mma_m16n8k8_tf32(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                        std::uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace smla::device
