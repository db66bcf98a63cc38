// Projections whose weights are streamed past few rows of x, one or several weights in one launch (stream_rows.cuh).
#include <algorithm>
#include <cstdint>
#include <string>

#include "device/launch_pdl.cuh"
#include "ops/projection/implementations.h"
#include "ops/projection/stream_rows.cuh"

namespace smla {

namespace {

using namespace projection;
using JointProblem = JointProjection::Problem;

using Few = StreamShape<1, 1, 4>;      ///< up to 8 rows
using FewTall = StreamShape<2, 1, 3>;  ///< the same of more outputs, where a block may have 105 KiB
using Some = StreamShape<1, 2, 4>;     ///< up to 16
using SomeTall = StreamShape<2, 2, 3>;
using Many = StreamShape<2, 4, 2>;  ///< more, 32 at a time
constexpr int kMostShared = std::max({Few::kShared, Some::kShared, Many::kShared});
constexpr std::int64_t kMostRows = 64;       ///< of E4M3 and NVFP4 weights, by itself
constexpr std::int64_t kMostRowsOfBf16 = 4;  ///< of joint ones on Hopper
constexpr std::int64_t kMostInputs =
    (std::int64_t{1} << 30) - 2 * kStreamWarps * kStreamPiece;  // a row's bytes in 31 bits

/// Why others keep the choice, unless the kernel is named (docs/kernels/projection_stream.md has the measurements).
std::string loses(const JointProblem& p, bool joint, const PlanOptions& options, const Machine& machine) {
  if (options.implementation == kStreamName) return "";
  const std::string named = "; it runs where it is named";
  const auto end = p.part.begin() + p.parts;
  const bool codes = std::any_of(p.part.begin(), end, [](const JointProjection::Part& part) {
    return part.w == DType::kE4M3 || part.w == Projection::kNvfp4;
  });
  if (options.deterministic) return "not chosen by itself where bits must not depend on m" + named;
  const std::int64_t most = codes ? kMostRows : (joint && machine.gpu.capability == 90 ? kMostRowsOfBf16 : 0);
  if (p.m <= most) return "";
  return "not chosen by itself with more than " + std::to_string(most) + " rows" + (codes ? "" : " of bf16 weights") +
         named;
}

Decision decide_stream(const JointProblem& p, bool joint, const PlanOptions& options, const Machine& machine) {
  if (std::string missing = needs_gpu(machine); !missing.empty()) return refused(std::move(missing));
  if (std::string lost = loses(p, joint, options, machine); !lost.empty()) return refused(std::move(lost));
  if (std::string wrong = not_streamed(p, {.nvfp4 = true}); !wrong.empty()) return refused(std::move(wrong));
  if (p.k > kMostInputs) return refused("it takes k to " + std::to_string(kMostInputs));
  if (machine.gpu.shared_bytes < kMostShared) {
    return refused("shared memory of " + std::to_string(machine.gpu.shared_bytes) + " bytes a block; it takes " +
                   std::to_string(kMostShared));
  }
  return {};
}
Decision decide_one(const ProjectionProblem& p, const PlanOptions& options, const Machine& machine) {
  return decide_stream(joint_problem(p), false, options, machine);
}
Decision decide_joint(const JointProblem& p, const PlanOptions& options, const Machine& machine) {
  return decide_stream(p, true, options, machine);
}

template <class Shape>
std::int64_t tiles_of(const StreamCall& call, const StreamPart& part) {
  const std::int64_t rows = (call.m + Shape::kRows - 1) / Shape::kRows;
  return rows * call.groups * ((part.n + Shape::kOutputs - 1) / Shape::kOutputs);
}
template <class Shape>
std::int64_t tiles_of(const StreamCall& call) {
  std::int64_t tiles = 0;
  for (int i = 0; i < call.parts; ++i) tiles += tiles_of<Shape>(call, call.part[i]);
  return tiles;
}

template <int kTall, int kWide, int kDeep>
void launch(StreamCall call, StreamShape<kTall, kWide, kDeep> /*shape*/, cudaStream_t stream) {
  using Shape = StreamShape<kTall, kWide, kDeep>;
  call.row_blocks = static_cast<std::uint32_t>((call.m + Shape::kRows - 1) / Shape::kRows);
  for (int i = 0; i < call.parts; ++i)
    call.part[i].tiles = static_cast<std::uint32_t>(tiles_of<Shape>(call, call.part[i]));
  call.tiles = blocks_for(tiles_of<Shape>(call), 1);
  const std::int64_t at_once = std::int64_t{device::current_gpu().multiprocessors} * Shape::kBlocks;
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(call.tiles, at_once));
  const dim3 threads(kStreamThreads);
  if (std::any_of(call.part, call.part + call.parts, [](const StreamPart& part) { return part.nvfp4; })) {
    device::launch_pdl<stream_rows<kTall, kWide, kDeep, true>>("projection", blocks, threads, Shape::kShared, stream,
                                                               call);
  } else {
    device::launch_pdl<stream_rows<kTall, kWide, kDeep, false>>("projection", blocks, threads, Shape::kShared, stream,
                                                                call);
  }
}

/// The tall shape where it has a tile for nearly every block that runs at once, and room for its rings.
template <class Low, class Tall>
void launch_either(const StreamCall& call, cudaStream_t stream) {
  const device::Gpu gpu = device::current_gpu();
  const bool tall = gpu.shared_bytes >= static_cast<std::size_t>(Tall::kShared) &&
                    8 * tiles_of<Tall>(call) >= 7 * std::int64_t{gpu.multiprocessors} * Tall::kBlocks;
  if (tall) {
    launch(call, Tall{}, stream);
  } else {
    launch(call, Low{}, stream);
  }
}

void run_stream(const JointProblem& p, const JointProjection::Args& a, const RunContext& context) {
  if (!streamable(p, a)) {
    for (int i = 0; i < p.parts; ++i) projection_cuda(part_problem(p, i), part_args(p, a, i), context);
    return;
  }
  const StreamCall call = stream_call(p, a);
  if (p.m == 0 || call.parts == 0) return;
  const cudaStream_t stream = stream_of(context.stream);
  if (p.m <= Few::kRows) {
    launch_either<Few, FewTall>(call, stream);
  } else if (p.m <= Some::kRows) {
    launch_either<Some, SomeTall>(call, stream);
  } else {
    launch(call, Many{}, stream);
  }
}

void run_one(const ProjectionProblem& p, const Projection::Args& a, const RunContext& context) {
  run_stream(joint_problem(p), joint_args(a), context);
}

}  // namespace

Implementation<Projection> projection_stream_row() {
  Implementation<Projection> row = any_gpu_row<Projection>(run_one, decide_one);
  row.name = kStreamName;
  return row;
}

Implementation<JointProjection> joint_projection_stream_row() {
  Implementation<JointProjection> row = any_gpu_row<JointProjection>(run_stream, decide_joint);
  row.name = kStreamName;
  return row;
}

}  // namespace smla
