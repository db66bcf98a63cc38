#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "bench/measure.h"

namespace smla::bench {

/// The measured peak of one instruction set on all threads together, or a bandwidth.
struct Peak {
  std::string
      name;  ///< "generic", "avx2", "avx512": fp32 multiply-adds; "avx512_bf16": bf16 dot products with fp32 sums
  double flops = 0;  ///< floating-point operations a second; of a bandwidth bytes a second
};

/// The ceilings that rows are compared with, measured on this machine in this run with the threads of this run.
struct Machine {
  std::string cpu;
  int cores = 0;
  int threads = 0;
  std::vector<Peak> peaks;    ///< instruction sets that the CPU has and SMLA_CPU allows
  double read_bandwidth = 0;  ///< bytes a second out of memory, in order

  // A run on a GPU: its own ceilings; then `peaks` are "product" (bf16 8192^3) and "mma" (mma.sync from registers), and
  // read_bandwidth is 0.
  std::string gpu;               ///< its name; empty: a run on the CPU
  std::string driver;            ///< the driver's version
  std::string cuda;              ///< of the runtime in the program, and the newest that the driver knows
  std::string product;           ///< implementation of the matrix product
  std::vector<Peak> bandwidths;  ///< bytes a second: "copy" (read + written), "gather_2", "gather_64" (rows at random,
                                 ///< blocks of 2 and 64)
  double timer = 0;              ///< seconds over which measurements of nothing spread, p10 to p90
  double launch = 0;             ///< seconds of a kernel that does nothing
  double follow = 0;  ///< seconds of a kernel that reads three numbers, each at the index that the one before holds

  /// The highest fp32 peak.
  double fp32_peak() const;
  /// The highest peak that bf16 products can use: that of dot products, where there are none the fp32 one.
  double bf16_peak() const;
  /// The peak of that name, 0 when there is none.
  double peak(const std::string& name) const;
  /// The bandwidth of that name, 0 when there is none.
  double bandwidth(const std::string& name) const;
  /// Reading whole rows at random, the faster of both kinds of blocks.
  double gather() const;
};

/// /proc/cpuinfo's "model name", which a virtual machine may set, else the processor's own text; behind it its family
/// and model where /proc/cpuinfo has them: they tell the generation.
std::string cpu_name();

/// Reads memory in order on all threads, with the widest registers of this CPU; past every cache, from large pages as
/// weights are.
class MemoryReader {
 public:
  explicit MemoryReader(int threads);

  /// Reads the next 32 MiB, about a millisecond. @returns bytes a second
  double read(Clock clock);
  /// The same for all of the memory, 256 MiB.
  double read_all(Clock clock);

 private:
  double read_part(std::int64_t begin, std::int64_t floats, Clock clock) const;

  int threads_;
  float (*read_)(const float* p, std::int64_t n);
  std::int64_t at_ = 0;
  std::unique_ptr<float[]> memory_;
};

/// Measures the ceilings in about `seconds`. Each is the best of several short runs, so that other work on the machine
/// disturbs it least.
Machine measure_machine(int threads, double seconds, Clock clock = Clock::kWall);

}  // namespace smla::bench
