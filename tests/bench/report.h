#pragma once

#include "bench_report.h"

namespace smla::test {

/// A run on a made-up GPU whose ceilings are those of the peers' run, times `speed`.
inline BenchReport gpu_report(double speed = 1) {
  BenchReport report;
  report.command = "smla bench";
  report.model = "v4-flash";
  report.clock = "wall";
  bench::Machine& m = report.before;
  m.cpu = "cpu";
  m.cores = m.threads = 1;
  m.gpu = "a GPU";
  m.driver = "1.2";
  m.cuda = "13.0";
  m.product = "cublaslt";
  m.peaks = {{.name = "product", .flops = 799e12 * speed}, {.name = "mma", .flops = 600e12 * speed}};
  m.bandwidths = {{.name = "copy", .flops = 4271e9 * speed},
                  {.name = "gather_2", .flops = 3350e9 * speed},
                  {.name = "gather_64", .flops = 3580e9 * speed}};
  m.timer = 1e-6;
  m.launch = 3e-6;
  m.follow = 4e-6;
  report.after = m;
  return report;
}

/// A decode cell of `us` microseconds.
inline bench::Row gpu_row(const std::string& cell, double us) {
  bench::Row row;
  row.group = "attention";
  row.name = cell;
  row.shape = "tokens 1, \"heads\" 64";
  row.implementation = "cuda";
  row.time = {.runs = 9, .median = us * 1e-6, .p10 = us * 0.9e-6, .p90 = us * 1.2e-6, .best = us * 0.8e-6};
  row.flops = 1e9;
  row.bytes = 35.8e6;
  row.bf16 = true;
  row.cell = cell;
  row.traffic = bench::Traffic::kGather;
  row.check = {.done = true, .l2 = 1.5e-3, .failure = ""};
  return row;
}

}  // namespace smla::test
