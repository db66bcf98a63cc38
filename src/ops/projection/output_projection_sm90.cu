// OutputProjection in one launch: the ring of the streamed products (stream_rows_sm90.cuh) goes on from the weights of
// wo_a to those of wo_b, whose inputs the clusters make for each other.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "device/launch_pdl.cuh"
#include "ops/cuda_row.h"
#include "ops/projection/implementations.h"
#include "ops/projection/stream_rows_sm90.cuh"

namespace smla {

namespace {

using namespace projection;
using Problem = OutputProjection::Problem;

/// Of up to 16 rows and of up to eight: stages of the ring are what a multiprocessor has room for.
using Shape = sm90::StreamShape<128, 16, 10, sm90::StreamedX::kBF16, true>;
using Eight = sm90::StreamShape<128, 8, 12, sm90::StreamedX::kBF16, true>;
template <class S>
constexpr auto kKernel = sm90::stream_rows<S::kOutputs, S::kRows, S::kDeep, S::kX, S::kChained>;
constexpr unsigned kTogether = sm90::kChainedBlocks;
constexpr int kUnderWay = 2;  ///< stages of weights that a block has on their way
constexpr std::int64_t kMostSize = std::int64_t{1} << 28U;
constexpr int kMostShared = std::max(Shape::kShared, Eight::kShared);
static_assert(kMostShared <= 227 << 10);

std::int64_t tiles_of(std::int64_t outputs) { return (outputs + Shape::kOutputs - 1) / Shape::kOutputs; }

/// Clusters of a launch: as many as the GPU runs at once. Each has a tile of the first product.
std::int64_t clusters_of(const Problem& p) {
  const std::int64_t at_once =
      device::clusters_at_once<kKernel<Shape>, kTogether, Shape::kShared>(dim3(sm90::kThreads));
  return std::min({at_once, std::int64_t{Shape::kMostWorkers}, p.groups * tiles_of(p.rank)});
}

/// Whether two clusters share a tile of wo_b: where there are enough.
bool halved(const Problem& p) { return 2 * tiles_of(p.n) <= clusters_of(p); }

/// What clusters tell each other, in the workspace (ChainedProduct): where each begins, in bytes.
struct Places {
  std::int64_t sums = 0, made = 0, met = 0, claimed = 0, done = 0, end = 0;
  explicit Places(const Problem& p)
      : made(4 * 2 * Shape::kRows * Shape::kOutputs * tiles_of(p.n)),
        met(made + 16 * p.groups * tiles_of(p.rank)),
        claimed(met + 8 * Shape::kRows * tiles_of(p.n)),
        done(claimed + 8 * Shape::kMostWorkers),
        end(done + 8) {}
};

/// A number that no launch had before, and no memory has by chance.
std::uint64_t next_nonce() {
  static std::atomic<std::uint64_t> count{
      static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count())};
  std::uint64_t v = (count += 0x9E37'79B9'7F4A'7C15U);
  v = (v ^ (v >> 30U)) * 0xBF58'476D'1CE4'E5B9U;
  v = (v ^ (v >> 27U)) * 0x94D0'49BB'1331'11EBU;
  return (v ^ (v >> 31U)) | std::uint64_t{1} << 63U;
}

std::string refusal(const Problem& p, const PlanOptions& options, const Machine& machine) {
  if (std::string missing = needs_sm90(machine); !missing.empty()) return missing;
  if (options.deterministic) return "a row's bits are those of up to " + std::to_string(Shape::kRows) + " rows alone";
  if (p.m > Shape::kRows) return "it takes m to " + std::to_string(Shape::kRows);
  if (p.x != DType::kBF16 || p.y != DType::kBF16 || p.wo_a != DType::kE4M3 || p.wo_b != DType::kE4M3)
    return "it takes bf16 x and y and E4M3 weights";
  if (p.k % 16 != 0) return "it takes k in multiples of 16";
  if (p.rank % Shape::kOutputs != 0) return "it takes rank in multiples of " + std::to_string(Shape::kOutputs);
  if (p.k > kMostSize || p.groups * p.rank > kMostSize || p.n > kMostSize) return "it takes sizes to 2^28";
  if (machine.gpu.shared_bytes < kMostShared) {
    return "shared memory of " + std::to_string(machine.gpu.shared_bytes) + " bytes a block; it takes " +
           std::to_string(kMostShared);
  }
  // With fewer tiles some multiprocessors have none, with more some have twice as many as others.
  const std::int64_t tiles = p.groups * tiles_of(p.rank);
  const std::int64_t most = machine.gpu.multiprocessors / static_cast<int>(kTogether);
  const std::int64_t least = (3 * most + 3) / 4;
  if (options.implementation.empty() && (tiles < least || tiles > most)) {
    return "slower with " + std::to_string(tiles) + " times 128 outputs of wo_a: it is chosen with " +
           std::to_string(least) + " to " + std::to_string(most);
  }
  return "";
}

Decision decide(const Problem& p, const PlanOptions& options, const Machine& machine) {
  Decision decision = refused(refusal(p, options, machine));
  decision.workspace_bytes = static_cast<std::size_t>(Places(p).end);
  return decision;
}

void run(const Problem& p, const OutputProjection::Args& a, const RunContext& context) {
  if (p.m == 0) return;
  const Projection::Args first = first_args(a);
  const Projection::Args second = second_args(p, a);
  const bool whole = p.k > 0 && p.rank > 0 && p.n > 0 &&
                     streamable(joint_problem(first_problem(p)), joint_args(first)) &&
                     streamable(joint_problem(second_problem(p)), joint_args(second));
  if (!whole) {
    projection_cuda(first_problem(p), first, context);
    projection_cuda(second_problem(p), second, context);
    return;
  }
  StreamCall call = stream_call(joint_problem(first_problem(p)), joint_args(first));
  const StreamCall behind = stream_call(joint_problem(second_problem(p)), joint_args(second));
  call.part[call.parts++] = behind.part[0];
  const std::int64_t clusters = clusters_of(p);
  const auto stages = [](std::int64_t inputs) {
    return static_cast<unsigned>((inputs + sm90::kPiece - 1) / sm90::kPiece);
  };
  call.part[0].columns = static_cast<std::uint32_t>(tiles_of(p.rank));
  call.part[0].stages = stages(p.k);
  call.part[1].columns = static_cast<std::uint32_t>(tiles_of(p.n));
  call.part[1].stages = stages(p.groups * p.rank);
  const std::int64_t first_tiles = p.groups * tiles_of(p.rank);
  call.tiles = blocks_for(first_tiles + tiles_of(p.n) * (halved(p) ? 2 : 1), 1);
  call.together = kTogether;
  call.under_way = kUnderWay;
  const Places places(p);
  auto* const workspace = static_cast<std::byte*>(context.workspace.data);
  const auto at = [&](std::int64_t place) { return reinterpret_cast<std::uint64_t*>(workspace + place); };
  call.chained = {.x = behind.x,
                  .x_row = behind.x_row,
                  .k = behind.k,
                  .first_tiles = static_cast<std::uint32_t>(first_tiles),
                  .halved = halved(p),
                  .width = Shape::kOutputs * tiles_of(p.n),
                  .sums = reinterpret_cast<float*>(workspace + places.sums),
                  .made = at(places.made),
                  .met = at(places.met),
                  .claimed = at(places.claimed),
                  .done = at(places.done),
                  .nonce = next_nonce()};
  const auto launch = [&]<class S>(S /*shape*/) {
    device::launch_cluster<kKernel<S>, kTogether>("output_projection", static_cast<unsigned>(clusters),
                                                  dim3(sm90::kThreads), S::kShared, stream_of(context.stream), call);
  };
  if (p.m <= Eight::kRows) {
    launch(Eight());
  } else {
    launch(Shape());
  }
}

}  // namespace

Implementation<OutputProjection> output_projection_stream_sm90_row() {
  Implementation<OutputProjection> row = hopper_row<OutputProjection>(run, decide);
  row.name = kStreamSm90Name;
  return row;
}

}  // namespace smla
