#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>

#include "bench/device_inputs.h"
#include "bench/device_timer.h"
#include "bench/inputs.h"
#include "bench/linears.h"
#include "sparsemla/ops/projection.h"

// The layer's linear maps on a GPU, bf16 weights and activations.

namespace smla::bench {

namespace {

constexpr int kSets = 2;
constexpr double kBound = 4e-3;
constexpr std::array<std::int64_t, 12> kRows{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048, 8192};
constexpr std::int64_t kPiece = 512;

/// Two rows of y, the first and the last, by the reference.
Check check_rows(const Linear& linear, std::int64_t m, const DeviceTensor& x, const DeviceTensor& y,
                 const HostTensor& w, Stream stream) {
  Check out;
  for (const std::int64_t row : {std::int64_t{0}, m - 1}) {
    const HostTensor one = to_host(x.view().slice(0, row, row + 1), stream);
    const HostTensor got = to_host(y.view().slice(0, row, row + 1), stream);
    HostTensor want(linear.y, {1, linear.groups, linear.n});
    const std::int64_t pieces = (linear.n + kPiece - 1) / kPiece;
    std::exception_ptr error;
#pragma omp parallel for schedule(dynamic)
    for (std::int64_t i = 0; i < linear.groups * pieces; ++i) {
      try {
        const std::int64_t g = i / pieces;
        const std::int64_t begin = i % pieces * kPiece;
        const std::int64_t end = std::min(linear.n, begin + kPiece);
        const Projection::Problem problem{.m = 1, .n = end - begin, .k = linear.k, .y = linear.y};
        Plan<Projection>(problem, {.implementation = "ref"})
            .run({.x = one.view().slice(1, g, g + 1),
                  .w = ConstTensorView(w.as<BF16>() + (g * linear.n + begin) * linear.k, DType::kBF16,
                                       {1, end - begin, linear.k}),
                  .y = want.view().slice(1, g, g + 1).slice(2, begin, end)});
      } catch (...) {
#pragma omp critical
        error = std::current_exception();
      }
    }
    if (error) std::rethrow_exception(error);
    Check found = check_result(got, want, kBound);
    if (!found.failure.empty()) found.failure = fmt::format("row {}: {} (l2 {:.2e})", row, found.failure, found.l2);
    out = worse(out, found);
  }
  return out;
}

/// One map with every number of rows.
void measure_linear(const Options& options, const Linear& linear, const std::vector<std::int64_t>& rows,
                    const DeviceTimer& timer, const Emit& emit) {
  std::vector<DeviceTensor> w;
  for (std::uint64_t s = 0; s < kSets; ++s) {
    w.push_back(device_numbers(DType::kBF16, {linear.groups, linear.n, linear.k}, 11 + s, 0.5F, timer.stream()));
  }
  const HostTensor first = to_host(std::as_const(w[0]).view(), timer.stream());
  for (const std::int64_t m : rows) {
    const Projection::Problem problem{.m = m,
                                      .n = linear.n,
                                      .k = linear.k,
                                      .groups = linear.groups,
                                      .x = DType::kBF16,
                                      .w = DType::kBF16,
                                      .y = linear.y};
    const Plan<Projection> plan(problem, plan_options<Projection>(options, problem));
    const DeviceMemory workspace(DeviceKind::kCuda, plan.workspace_bytes(), false);
    std::vector<DeviceTensor> x;
    for (std::uint64_t s = 0; s < kSets; ++s)
      x.push_back(device_numbers(DType::kBF16, {m, linear.groups, linear.k}, 21 + s, 1.0F, timer.stream()));
    DeviceTensor y(DeviceKind::kCuda, linear.y, {m, linear.groups, linear.n});
    std::vector<std::function<void()>> calls;
    for (std::size_t s = 0; s < kSets; ++s) {
      calls.emplace_back([&, s] {
        plan.run({.x = std::as_const(x[s]).view(), .w = std::as_const(w[s]).view(), .y = y.view()},
                 {.data = workspace.data(), .bytes = workspace.bytes()}, timer.stream());
      });
    }
    const std::vector<GpuRecording> recordings = timer.record(calls);
    Row row;
    row.group = "projection";
    row.name = fmt::format("{} x {}", linear.name, m);
    row.shape = fmt::format("rows {}, {} -> {}{}, bf16 weights", m, linear.k, linear.n,
                            linear.groups > 1 ? fmt::format(", {} groups", linear.groups) : "");
    row.implementation = plan.implementation();
    row.time = timer.time(options.measure, recordings);
    const double weights = static_cast<double>(linear.groups * linear.n * linear.k);
    row.flops = 2 * weights * static_cast<double>(m);
    row.bytes = 2 * weights + static_cast<double>(x[0].bytes() + y.bytes());
    row.bf16 = true;
    fill_bytes(DeviceKind::kCuda, y.data(), 0xFF, y.bytes(), timer.stream());
    timer.replay(recordings[0]);
    if (const std::int64_t bad = gpu_count_nan(std::as_const(y).view(), timer.stream()); bad > 0) {
      row.check = {.done = true, .l2 = 0, .failure = fmt::format("{} outputs are NaN or were not written", bad)};
    }
    row.check = worse(row.check, check_rows(linear, m, x[0], y, first, timer.stream()));
    emit(row);
  }
}

}  // namespace

void bench_device_projection(const Options& options, const Emit& emit) {
  std::vector<std::int64_t> rows = options.decode ? options.batches : std::vector<std::int64_t>{};
  if (options.prefill) rows.insert(rows.end(), options.tokens.begin(), options.tokens.end());
  if (options.batches.empty() && options.tokens.empty()) rows.assign(kRows.begin(), kRows.end());
  const DeviceTimer timer;
  for (const Linear& linear : linears(options)) measure_linear(options, linear, rows, timer, emit);
}

}  // namespace smla::bench
