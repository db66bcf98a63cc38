#include <omp.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "core/codecs.h"
#include "ops/projection/implementations.h"

// Drives the tile functions: cuts m, n and groups into tiles, one thread for each tile. The results do not depend on
// the cut.

namespace smla {

namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// Floats a thread needs: the sums of a tile, then either x (whole rows, where they are few) or one register block of x
/// and the widened panel.
std::int64_t scratch_floats(const ProjectionProblem& p) {
  constexpr std::int64_t kSums = kProjectionTileRows * kProjectionPanel;
  constexpr std::int64_t kMany = (kProjectionMaxBlockRows + kProjectionPanel) * kProjectionKBlock;
  const std::int64_t few =
      p.m <= kProjectionMaxFewRows ? p.m * ceil_div(p.k, kProjectionRegister) * kProjectionRegister : 0;
  return kSums + std::max(few, kMany);
}

/// Weight rows of a tile: the panel, or of few rows what a thread reads for a while; less where that would leave
/// threads without work.
std::int64_t tile_columns(const ProjectionProblem& p, std::int64_t row_tiles, int threads, bool few) {
  const std::int64_t wanted = ceil_div(4 * static_cast<std::int64_t>(threads), row_tiles * p.groups);  // pieces of n
  const std::int64_t columns = ceil_div(ceil_div(p.n, wanted), 4) * 4;
  const std::int64_t stream = kProjectionFewBytes / weight_bytes(p, 1) / 4 * 4;
  const std::int64_t most =
      few ? std::clamp<std::int64_t>(stream, kProjectionPanel, kProjectionFewPanel) : kProjectionPanel;
  return std::clamp<std::int64_t>(columns, 16, most);
}

void set_to_zero(const ProjectionProblem& p, const TensorView& y) {
  for (std::int64_t i = 0; i < p.m * p.groups; ++i) {
    const std::int64_t at = (i / p.groups) * y.stride[0] + (i % p.groups) * y.stride[1];
    std::memset(static_cast<char*>(y.data) + at * size_of(y.dtype), 0,
                static_cast<std::size_t>(p.n * size_of(y.dtype)));
  }
}

void run_tiles(const ProjectionTiles& kernel, const ProjectionProblem& p, const Projection::Args& a,
               const RunContext& context) {
  if (p.m == 0 || p.n == 0) return;
  if (p.k == 0) return set_to_zero(p, a.y);
  // Starting a thread costs some microseconds: a thread should have more than that to do.
  const double work =
      static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k) * static_cast<double>(p.groups);
  const int threads = static_cast<int>(std::min<double>(context.threads, work / 65536.0 + 1.0));
  const std::int64_t row_tiles = ceil_div(p.m, kProjectionTileRows);
  const std::int64_t rows = ceil_div(ceil_div(p.m, row_tiles), kProjectionMaxBlockRows) * kProjectionMaxBlockRows;
  const bool few = p.m <= (p.w == DType::kE4M3 ? kernel.few_rows_e4m3 : kernel.few_rows);
  const std::int64_t columns = tile_columns(p, row_tiles, threads, few);
  const std::int64_t column_tiles = ceil_div(p.n, columns);
  const std::int64_t tiles = p.groups * column_tiles * row_tiles;
  const std::int64_t scratch = scratch_floats(p);
  float* scratch_base = static_cast<float*>(context.workspace.data);

#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
  for (std::int64_t index = 0; index < tiles; ++index) {
    const std::int64_t group = index / (column_tiles * row_tiles);
    const std::int64_t j = index / row_tiles % column_tiles * columns;
    const std::int64_t i = index % row_tiles * rows;
    if (i >= p.m) continue;
    ProjectionTile tile;
    tile.x = static_cast<const char*>(a.x.data) + (i * a.x.stride[0] + group * a.x.stride[1]) * size_of(p.x);
    tile.w = static_cast<const char*>(a.w.data) + weight_bytes(p, group * p.n + j);
    tile.y = static_cast<char*>(a.y.data) + (i * a.y.stride[0] + group * a.y.stride[1] + j) * size_of(p.y);
    tile.x_stride = a.x.stride[0];
    tile.y_stride = a.y.stride[0];
    tile.m = std::min(rows, p.m - i);
    tile.n = std::min(columns, p.n - j);
    tile.k = p.k;
    tile.x_bf16 = p.x == DType::kBF16;
    tile.w_dtype = p.w;
    if (p.w == DType::kE4M3) {
      tile.w_scale = static_cast<const float*>(a.w_scale.data) + group * a.w_scale.stride[0];
      tile.w_scale_stride = a.w_scale.stride[1];
      tile.w_row = j;
    }
    if (p.w == Projection::kNvfp4) {
      tile.nvfp4_scale = static_cast<const E4M3*>(a.w_scale.data) + (group * p.n + j) * (p.k / Projection::kNvfp4Group);
      tile.global_scale = static_cast<const float*>(a.w_global_scale.data);
    }
    tile.y_bf16 = p.y == DType::kBF16;
    tile.few = few;
    tile.scratch = scratch_base + omp_get_thread_num() * scratch;
    kernel.run(tile);
  }
}

