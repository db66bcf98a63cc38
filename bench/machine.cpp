#include "bench/machine.h"

#include <omp.h>

#include <algorithm>
#include <fstream>

#include "bench/peak.h"
#include "device/large_pages.h"
#include "ops/decision.h"
#include "sparsemla/device.h"

namespace smla::bench {

namespace {

constexpr int kTurns = 5;                                     // short runs of each ceiling, all ceilings in turn
constexpr std::int64_t kReadBytes = std::int64_t{256} << 20;  // past every cache
constexpr std::int64_t kFloats = kReadBytes / static_cast<std::int64_t>(sizeof(float));
constexpr std::int64_t kTurnFloats = kFloats / 8;

}  // namespace

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string name;
  std::string family;
  std::string model;
  for (std::string line; std::getline(file, line) && !line.empty();) {  // up to the end of the first processor
    const std::size_t colon = line.find(": ");
    if (colon == std::string::npos) continue;
    const std::string value = line.substr(colon + 2);
    if (line.starts_with("model name")) name = value;
    if (line.starts_with("cpu family")) family = value;
    if (line.starts_with("model\t")) model = value;
  }
  if (name.empty()) name = cpu_features().model;
  return family.empty() || model.empty() ? name : name + " (family " + family + ", model " + model + ")";
}

namespace {

/// Operations a second of all threads; about `seconds` long.
double run_arithmetic(const PeakKernels& kernels, int threads, double seconds, Clock clock) {
  const auto now = [&](int share) { return seconds_now(clock, share); };
  double flops = 0;
  float probe[3] = {0.5F, 0.25F, 0};
  std::int64_t rounds = 1000;
  double spent = 0;
  while (true) {
    const double start = now(1);
    kernels.arithmetic(rounds, probe);
    spent = now(1) - start;
    if (spent > 2e-4) break;
    rounds *= 4;
  }
  rounds = std::max<std::int64_t>(1, static_cast<std::int64_t>(static_cast<double>(rounds) * seconds / spent));
  const double start = now(threads);
#pragma omp parallel num_threads(threads) reduction(+ : flops)
  {
    float x[3] = {0.5F, 0.25F, 0};
    flops += kernels.arithmetic(rounds, x);
  }
  return flops / (now(threads) - start);
}

std::vector<PeakKernels> kernels_of_this_cpu() {
  const CpuFeatures& cpu = cpu_features();
  std::vector<PeakKernels> out{peak_generic()};
  if (cpu.avx2) out.push_back(peak_avx2());
  if (cpu.avx512) out.push_back(peak_avx512());
  if (cpu.avx512_bf16) out.push_back(peak_bf16_avx512());
  std::erase_if(out, [](const PeakKernels& k) { return k.arithmetic == nullptr; });
  return out;
}

}  // namespace

double Machine::peak(const std::string& name) const {
  const auto found = std::ranges::find(peaks, name, &Peak::name);
  return found == peaks.end() ? 0 : found->flops;
}

double Machine::bandwidth(const std::string& name) const {
  const auto found = std::ranges::find(bandwidths, name, &Peak::name);
  return found == bandwidths.end() ? 0 : found->flops;
}
double Machine::gather() const { return std::max(bandwidth("gather_2"), bandwidth("gather_64")); }

double Machine::fp32_peak() const { return std::max({peak("generic"), peak("avx2"), peak("avx512")}); }
double Machine::bf16_peak() const { return std::max(fp32_peak(), peak("avx512_bf16")); }

namespace {

ReadKernel widest_read() {
  ReadKernel out = nullptr;
  for (const PeakKernels& k : kernels_of_this_cpu()) out = k.read != nullptr ? k.read : out;
  return out;
}

}  // namespace

MemoryReader::MemoryReader(int threads)
    : threads_(resolve_threads(threads)), read_(widest_read()), memory_(new float[static_cast<std::size_t>(kFloats)]) {
  // Every thread touches the part that it will read.
#pragma omp parallel for num_threads(threads_) schedule(static)
  for (std::int64_t i = 0; i < kFloats; ++i) memory_[static_cast<std::size_t>(i)] = 0;
  prefer_large_pages(memory_.get(), static_cast<std::size_t>(kReadBytes));
}

double MemoryReader::read_part(std::int64_t begin, std::int64_t floats, Clock clock) const {
  float sum = 0;
  const std::int64_t part = floats / threads_ / 64 * 64;
  const double start = seconds_now(clock, threads_);
#pragma omp parallel num_threads(threads_) reduction(+ : sum)
  sum += read_(memory_.get() + begin + part * omp_get_thread_num(), part);
  const double seconds = seconds_now(clock, threads_) - start;
  const auto bytes = static_cast<double>(part * threads_) * sizeof(float);
  return sum == 0 ? bytes / seconds : -1;  // the memory is zeros: the comparison keeps the reads
}

double MemoryReader::read(Clock clock) {
  at_ = (at_ + kTurnFloats) % kFloats;
  return read_part(at_, kTurnFloats, clock);
}

double MemoryReader::read_all(Clock clock) { return read_part(0, kFloats, clock); }

Machine measure_machine(int threads, double seconds, Clock clock) {
  Machine out;
  out.cpu = cpu_name();
  out.cores = cpu_features().cores;
  out.threads = resolve_threads(threads);
  const std::vector<PeakKernels> kernels = kernels_of_this_cpu();
  for (const PeakKernels& k : kernels) out.peaks.push_back({.name = k.name, .flops = 0});
  MemoryReader reader(out.threads);
  const double each = seconds / kTurns / static_cast<double>(kernels.size() + 1);
  for (int turn = 0; turn < kTurns; ++turn) {
    for (std::size_t i = 0; i < kernels.size(); ++i) {
      out.peaks[i].flops = std::max(out.peaks[i].flops, run_arithmetic(kernels[i], out.threads, each, clock));
    }
    out.read_bandwidth = std::max(out.read_bandwidth, reader.read_all(clock));
  }
  return out;
}

}  // namespace smla::bench
