#pragma once

#include <gtest/gtest.h>

#include <string>

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

/// Tests that need a GPU say why they did not run.
class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    if (gpus(&reason).empty()) GTEST_SKIP() << "no GPU: " << reason;
  }
};

}  // namespace smla::test
