// Projections whose weights are streamed past up to some hundred rows of x, one or several weights in one launch
// (stream_rows_sm90.cuh).
#include <algorithm>
#include <cstdint>
#include <string>

#include "device/launch_pdl.cuh"
#include "ops/cuda_row.h"
#include "ops/projection/implementations.h"
#include "ops/projection/stream_rows_sm90.cuh"
#include "ops/projection/stream_split.h"

namespace smla {

namespace {

using namespace projection;
using JointProblem = JointProjection::Problem;

using Sixteen = sm90::StreamShape<16, 1, 5>;  ///< up to 16 rows
using ThirtyTwo = sm90::StreamShape<32, 1, 4>;
using SixtyFour = sm90::StreamShape<64, 1, 4>;
using Most = sm90::StreamShape<64, 2, 3>;  ///< more, 128 at a time
constexpr int kMostShared = std::max({Sixteen::kShared, ThirtyTwo::kShared, SixtyFour::kShared, Most::kShared});
static_assert(kMostShared <= 227 << 10);

/// Rows for which the kernel is chosen by itself: of E4M3 weights alone, and where bf16 ones are among them, which have
/// twice the bytes.
constexpr std::int64_t kFewestRows = 17;
constexpr std::int64_t kFewestRowsWithBf16 = 33;
constexpr std::int64_t kMostRows = 128;
constexpr std::int64_t kMostInputs = (std::int64_t{1} << 30) - sm90::kPiece;  // a row's bytes in 31 bits

/// Why others keep the choice, unless the kernel is named.
std::string loses(const JointProblem& p, const PlanOptions& options) {
  if (options.implementation == kStreamSm90Name) return "";
  const std::string named = "; it runs where it is named";
  if (options.deterministic) return "not chosen by itself where bits must not depend on m" + named;
  const auto end = p.part.begin() + p.parts;
  const auto e4m3 = [](const JointProjection::Part& part) { return part.w == DType::kE4M3; };
  if (!std::any_of(p.part.begin(), end, e4m3)) return "not chosen by itself for bf16 weights" + named;
  const std::int64_t fewest = std::all_of(p.part.begin(), end, e4m3) ? kFewestRows : kFewestRowsWithBf16;
  if (p.m >= fewest && p.m <= kMostRows) return "";
  return "not chosen by itself but for " + std::to_string(fewest) + " to " + std::to_string(kMostRows) + " rows" +
         named;
}

Decision decide_joint(const JointProblem& p, const PlanOptions& options, const Machine& machine) {
  if (std::string missing = needs_sm90(machine); !missing.empty()) return refused(std::move(missing));
  if (std::string lost = loses(p, options); !lost.empty()) return refused(std::move(lost));
  if (std::string wrong = not_streamed(p); !wrong.empty()) return refused(std::move(wrong));
  if (p.k > kMostInputs) return refused("it takes k to " + std::to_string(kMostInputs));
  if (machine.gpu.shared_bytes < kMostShared) {
    return refused("shared memory of " + std::to_string(machine.gpu.shared_bytes) + " bytes a block; it takes " +
                   std::to_string(kMostShared));
  }
  return {};
}
Decision decide_one(const ProjectionProblem& p, const PlanOptions& options, const Machine& machine) {
  return decide_joint(joint_problem(p), options, machine);
}

template <class Shape>
constexpr auto kKernel = sm90::stream_rows<Shape::kWidth, Shape::kParts, Shape::kDeep>;

template <class Shape, unsigned kTogether>
std::int64_t at_once() {
  return device::clusters_at_once<kKernel<Shape>, kTogether, Shape::kShared>(dim3(Shape::kThreads));
}

std::int64_t tile_bytes(const StreamCall& call, const StreamPart& part) {
  return std::min<std::int64_t>(part.n, sm90::kOutputs) * call.k * (part.e4m3 ? 1 : 2);
}

/// Deals the call out to clusters: how many blocks share a tile of each weight, large items first.
void cut(StreamCall& call, std::int64_t rows) {
  // Of one shape for all: a row's bits must not depend on how many there are.
  const ClustersAtOnce clusters = {at_once<Most, 1>(), at_once<Most, 2>(), at_once<Most, 3>(), at_once<Most, 4>(),
                                   at_once<Most, 5>(), at_once<Most, 6>(), at_once<Most, 7>(), at_once<Most, 8>()};
  call.row_blocks = static_cast<std::uint32_t>((call.m + rows - 1) / rows);
  for (int i = 0; i < call.parts; ++i) {
    StreamPart& part = call.part[i];
    part.sharing = blocks_of_tile(
        {.tiles = call.groups * sm90::tiles_along(part.n), .tile_bytes = tile_bytes(call, part)}, clusters);
    call.together = std::max(call.together, part.sharing);
  }
  std::sort(call.part, call.part + call.parts, [&](const StreamPart& a, const StreamPart& b) {
    return tile_bytes(call, a) / a.sharing > tile_bytes(call, b) / b.sharing;
  });
  std::int64_t items = 0;
  for (int i = 0; i < call.parts; ++i) {
    StreamPart& part = call.part[i];
    const std::int64_t at_a_time = call.together / part.sharing;
    const std::int64_t columns = (sm90::tiles_along(part.n) + at_a_time - 1) / at_a_time;
    part.columns = static_cast<std::uint32_t>(columns);
    part.tiles = blocks_for(columns * call.groups * call.row_blocks, 1);
    items += part.tiles;
  }
  call.tiles = blocks_for(items, 1);
}

template <class Shape, unsigned kTogether>
void launch(const StreamCall& call, cudaStream_t stream) {
  const std::int64_t clusters = std::min<std::int64_t>(call.tiles, at_once<Shape, kTogether>());
  device::launch_cluster<kKernel<Shape>, kTogether>("projection", static_cast<unsigned>(clusters),
                                                    dim3(Shape::kThreads), Shape::kShared, stream, call);
}

template <class Shape>
void launch(StreamCall call, cudaStream_t stream) {
  cut(call, Shape::kRows);
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

void run_joint(const JointProblem& p, const JointProjection::Args& a, const RunContext& context) {
  if (!streamable(p, a)) {
    for (int i = 0; i < p.parts; ++i) projection_cuda(part_problem(p, i), part_args(p, a, i), context);
    return;
  }
  const StreamCall call = stream_call(p, a);
  if (p.m == 0 || call.parts == 0) return;
  const cudaStream_t stream = stream_of(context.stream);
  if (p.m <= Sixteen::kRows) {
    launch<Sixteen>(call, stream);
  } else if (p.m <= ThirtyTwo::kRows) {
    launch<ThirtyTwo>(call, stream);
  } else if (p.m <= SixtyFour::kRows) {
    launch<SixtyFour>(call, stream);
  } else {
    launch<Most>(call, stream);
  }
}

void run_one(const ProjectionProblem& p, const Projection::Args& a, const RunContext& context) {
  run_joint(joint_problem(p), joint_args(a), context);
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
