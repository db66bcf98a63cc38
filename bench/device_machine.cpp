#include "bench/device_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <iterator>
#include <sstream>

#include "bench/device_inputs.h"
#include "bench/inputs.h"
#include "sparsemla/ops/projection.h"
#include "sparsemla/plan.h"

namespace smla::bench {

namespace {

constexpr std::int64_t kSide = 8192;
constexpr std::int64_t kCopied = std::int64_t{1} << 30;
constexpr std::int64_t kGathered = std::int64_t{1} << 20;  // rows, about 600 MB
constexpr int kSets = 2;
constexpr std::int64_t kMmaRounds = 4096;

using Calls = std::vector<std::function<void()>>;

double median(const DeviceTimer& timer, const MeasureOptions& options, const Calls& calls) {
  const std::vector<GpuRecording> recordings = timer.record(calls);
  return timer.time(options, recordings).median;
}

/// Operations a second, and who computes.
double measure_product(const DeviceTimer& timer, const MeasureOptions& options, std::string& implementation) {
  const Projection::Problem problem{.m = kSide, .n = kSide, .k = kSide};
  const Plan<Projection> plan(problem, {.device = DeviceKind::kCuda});
  implementation = plan.implementation();
  const DeviceMemory workspace(DeviceKind::kCuda, plan.workspace_bytes(), false);
  std::vector<DeviceTensor> x;
  std::vector<DeviceTensor> w;
  DeviceTensor y(DeviceKind::kCuda, DType::kBF16, {kSide, 1, kSide});
  Calls calls;
  for (int s = 0; s < kSets; ++s) {
    x.push_back(
        device_numbers(DType::kBF16, {kSide, 1, kSide}, 10 + static_cast<std::uint64_t>(s), 1.0F, timer.stream()));
    w.push_back(
        device_numbers(DType::kBF16, {1, kSide, kSide}, 20 + static_cast<std::uint64_t>(s), 0.5F, timer.stream()));
  }
  for (std::size_t s = 0; s < kSets; ++s) {
    calls.emplace_back([&, s] {
      plan.run({.x = std::as_const(x[s]).view(), .w = std::as_const(w[s]).view(), .y = y.view()},
               {.data = workspace.data(), .bytes = workspace.bytes()}, timer.stream());
    });
  }
  return 2.0 * kSide * kSide * kSide / median(timer, options, calls);
}

double measure_copy(const DeviceTimer& timer, const MeasureOptions& options) {
  const DeviceMemory from(DeviceKind::kCuda, kCopied, false);
  const DeviceMemory to(DeviceKind::kCuda, kCopied, false);
  fill_bytes(DeviceKind::kCuda, from.data(), 0x35, from.bytes(), timer.stream());
  return 2.0 * kCopied /
         median(timer, options, {[&] { gpu_copy(to.data(), from.data(), from.bytes(), timer.stream()); }});
}

/// Every row of a cache once, in random order.
double measure_gather(const DeviceTimer& timer, const MeasureOptions& options, std::int64_t block_size) {
  const RowFormat& rows = fp8_ds_mla_rows();
  const DeviceCache cache(rows, kGathered / block_size, block_size, 1, timer.stream());
  std::vector<DeviceTensor> slots;
  Calls calls;
  for (std::uint64_t s = 0; s < kSets; ++s) {
    slots.push_back(DeviceTensor::copy_of(DeviceKind::kCuda, random_choices(1, kGathered, kGathered, 30 + s).view()));
    const auto* list = static_cast<const std::int32_t*>(slots.back().data());
    calls.emplace_back([&, list] { gpu_gather(cache.cache(), list, kGathered, timer.stream()); });
  }
  return static_cast<double>(kGathered * rows.row_bytes()) / median(timer, options, calls);
}

double measure_mma(const DeviceTimer& timer, const MeasureOptions& options) {
  double flops = 0;
  const double seconds = median(timer, options, {[&] { flops = gpu_multiply_add(kMmaRounds, timer.stream()); }});
  return flops / seconds;
}

std::string cuda_name(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

}  // namespace

std::string driver_version(std::string_view text) {
  std::istringstream words{std::string(text)};
  const auto is_version = [](const std::string& word) {
    return std::isdigit(static_cast<unsigned char>(word[0])) != 0 && word.find('.') != std::string::npos;
  };
  const auto found = std::find_if(std::istream_iterator<std::string>(words), {}, is_version);
  return found == std::istream_iterator<std::string>() ? "" : *found;
}

Machine gpu_identity() {
  Machine out;
  out.cpu = cpu_name();
  out.cores = cpu_features().cores;
  const GpuFacts facts = gpu_facts();
  out.gpu = facts.name;
  std::ifstream file("/proc/driver/nvidia/version");
  const std::string version = driver_version(std::string(std::istreambuf_iterator<char>(file), {}));
  out.driver = version.empty() ? "unknown" : version;
  out.cuda = fmt::format("{}, driver knows {}", cuda_name(facts.runtime_cuda), cuda_name(facts.driver_cuda));
  return out;
}

Machine measure_gpu(const MeasureOptions& options) {
  Machine out = gpu_identity();
  out.threads = options.threads;
  const DeviceTimer timer;
  out.peaks.push_back({.name = "product", .flops = measure_product(timer, options, out.product)});
  out.peaks.push_back({.name = "mma", .flops = measure_mma(timer, options)});
  out.bandwidths.push_back({.name = "copy", .flops = measure_copy(timer, options)});
  for (const std::int64_t block : {2, 64}) {
    out.bandwidths.push_back({.name = fmt::format("gather_{}", block), .flops = measure_gather(timer, options, block)});
  }
  const Timing nothing = timer.time(options, Calls{[] {}});
  out.timer = nothing.p90 - nothing.p10;
  constexpr std::int32_t kFar = 1 << 16;  // numbers, so that no read brings the next one along
  HostTensor places(DType::kI32, {4 * kFar});
  for (std::int32_t i = 0; i < 4; ++i) places.as<std::int32_t>()[i * kFar] = (i + 1) % 4 * kFar;
  const DeviceTensor next = DeviceTensor::copy_of(DeviceKind::kCuda, std::as_const(places).view());
  DeviceTensor last(DeviceKind::kCuda, DType::kI32, {1});
  const auto follow = [&](int reads) {
    return median(timer, options, {[&] {
                    gpu_follow(static_cast<const std::int32_t*>(next.data()), reads,
                               static_cast<std::int32_t*>(last.data()), timer.stream());
                  }});
  };
  out.launch = follow(0);
  out.follow = follow(3);
  return out;
}

}  // namespace smla::bench