/// E4M3 x: a tile's rows at a time are made floats, behind the threads' scratch.
ProjectionProblem decoded_problem(const ProjectionProblem& p) {
  ProjectionProblem out = p;
  out.m = std::min(p.m, kProjectionTileRows);
  out.x = DType::kF32;
  return out;
}

std::size_t scratch_bytes(const ProjectionProblem& p, int threads) {
  return static_cast<std::size_t>(scratch_floats(p)) * sizeof(float) * static_cast<std::size_t>(threads);
}

void run_decoded(const ProjectionTiles& kernel, const ProjectionProblem& p, const Projection::Args& a,
                 const RunContext& context) {
  if (p.m == 0 || p.n == 0) return;
  if (p.k == 0) return set_to_zero(p, a.y);
  ProjectionProblem part = decoded_problem(p);
  auto* x = reinterpret_cast<float*>(static_cast<char*>(context.workspace.data) + scratch_bytes(part, context.threads));
  for (std::int64_t i = 0; i < p.m; i += kProjectionTileRows) {
    part.m = std::min(kProjectionTileRows, p.m - i);
    decode_x(p, a, i, part.m, x, context.threads);
    const Projection::Args args{.x = view_of<const float>(x, {part.m, p.groups, p.k}),
                                .w = a.w,
                                .y = a.y.slice(0, i, i + part.m),
                                .w_scale = a.w_scale,
                                .w_global_scale = a.w_global_scale};
    run_tiles(kernel, part, args, context);
  }
}

void run(const ProjectionTiles& kernel, const ProjectionProblem& p, const Projection::Args& a,
         const RunContext& context) {
  p.x == DType::kE4M3 ? run_decoded(kernel, p, a, context) : run_tiles(kernel, p, a, context);
}

}  // namespace

const BF16* nvfp4_tables() {
  static const auto kTables = [] {
    std::array<BF16, std::size_t{256} * 16> out{};
    for (unsigned scale = 0; scale < 256; ++scale) {
      for (unsigned code = 0; code < 16; ++code) {
        out[16 * scale + code] =
            to_bf16(from_e2m1(static_cast<std::uint8_t>(code)) * to_float(E4M3{static_cast<std::uint8_t>(scale)}));
      }
    }
    return out;
  }();
  return kTables.data();
}

std::size_t projection_cpu_workspace(const ProjectionProblem& problem, int threads) {
  if (problem.m == 0 || problem.n == 0 || problem.k == 0) return 0;
  if (problem.x != DType::kE4M3) return scratch_bytes(problem, threads);
  const ProjectionProblem part = decoded_problem(problem);
  return scratch_bytes(part, threads) + static_cast<std::size_t>(part.m * part.groups * part.k) * sizeof(float);
}

void projection_cpu(const ProjectionProblem& problem, const Projection::Args& args, const RunContext& context) {
  run(projection_tiles_cpu(), problem, args, context);
}

void projection_avx2(const ProjectionProblem& problem, const Projection::Args& args, const RunContext& context) {
  run(projection_tiles_avx2(), problem, args, context);
}

void projection_avx512(const ProjectionProblem& problem, const Projection::Args& args, const RunContext& context) {
  run(projection_tiles_avx512(), problem, args, context);
}

void projection_bf16_avx512(const ProjectionProblem& problem, const Projection::Args& args, const RunContext& context) {
  run_tiles(projection_tiles_bf16_avx512(), problem, args, context);
}

}  // namespace smla
