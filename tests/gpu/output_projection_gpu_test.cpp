// wo_a and wo_b in one call on the GPU.
#include <iostream>
#include <map>

#include "device/device_tensor.h"
#include "device/gpu.h"
#include "device/memory.h"
#include "device/streams.h"
#include "gpu/gpu_run.h"
#include "gpu/held_multiprocessors.h"
#include "parity/output_projection_cases.h"

namespace smla::test {
namespace {

class OutputProjectionGpu : public GpuTest {};

/// Replays a recorded call three times over one workspace: what its blocks tell each other must not stay there. Each
/// finds its outputs as they were at first, so that a block that does not wait reads what is no number.
void replay(const OutputProjection::Problem& p, const OutputProjection::Args& host, const std::string& name) {
  const Plan<OutputProjection> plan(p, {.device = DeviceKind::kCuda, .implementation = name});
  StagedTensors staged(DeviceKind::kCuda);
  const OutputProjection::Args args = staged.bring<OutputProjection>(host);
  const DeviceTensor workspace(DeviceKind::kCuda, DType::kU8, {static_cast<std::int64_t>(plan.workspace_bytes())});
  fill_bytes(DeviceKind::kCuda, workspace.data(), 0xFF, plan.workspace_bytes());
  synchronize(DeviceKind::kCuda);
  const OwnedStream stream(DeviceKind::kCuda);
  const Graph graph(stream.get(),
                    [&] { plan.run(args, {.data = workspace.data(), .bytes = plan.workspace_bytes()}, stream.get()); });
  const auto put_back = [](const TensorView& host_y, const TensorView& y) {
    if (y.numel() == 0) return;
    const std::int64_t numbers = (y.size(0) - 1) * y.stride[0] + y.size(1) * y.stride[1];
    copy_bytes(DeviceKind::kCuda, y.data, host_y.data, static_cast<std::size_t>(numbers) * size_of(y.dtype));
  };
  for (int i = 0; i < 3; ++i) {
    put_back(host.z, args.z);
    put_back(host.y, args.y);
    graph.launch(stream.get());
    synchronize(DeviceKind::kCuda, stream.get());
  }
  staged.back();
}

TEST_F(OutputProjectionGpu, AgreesWithRef) {
  std::map<std::string, int> compared;
  for (const OutputProjectionCase& c : output_projection_cases(DType::kBF16)) {
    const OutputTensors t(c);
    for (const std::string& name : gpu_implementations<OutputProjection>(t.problem)) {
      SCOPED_TRACE(name + ": " + describe(c));
      ProjectionBuffer z = t.first.poisoned_y();
      ProjectionBuffer y = t.second.poisoned_y();
      run_on_gpu<OutputProjection>(t.problem, t.args(z, y), name);
      check_written(t.first, z);
      check_written(t.second, y);
      ProjectionBuffer z_truth = t.first.poisoned_y();
      ProjectionBuffer y_truth = t.second.poisoned_y();
      Plan<Projection>(t.first.problem, {.implementation = "ref"}).run(t.first.args(z_truth));
      Plan<Projection>(t.second.problem, {.implementation = "ref"}).run(t.second_args(z, y_truth));
      const auto narrow = [](const ProjectionTensors& p) {
        return p.problem.w == DType::kE4M3 && p.problem.y == DType::kBF16;
      };
      check_close(t.first, z, z_truth, name, narrow(t.first));
      check_close(t.second, y, y_truth, name, narrow(t.second));
      if (HasFatalFailure()) return;
      ProjectionBuffer z_again = t.first.poisoned_y();
      ProjectionBuffer y_again = t.second.poisoned_y();
      replay(t.problem, t.args(z_again, y_again), name);
      ASSERT_TRUE(z.same_bits(z_again));
      ASSERT_TRUE(y.same_bits(y_again));
      ++compared[name];
    }
  }
  for (const auto& [name, count] : compared) std::cout << "[ compared ] " << name << ": " << count << " cases\n";
  EXPECT_GT(compared["cuda"], 20);
  EXPECT_TRUE(compared["sm90_stream"] > 10 || !has_sm90_stream());
}

// With few multiprocessors free, since another stream's kernel holds the rest, most clusters of a launch have no room
// to start. Those that have it compute their part, too, to the same bits, instead of waiting for them.
TEST_F(OutputProjectionGpu, EndsWhileOtherWorkHoldsMultiprocessors) {
  if (gpus()[0].name.starts_with("emulated")) GTEST_SKIP() << "the emulated GPU runs one launch after the other";
  if (!has_sm90_stream()) GTEST_SKIP() << "no GPU of sm_90";
  constexpr int kFree = 32;
  OutputProjectionCase c;
  c.first.problem = {.m = 4, .n = 1024, .k = 256, .groups = 8, .x = DType::kBF16, .w = DType::kE4M3, .y = DType::kBF16};
  c.second.problem = {.m = 4, .n = 1000, .k = 8192, .x = DType::kBF16, .w = DType::kE4M3, .y = DType::kBF16};
  const OutputTensors t(c);
  const Plan<OutputProjection> plan(
      t.problem, {.device = DeviceKind::kCuda, .implementation = std::string(OutputProjection::kOneLaunch)});
  const DeviceTensor workspace(DeviceKind::kCuda, DType::kU8, {static_cast<std::int64_t>(plan.workspace_bytes())});
  fill_bytes(DeviceKind::kCuda, workspace.data(), 0xFF, plan.workspace_bytes());
  const OwnedStream stream(DeviceKind::kCuda);
  ProjectionBuffer z[2] = {t.first.poisoned_y(), t.first.poisoned_y()};
  ProjectionBuffer y[2] = {t.second.poisoned_y(), t.second.poisoned_y()};
  for (int i = 0; i < 2; ++i) {
    StagedTensors staged(DeviceKind::kCuda);
    const OutputProjection::Args args = staged.bring<OutputProjection>(t.args(z[i], y[i]));
    synchronize(DeviceKind::kCuda);
    const auto run = [&] { plan.run(args, {.data = workspace.data(), .bytes = plan.workspace_bytes()}, stream.get()); };
    if (i == 0) {
      run();
    } else {
      const HeldMultiprocessors held(device::current_gpu().multiprocessors - kFree);
      for (int n = 0; n < 3; ++n) run();
      EXPECT_TRUE(HeldMultiprocessors::ends_meanwhile(stream.get().handle, 10));
    }
    synchronize(DeviceKind::kCuda, stream.get());
    staged.back();
  }
  check_written(t.second, y[0]);
  EXPECT_TRUE(z[0].same_bits(z[1]));
  EXPECT_TRUE(y[0].same_bits(y[1]));
}

}  // namespace
}  // namespace smla::test
