#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "ops/staging.h"

namespace smla::test {

/// Runs the GPU's implementation over host memory: copies there, workspace of 0xFF, copies back.
template <class Op>
void run_on_gpu(const typename Op::Problem& problem, typename Op::Args args, const std::string& implementation = "",
                bool deterministic = false) {
  const Plan<Op> plan(problem,
                      {.device = DeviceKind::kCuda, .implementation = implementation, .deterministic = deterministic});
  run_staged(plan, args, DeviceKind::kCuda);
}

/// Names of the GPU's implementations that take a problem, best first: tests go through them, so that a new kernel is
/// in every test of its op. SMLA_TEST_IMPLEMENTATION in the environment names the only one wanted of those problems
/// that it takes.
template <class Op>
std::vector<std::string> gpu_implementations(const typename Op::Problem& problem, bool deterministic = false) {
  static const char* const only = std::getenv("SMLA_TEST_IMPLEMENTATION");
  std::vector<std::string> names;
  // Each is asked by its name: one that is not chosen by itself is tested like the others.
  PlanOptions options{.device = DeviceKind::kCuda, .deterministic = deterministic};
  for (const Candidate& any : explain<Op>(problem, options)) {
    options.implementation = any.name;
    for (const Candidate& c : explain<Op>(problem, options)) {
      if (c.name != any.name || !c.refusal.empty()) continue;
      if (only != nullptr && c.name == only) return {c.name};
      names.push_back(c.name);
    }
  }
  return names;
}

/// Whether this GPU has the kernel for Hopper that streams weights past many rows, and room for it.
inline bool has_sm90_stream() {
  const PlanOptions named{.device = DeviceKind::kCuda,
                          .implementation = std::string(JointProjection::kOneLaunchOnHopper)};
  const auto all = explain<JointProjection>({.m = 1, .k = 16, .part = {{{.n = 1}}}}, named);
  return std::any_of(all.begin(), all.end(),
                     [&](const Candidate& c) { return c.name == named.implementation && c.refusal.empty(); });
}

/// Tests that need a GPU say why they did not run.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    if (gpus(&reason).empty()) GTEST_SKIP() << "no GPU: " << reason;
  }
};

}  // namespace smla::test
