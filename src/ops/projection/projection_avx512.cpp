#include "ops/projection/implementations.h"

#if defined(__AVX512F__)

#include "device/simd_avx512.h"

namespace smla {
namespace {

using Word = Avx512Word;
constexpr int kBlockRows = 6;      // 24 sums + 2 words of weights and their mask of 32 registers
constexpr int kE4m3BlockRows = 3;  // 12 sums + 12 words of x + what widens weights
constexpr bool kWidenPanel = false;

}  // namespace
}  // namespace smla

#include "ops/projection/projection_kernel.h"

namespace smla {

void projection_widen_avx512(const E4M3* codes, float scale, std::int64_t n, BF16* out) {
  std::int64_t i = 0;
  for (; i + Word::kLanes <= n; i += Word::kLanes) (Word::load_e4m3(codes + i) * Word::all(scale)).store_bf16(out + i);
  if (i == n) return;
  E4M3 last[Word::kLanes] = {};
  BF16 numbers[Word::kLanes];
  std::memcpy(last, codes + i, static_cast<std::size_t>(n - i) * sizeof(E4M3));
  (Word::load_e4m3(last) * Word::all(scale)).store_bf16(numbers);
  std::memcpy(out + i, numbers, static_cast<std::size_t>(n - i) * sizeof(BF16));
}

void projection_widen_nvfp4_avx512(const std::uint8_t* codes, const E4M3* scales, std::int64_t n, BF16* out) {
  constexpr std::int64_t kGroup = Projection::kNvfp4Group;
  const BF16* const tables = nvfp4_tables();
  for (std::int64_t i = 0; i < n; i += kGroup)
    Word::look_up_e2m1(codes + i / 2, tables + 16 * scales[i / kGroup].bits, out + i);
}

ProjectionTiles projection_tiles_avx512() { return {.run = run_tile, .few_rows = 24, .few_rows_e4m3 = 8}; }

}  // namespace smla

#else

namespace smla {

void projection_widen_avx512(const E4M3*, float, std::int64_t, BF16*) {}
void projection_widen_nvfp4_avx512(const std::uint8_t*, const E4M3*, std::int64_t, BF16*) {}

ProjectionTiles projection_tiles_avx512() { return {}; }  // never run: needs_avx512() refuses

}  // namespace smla

#endif
