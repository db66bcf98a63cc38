#pragma once

#include <cstdint>

namespace smla::device {

// ldmatrix, from sm_75 on: 8x8 tiles of 16-bit numbers from shared memory to the registers of a warp.

/// Loads four 8x8 tiles of 16-bit numbers: lanes 8i..8i+7 hold the addresses of tile i's rows, 16 bytes each. Lane l
/// gets numbers 2(l%4) and 2(l%4)+1 of row l/4 of every tile.
__device__ inline void ldmatrix_x4(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

/// Loads the transposed tiles: numbers of rows 2(l%4) and 2(l%4)+1, column l/4.
__device__ inline void ldmatrix_x4_trans(std::uint32_t (&r)[4], std::uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address)
               : "memory");
}

}  // namespace smla::device
