// Projections whose weights are streamed past up to some hundred rows of x, one or several weights in one launch, or
// one E4M3 weight past x in E4M3 (stream_rows_sm90.cuh).
#include <algorithm>
#include <cstdint>
#include <string>

#include "device/launch_pdl.cuh"
#include "device/row_views.cuh"
#include "ops/cuda_row.h"
#include "ops/norm_rope/implementations.h"
#include "ops/projection/implementations.h"
#include "ops/projection/quantise_outputs.h"
#include "ops/projection/stream_rows_sm90.cuh"
#include "ops/projection/stream_split.h"

namespace smla {

namespace projection::sm90 {

/// Splits x for blocks that have no time for it: a warp has four rows of 128 inputs of a group.
__global__ void __launch_bounds__(kGroupThreads) split_rows(const __grid_constant__ StreamCall call) {
  device::pdl_wait_and_trigger();
  const SplitX& to = call.split;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int e = lane % kSplitLanes;
  const std::uint32_t unit = blockIdx.x * kGroupWarps + threadIdx.x / 32;
  const std::uint32_t chunk = unit % to.chunks;
  const std::uint32_t of_rows = unit / to.chunks;
  const std::uint32_t quads = static_cast<std::uint32_t>(to.rows) / kSplitRows;
  const std::int64_t group = of_rows / quads;
  if (group >= call.groups) return;
  const std::int64_t row = of_rows % quads * kSplitRows + lane / kSplitLanes;
  const int input = static_cast<int>(chunk) * kPiece + e * 16;
  const bool there = row < call.m && input < call.k;
  SixteenInputs x[1] = {};
  if (there) {
    const auto* from = reinterpret_cast<const uint4*>(call.x + row * call.x_row + group * call.x_group + input);
    x[0][0] = from[0];
    x[0][1] = from[1];
  }
  SplitInputs out[1];
  split_inputs(x, out);
  if (there) {
    const std::int64_t at = (group * to.rows + row) * call.k + input;
    *reinterpret_cast<uint4*>(to.upper + at) = out[0].upper;
    *reinterpret_cast<uint4*>(to.lower + at) = out[0].lower;
  }
  if (e == 0) to.scales[(group * to.chunks + chunk) * to.rows + row] = __uint_as_float(out[0].scale);
}

}  // namespace projection::sm90

namespace {

using namespace projection;
using JointProblem = JointProjection::Problem;

// Outputs of a block, rows of a tile, stages: two blocks a multiprocessor where rows are few.
using Sixteen = sm90::StreamShape<128, 16, 5>;
using NormedSixteen = sm90::StreamShape<128, 16, 5, sm90::StreamedX::kBF16, false, true>;
using ThirtyTwo = sm90::StreamShape<128, 32, 4>;
using SixtyFour = sm90::StreamShape<256, 64, 4>;                        ///< at a time, if there are more
using Codes32 = sm90::StreamShape<128, 32, 4, sm90::StreamedX::kE4M3>;  ///< of E4M3 x
using Codes64 = sm90::StreamShape<128, 64, 3, sm90::StreamedX::kE4M3>;
using Codes64Wide = sm90::StreamShape<256, 64, 4, sm90::StreamedX::kE4M3>;
using Nvfp4_16 = sm90::StreamShape<128, 16, 3, sm90::StreamedX::kBesideNvfp4>;  ///< of NVFP4 weights
using Nvfp4_32 = sm90::StreamShape<128, 32, 3, sm90::StreamedX::kBesideNvfp4>;
using Nvfp4_64 = sm90::StreamShape<128, 64, 3, sm90::StreamedX::kBesideNvfp4>;
constexpr int kSharedOfTwo = 113 << 10;  ///< most of a block of which two share a multiprocessor
constexpr int kMostShared = std::max({Sixteen::kShared, NormedSixteen::kShared, ThirtyTwo::kShared, SixtyFour::kShared,
                                      Codes32::kShared, Codes64::kShared, Codes64Wide::kShared});
static_assert(std::max(Codes32::kShared, Codes64::kShared) <= kSharedOfTwo);
static_assert(std::max({Nvfp4_16::kShared, Nvfp4_32::kShared, Nvfp4_64::kShared}) <= kSharedOfTwo);
static_assert(kMostShared <= 227 << 10 && std::max(NormedSixteen::kShared, ThirtyTwo::kShared) <= kSharedOfTwo);

/// Of clusters that find room with one block a multiprocessor: so much that no two blocks share one. They would where
/// the kernel ahead still has some multiprocessors, and stay there when it has ended. A block of the next product has
/// room beside it.
constexpr int kSharedAlone = 115 << 10;
constexpr int kSharedOfMultiprocessor = 228 << 10;
constexpr int kSharedOfSystem = 1 << 10;  ///< of each block
static_assert(2 * (kSharedAlone + kSharedOfSystem) > kSharedOfMultiprocessor);
static_assert(kSharedAlone + Sixteen::kShared + 2 * kSharedOfSystem <= kSharedOfMultiprocessor);

/// Rows for which the kernel is chosen by itself. Of bf16 x and E4M3 weights alone, from bytes on that are worth its
/// clusters; where bf16 ones are among them, from kFewestRowsWithBf16 on. Above kStreamedElsewhere rows nothing else
/// takes bf16 x beside E4M3 weights.
constexpr std::int64_t kFewestBytes = std::int64_t{8} << 20;
constexpr std::int64_t kFewestBytesOfSixteen = std::int64_t{14} << 20;  ///< of up to sixteen rows
constexpr std::int64_t kFewestRowsWithBf16 = 33;
constexpr std::int64_t kStreamedElsewhere = 64;
constexpr std::int64_t kMostRows = 128;
/// Of E4M3 x; more of several groups, of which cuBLASLt makes a product each; and where the number of rows is no
/// multiple of four, which cuBLASLt takes.
constexpr std::int64_t kMostCodedRows = 64;
constexpr std::int64_t kMostRowsOfGroups = 512;
constexpr std::int64_t kMostRowsOfNoFours = 256;
constexpr std::int64_t kMostInputs = (std::int64_t{1} << 30) - sm90::kPiece;  // a row's bytes in 31 bits

/// Beside E4M3 x of 33 to 64 rows, weights from so many bytes to kMostBytesOfFew are read for all rows at once, and
/// small ones of many inputs, as those of hidden states are.
constexpr std::int64_t kFewestBytesOfCodes64 = std::int64_t{16} << 20;
constexpr std::int64_t kFewestInputsOfNarrow = 2048;
constexpr std::int64_t kMostBytesOfNarrow = std::int64_t{8} << 20;
/// Up to as many bytes of weights 32 rows of bf16 x are a tile of their own; with more, tiles of 64 rows are faster.
constexpr std::int64_t kMostBytesOfFew = std::int64_t{48} << 20;

// From so many bytes and rows on it is faster with NVFP4 weights; of few inputs, from fewer rows on.
constexpr std::int64_t kFewestBytesOfNvfp4 = std::int64_t{16} << 20;
constexpr std::int64_t kFewestRowsOfNvfp4 = 64;
constexpr std::int64_t kFewInputs = 1024;
constexpr std::int64_t kFewestRowsOfFewInputs = 16;
/// GB/s of NVFP4 weights that a block and a multiprocessor widen, by which weights of few inputs are shared. Of more
/// inputs, more blocks to a tile are slower alone and faster in a layer, where they begin before the kernel ahead ends.
constexpr std::int64_t kNvfp4Rate = 11;
constexpr std::int64_t kNvfp4Most = 12;

std::int64_t weight_bytes(const JointProblem& p) {
  std::int64_t bytes = 0;
  for (auto part = p.part.begin(); part != p.part.begin() + p.parts; ++part)
    bytes += p.groups * part->n * (part->w == Projection::kNvfp4 ? p.k / 2 : p.k * size_of(part->w));
  return bytes;
}

/// Whether a weight is NVFP4; then all are, or the call is refused.
bool of_nvfp4(const JointProblem& p) {
  return std::any_of(p.part.begin(), p.part.begin() + p.parts,
                     [](const JointProjection::Part& part) { return part.w == Projection::kNvfp4; });
}

/// Why others keep the choice, unless the kernel is named.
std::string loses(const JointProblem& p, const PlanOptions& options) {
  if (options.implementation == kStreamSm90Name) return "";
  const std::string named = "; it runs where it is named";
  if (p.norms_x) return "not chosen by itself with norms_x" + named;
  if (options.deterministic) return "not chosen by itself where bits must not depend on m" + named;
  const auto end = p.part.begin() + p.parts;
  const auto e4m3 = [](const JointProjection::Part& part) { return part.w == DType::kE4M3; };
  if (of_nvfp4(p)) {
    const std::int64_t fewest = p.k <= kFewInputs ? kFewestRowsOfFewInputs : kFewestRowsOfNvfp4;
    if (p.m >= fewest && p.m <= kMostRows && weight_bytes(p) >= kFewestBytesOfNvfp4) return "";
    return "chosen by itself for " + std::to_string(fewest) + " to " + std::to_string(kMostRows) + " rows and " +
           std::to_string(kFewestBytesOfNvfp4) + " bytes of NVFP4 weights or more" + named;
  }
  if (!std::any_of(p.part.begin(), end, e4m3)) return "not chosen by itself for bf16 weights" + named;
  if (p.x == DType::kE4M3) {
    const std::int64_t most = p.groups > 1 ? kMostRowsOfGroups : (p.m % 4 != 0 ? kMostRowsOfNoFours : kMostCodedRows);
    if (p.m <= most) return "";
    return "not chosen by itself for more than " + std::to_string(most) + " such rows of E4M3 x" + named;
  }
  if (p.m > kMostRows) return "not chosen by itself for more than " + std::to_string(kMostRows) + " rows" + named;
  if (p.m > kStreamedElsewhere) return "";
  if (!std::all_of(p.part.begin(), end, e4m3)) {
    if (p.m >= kFewestRowsWithBf16) return "";
    return "not chosen by itself for fewer than " + std::to_string(kFewestRowsWithBf16) +
           " rows where bf16 weights are among them" + named;
  }
  const std::int64_t fewest = p.m <= Sixteen::kRows ? kFewestBytesOfSixteen : kFewestBytes;
  if (weight_bytes(p) >= fewest) return "";
  return "not chosen by itself for less than " + std::to_string(fewest) + " bytes of weights" + named;
}

/// Where x lies in the workspace after it has been split.
SplitX split_x(const JointProblem& p, void* workspace) {
  const std::int64_t rows = (p.m + 3) / 4 * 4;
  const std::int64_t bytes = p.groups * rows * p.k;
  auto* at = static_cast<std::uint8_t*>(workspace);
  return {.upper = at,
          .lower = at + bytes,
          .scales = reinterpret_cast<float*>(at + 2 * bytes),
          .rows = rows,
          .chunks = static_cast<std::uint32_t>((p.k + sm90::kPiece - 1) / sm90::kPiece)};
}
bool splits_before(const JointProblem& p) {
  const auto e4m3 = [](const JointProjection::Part& part) { return part.w == DType::kE4M3 && part.n > 0; };
  return p.x == DType::kBF16 && p.m > Sixteen::kRows && p.k > 0 &&
         std::any_of(p.part.begin(), p.part.begin() + p.parts, e4m3);
}
std::size_t split_bytes(const JointProblem& p) {
  if (!splits_before(p)) return 0;
  const SplitX x = split_x(p, nullptr);
  return static_cast<std::size_t>(p.groups * x.rows * (2 * p.k + 4 * std::int64_t{x.chunks}));
}

Decision decide_joint(const JointProblem& p, const PlanOptions& options, const Machine& machine) {
  if (std::string missing = needs_sm90(machine); !missing.empty()) return refused(std::move(missing));
  if (std::string lost = loses(p, options); !lost.empty()) return refused(std::move(lost));
  if (std::string wrong = not_streamed(p, StreamTakes{.nvfp4 = true, .e4m3_x = true, .norms_x = true}); !wrong.empty())
    return refused(std::move(wrong));
  for (int i = 0; i < p.parts; ++i) {
    const JointProjection::Part& part = p.part[static_cast<std::size_t>(i)];
    if (part.w == DType::kE4M3 && part.y != DType::kBF16)
      return refused("it gives bf16 y of E4M3 weights, whose sums are narrower than fp32");
    if (of_nvfp4(p) && part.w != Projection::kNvfp4) return refused("beside NVFP4 w it takes NVFP4 w alone");
  }
  if (p.norms_x && p.m > NormedSixteen::kRows)
    return refused("with norms_x it takes up to " + std::to_string(NormedSixteen::kRows) + " rows");
  if (p.k > kMostInputs) return refused("it takes k to " + std::to_string(kMostInputs));
  if (machine.gpu.shared_bytes < kMostShared) {
    return refused("shared memory of " + std::to_string(machine.gpu.shared_bytes) + " bytes a block; it takes " +
                   std::to_string(kMostShared));
  }
  Decision decision;
  decision.workspace_bytes = split_bytes(p) + normed_x_bytes(p);
  return decision;
}
Decision decide_one(const ProjectionProblem& p, const PlanOptions& options, const Machine& machine) {
  if (p.x == DType::kE4M3 && p.x_scale != OutputScale::kF32) return refused("it takes F32 scales of x");
  Decision decision = decide_joint(joint_problem(p), options, machine);
  // Some rows fewer are a multiple of four and cuBLASLt's: who reserves memory for the most rows has enough for them.
  if (p.x == DType::kE4M3 && p.groups == 1 && p.m > kMostCodedRows && p.m % 4 != 0 && decision.refusal.empty() &&
      options.implementation.empty()) {
    ProjectionProblem fewer = p;
    fewer.m -= p.m % 4;
    decision.workspace_bytes = choose<Projection>(fewer, options, machine).decision.workspace_bytes;
  }
  return decision;
}

template <class Shape>
constexpr auto kKernel =
    sm90::stream_rows<Shape::kOutputs, Shape::kRows, Shape::kDeep, Shape::kX, false, Shape::kNorms>;

template <class Shape, unsigned kTogether>
std::int64_t at_once() {
  return device::clusters_at_once<kKernel<Shape>, kTogether, Shape::kShared>(dim3(sm90::kThreads));
}

template <class Shape>
ClustersAtOnce clusters() {
  return {at_once<Shape, 1>(), at_once<Shape, 2>(), at_once<Shape, 3>(), at_once<Shape, 4>(),
          at_once<Shape, 5>(), at_once<Shape, 6>(), at_once<Shape, 7>(), at_once<Shape, 8>()};
}
template <class Shape>
StreamRoom room() {
  constexpr bool kFew = Shape::kRows <= 16 || (Shape::kX == sm90::StreamedX::kE4M3 && Shape::kRows <= 32);
  return {.clusters = clusters<Shape>(), .single = clusters<SixtyFour>(), .rate = kFew ? 30 : 20};
}

template <class Shape>
std::int64_t tiles_along(const StreamPart& part) {
  return (part.n + Shape::kOutputs - 1) / Shape::kOutputs;
}
template <class Shape>
StreamedWeight streamed(const StreamCall& call, const StreamPart& part, std::int64_t row_blocks) {
  const std::int64_t row_bytes =
      part.nvfp4 ? call.k / 2 + call.k / Projection::kNvfp4Group : std::int64_t{call.k} * (part.e4m3 ? 1 : 2);
  return {.tiles = call.groups * tiles_along<Shape>(part) * row_blocks,
          .tile_bytes = std::min<std::int64_t>(part.n, Shape::kOutputs) * row_bytes,
          .bytes = call.groups * part.n * row_bytes};
}

/// Deals the call out to clusters: how many blocks share a tile of each weight, large items first.
template <class Shape>
void cut(StreamCall& call, bool deterministic) {
  constexpr bool kCodes = Shape::kX == sm90::StreamedX::kE4M3;
  constexpr bool kNvfp4 = Shape::kX == sm90::StreamedX::kBesideNvfp4;
  using Many = std::conditional_t<kCodes, Codes64Wide, std::conditional_t<kNvfp4, Nvfp4_64, SixtyFour>>;
  // What a weight gives must not depend on the others of the call, by which the shape for 17 to 32 rows is chosen.
  const bool as_many = deterministic || (!kCodes && Shape::kRows > Sixteen::kRows);
  StreamRoom there = as_many ? room<Many>() : room<Shape>();
  if (kNvfp4 && call.k <= kFewInputs) there.rate = kNvfp4Rate, there.most = kNvfp4Most;
  call.row_blocks = static_cast<std::uint32_t>((call.m + Shape::kRows - 1) / Shape::kRows);
  for (int i = 0; i < call.parts; ++i) {
    StreamPart& part = call.part[i];
    // Where a row's bits must not depend on how many there are, inputs are cut as those of up to 64.
    const std::int64_t row_blocks = deterministic ? 1 : call.row_blocks;
    part.sharing = blocks_of_tile(
        as_many ? streamed<Many>(call, part, row_blocks) : streamed<Shape>(call, part, row_blocks), there);
    call.together = std::max(call.together, part.sharing);
  }
  const auto block_bytes = [&](const StreamPart& part) {
    return streamed<Shape>(call, part, 1).tile_bytes / part.sharing;
  };
  std::sort(call.part, call.part + call.parts,
            [&](const StreamPart& a, const StreamPart& b) { return block_bytes(a) > block_bytes(b); });
  std::int64_t items = 0;
  for (int i = 0; i < call.parts; ++i) {
    StreamPart& part = call.part[i];
    const std::int64_t row_bytes = std::int64_t{call.k} * (part.e4m3 ? 1 : 2);
    const std::int64_t at_a_time = call.together / part.sharing;
    const std::int64_t columns = (tiles_along<Shape>(part) + at_a_time - 1) / at_a_time;
    part.columns = static_cast<std::uint32_t>(columns);
    part.at_a_time = static_cast<unsigned>(at_a_time);
    const std::int64_t stages = (row_bytes + sm90::kPiece - 1) / sm90::kPiece;
    part.stages = static_cast<unsigned>(stages / part.sharing);
    part.more_stages = static_cast<unsigned>(stages % part.sharing);
    part.tiles = blocks_for(columns * call.groups * call.row_blocks, 1);
    items += part.tiles;
  }
  call.tiles = blocks_for(items, 1);
}

template <class Shape, unsigned kTogether>
void launch(StreamCall& call, cudaStream_t stream) {
  const std::int64_t one_each = at_once<SixtyFour, kTogether>();  // with one block a multiprocessor
  const bool leaves_room = Shape::kShared <= kSharedOfTwo && call.leaves_room;
  const std::int64_t most = leaves_room ? one_each : at_once<Shape, kTogether>();
  const std::int64_t clusters = std::min<std::int64_t>(call.tiles, most);
  const std::int64_t blocks = clusters * kTogether;
  // With more on its way, whatever runs beside the call waits longer for each of its reads.
  call.under_way = leaves_room ? 1 : stages_under_way(blocks, at_once<SixtyFour, 1>(), Shape::kDeep);
  const bool alone = !leaves_room && clusters <= one_each;
  const int shared = alone ? std::max(Shape::kShared, kSharedAlone) : Shape::kShared;
  device::launch_cluster<kKernel<Shape>, kTogether>("projection", static_cast<unsigned>(clusters), dim3(sm90::kThreads),
                                                    shared, stream, call);
}

template <class Shape>
void launch(StreamCall call, bool deterministic, cudaStream_t stream) {
  cut<Shape>(call, deterministic);
  switch (call.together) {
    case 1: return launch<Shape, 1>(call, stream);
    case 2: return launch<Shape, 2>(call, stream);
    case 3: return launch<Shape, 3>(call, stream);
    case 4: return launch<Shape, 4>(call, stream);
    case 5: return launch<Shape, 5>(call, stream);
    case 6: return launch<Shape, 6>(call, stream);
    case 7: return launch<Shape, 7>(call, stream);
    default: return launch<Shape, 8>(call, stream);
  }
}

/// bf16 x, split before the launch where the shape asks for it.
void run_bf16(const JointProblem& p, StreamCall call, const RunContext& context) {
  if (p.m == 0 || call.parts == 0) return;
  const cudaStream_t stream = stream_of(context.stream);
  if (splits_before(p)) {
    call.split = split_x(p, context.workspace.data);
    const std::int64_t units = p.groups * call.split.rows / sm90::kSplitRows * call.split.chunks;
    device::launch_pdl<sm90::split_rows>("projection", blocks_for(units, sm90::kGroupWarps), dim3(sm90::kGroupThreads),
                                         0, stream, call);
  }
  if (of_nvfp4(p)) {
    if (p.m <= Nvfp4_16::kRows) return launch<Nvfp4_16>(call, context.deterministic, stream);
    if (p.m <= Nvfp4_32::kRows) return launch<Nvfp4_32>(call, context.deterministic, stream);
    return launch<Nvfp4_64>(call, context.deterministic, stream);
  }
  if (p.norms_x) {
    launch<NormedSixteen>(call, context.deterministic, stream);
  } else if (p.m <= Sixteen::kRows) {
    launch<Sixteen>(call, context.deterministic, stream);
  } else if (p.m <= ThirtyTwo::kRows && weight_bytes(p) <= kMostBytesOfFew) {
    launch<ThirtyTwo>(call, context.deterministic, stream);
  } else {
    launch<SixtyFour>(call, context.deterministic, stream);
  }
}

/// E4M3 x.
void run_codes(const JointProblem& p, const StreamCall& call, const RunContext& context) {
  if (p.m == 0 || call.parts == 0) return;
  const cudaStream_t stream = stream_of(context.stream);
  if (p.m > Codes64::kRows) return launch<Codes64Wide>(call, context.deterministic, stream);
  const std::int64_t bytes = weight_bytes(p);
  const bool large = bytes >= kFewestBytesOfCodes64 && bytes <= kMostBytesOfFew;
  const bool narrow = p.k >= kFewestInputsOfNarrow && bytes < kMostBytesOfNarrow;
  const bool once = p.m > Codes32::kRows && (large || narrow);
  if (once) return launch<Codes64>(call, context.deterministic, stream);
  launch<Codes32>(call, context.deterministic, stream);
}

void run_joint(const JointProblem& p, const JointProjection::Args& a, const RunContext& context) {
  if (streamable(p, a)) return run_bf16(p, stream_call(p, a), context);
  JointProjection::Args normed = a;
  if (p.norms_x) {
    rms_norm_on_gpu(x_norm_problem(p), x_norm_args(p, a, context.workspace.data), context);
    normed.x = normed_x(p, context.workspace.data);
  }
  for (int i = 0; i < p.parts; ++i) projection_cuda(part_problem(p, i), part_args(p, normed, i), context);
}

void run_one(const ProjectionProblem& p, const Projection::Args& a, const RunContext& context) {
  const JointProblem joint = joint_problem(p);
  const JointProjection::Args args = joint_args(a);
  if (!streamable(joint, args)) {
    projection_cuda(p, a, context);
    return quantise_outputs(p, a, context, quantize_rows_on_gpu);
  }
  StreamCall call = stream_call(joint, args);
  const bool fused = p.quantises_y && device::by_fours(a.y_values);
  if (fused) {
    call.quantised = {.values = static_cast<E4M3*>(a.y_values.data),
                      .scales = static_cast<float*>(a.y_scales.data),
                      .values_row = a.y_values.stride[0],
                      .scale_chunk = a.y_scales.stride[1],
                      .padding = static_cast<int>(a.y_scales.size(2) - p.m)};
  }
  if (p.x == DType::kE4M3) {
    call.coded = {.codes = static_cast<const std::uint8_t*>(a.x.data),
                  .scales = static_cast<const float*>(a.x_scale.data),
                  .scale_group = a.x_scale.stride[0],
                  .scale_chunk = a.x_scale.stride[1]};
    run_codes(joint, call, context);
  } else {
    run_bf16(joint, call, context);
  }
  if (!fused) quantise_outputs(p, a, context, quantize_rows_on_gpu);
}

}  // namespace

Implementation<Projection> projection_stream_sm90_row() {
  Implementation<Projection> row = hopper_row<Projection>(run_one, decide_one);
  row.name = kStreamSm90Name;
  return row;
}

Implementation<JointProjection> joint_projection_stream_sm90_row() {
  Implementation<JointProjection> row = hopper_row<JointProjection>(run_joint, decide_joint);
  row.name = kStreamSm90Name;
  return row;
}

}  // namespace smla
