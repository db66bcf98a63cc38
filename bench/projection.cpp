// Times one projection: projection IMPLEMENTATION THREADS M N K GROUPS X W Y (dtypes bf16 or f32), see docs/kernels/projection.md.
// Up to 64 rows the weights change from run to run (at least 256 MiB of them, or 16 sets), so that they come from memory as in a decode step.

#include "sparsemla/ops/projection.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace {

using namespace smla;

std::vector<unsigned char> numbers(DType dtype, std::int64_t count) {
  std::vector<unsigned char> bytes(static_cast<std::size_t>(count * size_of(dtype)));
  std::uint32_t state = 1;
  for (std::int64_t i = 0; i < count; ++i) {
    state = state * 1664525U + 1013904223U;
    const float value = static_cast<float>(state >> 8) * 0x1p-24F - 0.5F;
    if (dtype == DType::kBF16) {
      reinterpret_cast<BF16*>(bytes.data())[i] = to_bf16(value);
    } else {
      reinterpret_cast<float*>(bytes.data())[i] = value;
    }
  }
  return bytes;
}

DType type_of(const std::string& name) { return dtype_from_name(name == "bf16" ? "BF16" : "F32"); }

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void bench(char** argv) {
  PlanOptions options;
  options.implementation = argv[1];
  options.threads = std::atoi(argv[2]);
  Projection::Problem p;
  p.m = std::atoll(argv[3]);
  p.n = std::atoll(argv[4]);
  p.k = std::atoll(argv[5]);
  p.groups = std::atoll(argv[6]);
  p.x = type_of(argv[7]);
  p.w = type_of(argv[8]);
  p.y = type_of(argv[9]);
  const Plan<Projection> plan(p, options);

  const std::int64_t weights = p.groups * p.n * p.k;
  const std::int64_t sets = p.m > 64 ? 1 : std::clamp<std::int64_t>((256 << 20) / (weights * size_of(p.w)), 1, 16);
  std::vector<std::vector<unsigned char>> w;
  for (std::int64_t i = 0; i < sets; ++i) w.push_back(numbers(p.w, weights));
  const std::vector<unsigned char> x = numbers(p.x, p.m * p.groups * p.k);
  std::vector<unsigned char> y = numbers(p.y, p.m * p.groups * p.n);
  std::vector<unsigned char> memory(plan.workspace_bytes() + 64);
  const Workspace workspace{memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64, plan.workspace_bytes()};

  std::vector<double> times;
  double spent = 0.0;
  for (std::size_t i = 0; i < 6 || spent < 1.0; ++i) {
    const Projection::Args args{ConstTensorView(x.data(), p.x, {p.m, p.groups, p.k}),
                                ConstTensorView(w[i % w.size()].data(), p.w, {p.groups, p.n, p.k}), TensorView(y.data(), p.y, {p.m, p.groups, p.n})};
    const auto start = std::chrono::steady_clock::now();
    plan.run(args, workspace);
    const double t = seconds_since(start);
    if (i > 0) times.push_back(t);
    spent += t;
  }
  std::sort(times.begin(), times.end());
  const double median = times[times.size() / 2];
  const double flop = 2.0 * static_cast<double>(weights) * static_cast<double>(p.m);
  const double bytes = static_cast<double>(weights * size_of(p.w));
  std::printf(
      "%-7s threads %d  m %-5lld n %-5lld k %-5lld groups %lld %s x %s -> %s: median %.3f ms best %.3f ms, %.1f (best %.1f) GFLOP/s, weights %.1f "
      "(best %.1f) GB/s\n",
      argv[1], options.threads, static_cast<long long>(p.m), static_cast<long long>(p.n), static_cast<long long>(p.k),
      static_cast<long long>(p.groups), argv[7], argv[8], argv[9], median * 1e3, times[0] * 1e3, flop / median * 1e-9, flop / times[0] * 1e-9,
      bytes / median * 1e-9, bytes / times[0] * 1e-9);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 10) {
    std::fprintf(stderr, "usage: %s IMPLEMENTATION THREADS M N K GROUPS X W Y (bf16 or f32)\n", argv[0]);
    return 2;
  }
  try {
    bench(argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
