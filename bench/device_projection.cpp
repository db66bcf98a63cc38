#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <exception>
#include <string_view>
#include <utility>

#include "bench/device_inputs.h"
#include "bench/device_timer.h"
#include "bench/inputs.h"
#include "bench/linears.h"
#include "sparsemla/ops/projection.h"

// The layer's linear maps on a GPU: bf16 weights and activations, FP8 weights and activations as layers of FP8
// checkpoints have them there, or NVFP4 weights and bf16 activations.

namespace smla::bench {

namespace {

constexpr int kSets = 2;
constexpr double kBound = 4e-3;
constexpr std::array<std::int64_t, 12> kRows{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 2048, 8192};
constexpr std::int64_t kPiece = 512;
constexpr std::int64_t kUnroundedRows = 16;  ///< up to here a layer on Hopper rounds no inputs

/// The implementation that is chosen.
std::string chosen(const Projection::Problem& p, const PlanOptions& plan) {
  for (const Candidate& c : explain<Projection>(p, plan))
    if (c.refusal.empty()) return c.name;
  return "";
}

/// What a map's product takes, as a layer on a GPU makes it: inputs of FP8 weights are E4M3 too, except in steps of few
/// tokens, for which a kernel streams the weights past bf16 inputs. Where an implementation is asked for they are E4M3
/// unless it takes others alone.
Projection::Problem problem_of(const Options& options, const Linear& linear, std::int64_t m) {
  Projection::Problem p{.m = m,
                        .n = linear.n,
                        .k = linear.k,
                        .groups = linear.groups,
                        .x = DType::kBF16,
                        .w = weight_dtype(options, linear),
                        .y = linear.y};
  if (p.w != DType::kE4M3) return p;
  if (linear.k % Projection::kScaleGroup != 0) return p;
  const PlanOptions plan = plan_options<Projection>(options, p);
  Projection::Problem rounded = p;
  rounded.x = DType::kE4M3;
  if (plan.implementation.empty()) {
    const bool tensor_cores = chosen(rounded, plan) != "cuda";
    const bool streamed = chosen(p, plan) != "cuda";
    return tensor_cores ? (m <= kUnroundedRows ? p : rounded) : (streamed ? p : rounded);
  }
  for (const Candidate& c : explain<Projection>(rounded, plan)) {
    if (c.name == plan.implementation && !c.refusal.empty()) return p;
  }
  return rounded;
}

/// Powers of two up to `largest`; neighbours differ, so that one taken for another shows.
DeviceTensor scales(std::vector<std::int64_t> shape, float largest) {
  HostTensor host(DType::kF32, std::move(shape));
  for (std::int64_t i = 0; i < host.numel(); ++i) host.as<float>()[i] = std::ldexp(largest, -static_cast<int>(i % 3));
  return DeviceTensor::copy_of(DeviceKind::kCuda, std::as_const(host).view());
}

/// Weights [groups, n, k] of a map.
struct Weights {
  DeviceTensor w;
  DeviceTensor scale;         ///< of E4M3 and NVFP4 weights
  DeviceTensor global_scale;  ///< of NVFP4 weights
};

/// A scale of all of NVFP4 weights.
HostTensor global_scale() {
  HostTensor one(DType::kF32, {1});
  one.as<float>()[0] = 0.75F;
  return one;
}

Weights make_weights(const Projection::Problem& p, std::uint64_t seed, Stream stream) {
  const auto placed = [](const HostTensor& host) { return DeviceTensor::copy_of(DeviceKind::kCuda, host.view()); };
  if (p.w == Projection::kNvfp4) {
    return {.w = placed(random_numbers(p.w, {p.groups, p.n, p.k / 2}, seed, 1.0F)),
            .scale = placed(nvfp4_scales(p.groups, p.n, p.k)),
            .global_scale = placed(global_scale())};
  }
  const bool fp8 = p.w == DType::kE4M3;
  Weights out{.w = device_numbers(p.w, {p.groups, p.n, p.k}, seed, fp8 ? 256.0F : 0.5F, stream),
              .scale = {},
              .global_scale = {}};
  const auto blocks = [](std::int64_t n) { return (n + Projection::kWeightBlock - 1) / Projection::kWeightBlock; };
  if (fp8) out.scale = scales({p.groups, blocks(p.n), blocks(p.k)}, 0x1p-9F);
  return out;
}

/// Inputs of a map. E4M3 ones lie group by group, as InverseRopeQuant writes them.
struct Inputs {
  DeviceTensor values;
  DeviceTensor scale;    ///< of E4M3 inputs
  ConstTensorView view;  ///< [m, groups, k]
};

Inputs make_inputs(const Projection::Problem& p, std::uint64_t seed, Stream stream) {
  if (p.x != DType::kE4M3) {
    Inputs out{.values = device_numbers(p.x, {p.m, p.groups, p.k}, seed, 1.0F, stream), .scale = {}, .view = {}};
    out.view = std::as_const(out.values).view();
    return out;
  }
  Inputs out{.values = device_numbers(p.x, {p.groups, p.m, p.k}, seed, 256.0F, stream),
             .scale = scales({p.groups, p.k / Projection::kScaleGroup, (p.m + 3) / 4 * 4}, 0x1p-8F),
             .view = {}};
  out.view = ConstTensorView(std::as_const(out.values).view().data, p.x, {p.m, p.groups, p.k});
  out.view.stride[0] = p.k;
  out.view.stride[1] = p.m * p.k;
  return out;
}

/// What the reference reads, on the host.
struct HostWeights {
  HostTensor w;
  HostTensor scale;
};

/// Two rows of y, the first and the last, by the reference.
Check check_rows(const Projection::Problem& p, const Inputs& x, const DeviceTensor& y, const HostWeights& w,
                 Stream stream) {
  Check out;
  HostTensor x_scales;
  const HostTensor global = global_scale();
  if (p.x == DType::kE4M3) x_scales = to_host(x.scale.view(), stream);
  for (const std::int64_t row : {std::int64_t{0}, p.m - 1}) {
    HostTensor one(p.x, {1, p.groups, p.k});
    for (std::int64_t g = 0; g < p.groups; ++g) {
      const std::int64_t at = (row * x.view.stride[0] + g * x.view.stride[1]) * size_of(p.x);
      const HostTensor of_group =
          to_host(ConstTensorView(static_cast<const std::uint8_t*>(x.view.data) + at, p.x, {p.k}), stream);
      std::memcpy(static_cast<std::uint8_t*>(one.data()) + g * p.k * size_of(p.x), of_group.data(), of_group.bytes());
    }
    const HostTensor got = to_host(y.view().slice(0, row, row + 1), stream);
    HostTensor want(p.y, {1, p.groups, p.n});
    const std::int64_t pieces = (p.n + kPiece - 1) / kPiece;
    std::exception_ptr error;
#pragma omp parallel for schedule(dynamic)
    for (std::int64_t i = 0; i < p.groups * pieces; ++i) {
      try {
        const std::int64_t g = i / pieces;
        const std::int64_t begin = i % pieces * kPiece;
        const std::int64_t end = std::min(p.n, begin + kPiece);
        Projection::Problem problem = p;
        problem.m = problem.groups = 1;
        problem.n = end - begin;
        Projection::Args args{.x = std::as_const(one).view().slice(1, g, g + 1),
                              .w = w.w.view().slice(0, g, g + 1).slice(1, begin, end),
                              .y = want.view().slice(1, g, g + 1).slice(2, begin, end)};
        if (p.x == DType::kE4M3)
          args.x_scale = std::as_const(x_scales).view().slice(0, g, g + 1).slice(2, row, row + 1);
        if (p.w == DType::kE4M3) {
          constexpr std::int64_t kBlock = Projection::kWeightBlock;
          args.w_scale =
              std::as_const(w.scale).view().slice(0, g, g + 1).slice(1, begin / kBlock, (end + kBlock - 1) / kBlock);
        }
        if (p.w == Projection::kNvfp4) {
          args.w_scale = w.scale.view().slice(0, g, g + 1).slice(1, begin, end);
          args.w_global_scale = std::as_const(global).view();
        }
        Plan<Projection>(problem, {.implementation = "ref"}).run(args);
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

std::string_view inputs_and_weights(const Projection::Problem& p) {
  if (p.w == Projection::kNvfp4) return "nvfp4 weights";
  if (p.w != DType::kE4M3) return "bf16 weights";
  return p.x == DType::kE4M3 ? "fp8 weights, fp8 inputs" : "fp8 weights, bf16 inputs";
}

/// One map with every number of rows.
void measure_linear(const Options& options, const Linear& linear, const std::vector<std::int64_t>& rows,
                    const DeviceTimer& timer, const Emit& emit) {
  std::vector<Weights> w;
  for (std::uint64_t s = 0; s < kSets; ++s)
    w.push_back(make_weights(problem_of(options, linear, 1), 11 + s, timer.stream()));
  HostWeights first{.w = to_host(std::as_const(w[0].w).view(), timer.stream()), .scale = {}};
  if (!w[0].scale.absent()) first.scale = to_host(std::as_const(w[0].scale).view(), timer.stream());
  for (const std::int64_t m : rows) {
    const Projection::Problem problem = problem_of(options, linear, m);
    const Plan<Projection> plan(problem, plan_options<Projection>(options, problem));
    const DeviceMemory workspace(DeviceKind::kCuda, plan.workspace_bytes(), false);
    std::vector<Inputs> x;
    for (std::uint64_t s = 0; s < kSets; ++s) x.push_back(make_inputs(problem, 21 + s, timer.stream()));
    DeviceTensor y(DeviceKind::kCuda, linear.y, {m, linear.groups, linear.n});
    std::vector<std::function<void()>> calls;
    for (std::size_t s = 0; s < kSets; ++s) {
      calls.emplace_back([&, s] {
        Projection::Args args{.x = x[s].view, .w = std::as_const(w[s].w).view(), .y = y.view()};
        if (problem.x == DType::kE4M3) args.x_scale = std::as_const(x[s].scale).view();
        if (!w[s].scale.absent()) args.w_scale = std::as_const(w[s].scale).view();
        if (!w[s].global_scale.absent()) args.w_global_scale = std::as_const(w[s].global_scale).view();
        plan.run(args, {.data = workspace.data(), .bytes = workspace.bytes()}, timer.stream());
      });
    }
    const std::vector<GpuRecording> recordings = timer.record(calls);
    Row row;
    row.group = "projection";
    row.name = fmt::format("{} x {}", linear.name, m);
    row.shape =
        fmt::format("rows {}, {} -> {}{}, {}", m, linear.k, linear.n,
                    linear.groups > 1 ? fmt::format(", {} groups", linear.groups) : "", inputs_and_weights(problem));
    row.implementation = plan.implementation();
    row.time = timer.time(options.measure, recordings);
    row.flops = 2.0 * static_cast<double>(linear.groups * linear.n * linear.k) * static_cast<double>(m);
    row.bytes = static_cast<double>(w[0].w.bytes() + x[0].values.bytes() + y.bytes());
    if (!w[0].scale.absent()) row.bytes += static_cast<double>(w[0].scale.bytes());
    if (problem.x == DType::kE4M3) row.bytes += static_cast<double>(x[0].scale.bytes());
    row.bf16 = true;
    row.product_rate = problem.x == DType::kE4M3 ? 2 : 1;
    fill_bytes(DeviceKind::kCuda, y.data(), 0xFF, y.bytes(), timer.stream());
    timer.replay(recordings[0]);
    if (const std::int64_t bad = gpu_count_nan(std::as_const(y).view(), timer.stream()); bad > 0) {
      row.check = {.done = true, .l2 = 0, .failure = fmt::format("{} outputs are NaN or were not written", bad)};
    }
    row.check = worse(row.check, check_rows(problem, x[0], y, first, timer.stream()));
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
