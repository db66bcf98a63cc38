#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "parity/projection_cases.h"

namespace smla::test {
namespace {

constexpr std::size_t kGuard = 256;

PlanOptions options(const std::string& implementation, int threads) {
  PlanOptions out;
  out.implementation = implementation;
  out.threads = threads;
  return out;
}

/// Runs one implementation in a workspace of exactly the promised size, with guard bytes behind it.
void run_one(const ProjectionTensors& tensors, const std::string& implementation, int threads, ProjectionBuffer& y) {
  const Plan<Projection> plan(tensors.problem, options(implementation, threads));
  ASSERT_EQ(plan.implementation(), implementation);
  const std::size_t bytes = plan.workspace_bytes();
  std::vector<unsigned char> memory(bytes + kGuard + 64, 0xFF);
  const std::size_t shift = (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64;
  plan.run(tensors.args(y), {.data = memory.data() + shift, .bytes = bytes});
  for (std::size_t i = 0; i < kGuard; ++i) ASSERT_EQ(memory[shift + bytes + i], 0xFF) << "wrote behind the workspace";
}

/// Everything of y written and nothing else.
void check_written(const ProjectionTensors& t, const ProjectionBuffer& y) {
  std::vector<bool> inside(static_cast<std::size_t>(y.elements()), false);
  for (std::int64_t i = 0; i < t.problem.m; ++i) {
    for (std::int64_t g = 0; g < t.problem.groups; ++g) {
      for (std::int64_t j = 0; j < t.problem.n; ++j) inside[static_cast<std::size_t>(t.y_at(i, g, j))] = true;
    }
  }
  for (std::int64_t i = 0; i < y.elements(); ++i) ASSERT_EQ(y.poisoned(i), !inside[static_cast<std::size_t>(i)]) << "element " << i;
}

float bf16_ulp(float value) { return std::ldexp(1.0F, (value == 0.0F ? -126 : std::max(std::ilogb(value), -126)) - 7); }

/// fp32 results: l2 1e-5 of the whole. bf16 results: each within 1 ulp or 1e-5 of its row's largest. Native bf16 products rounded to bf16: l2 4e-3 as
/// well.
void check_close(const ProjectionTensors& t, const ProjectionBuffer& y, const ProjectionBuffer& truth, const std::string& implementation) {
  double difference = 0.0;
  double size = 0.0;
  for (std::int64_t i = 0; i < t.problem.m; ++i) {
    for (std::int64_t g = 0; g < t.problem.groups; ++g) {
      float largest = 0.0F;
      for (std::int64_t j = 0; j < t.problem.n; ++j) largest = std::max(largest, std::fabs(truth.get(t.y_at(i, g, j))));
      for (std::int64_t j = 0; j < t.problem.n; ++j) {
        const float want = truth.get(t.y_at(i, g, j));
        const float got = y.get(t.y_at(i, g, j));
        const float off = std::fabs(got - want);
        difference += static_cast<double>(off) * static_cast<double>(off);
        size += static_cast<double>(want) * static_cast<double>(want);
        if (t.problem.y == DType::kBF16) {
          ASSERT_LE(off, std::max(bf16_ulp(want), 1e-5F * largest))
              << "row " << i << " group " << g << " output " << j << ": " << got << " for " << want;
        }
      }
    }
  }
  const double bound = t.problem.y == DType::kF32 ? 1e-5 : 4e-3;
  ASSERT_LE(std::sqrt(difference), bound * std::sqrt(size)) << implementation;
}

TEST(ProjectionParity, EveryImplementationAgreesWithRef) {
  std::map<std::string, std::map<std::string, int>> refused;
  std::map<std::string, int> compared;
  for (const ProjectionCase& c : projection_cases()) {
    const ProjectionTensors tensors(c);
    ProjectionBuffer truth = tensors.poisoned_y();
    const int threads = c.seed % 8 == 0 ? 2 : 1;  // seldom two: a busy machine makes teams of threads wait for each other
    run_one(tensors, "ref", threads, truth);
    check_written(tensors, truth);
    ASSERT_FALSE(HasFatalFailure()) << "ref: " << describe(c);
    for (const Candidate& candidate : explain<Projection>(tensors.problem, options("", threads))) {
      if (candidate.name == "ref") continue;
      if (!candidate.refusal.empty()) {
        const std::string reason = candidate.refusal.substr(0, candidate.refusal.find("got m"));
        ++refused[candidate.name][reason.empty() ? "too few rows" : reason];
        continue;
      }
      SCOPED_TRACE(candidate.name + ": " + describe(c));
      ProjectionBuffer y = tensors.poisoned_y();
      run_one(tensors, candidate.name, threads, y);
      check_written(tensors, y);
      check_close(tensors, y, truth, candidate.name);
      ASSERT_FALSE(HasFatalFailure());
      ++compared[candidate.name];
    }
  }
  for (const auto& [name, count] : compared) std::cout << "[ compared ] " << name << ": " << count << " cases\n";
  for (const auto& [name, reasons] : refused) {
    for (const auto& [reason, count] : reasons) std::cout << "[  refused ] " << name << ": " << count << " cases: " << reason << "\n";
  }
  EXPECT_GT(compared["cpu"], 0);
}

}  // namespace
}  // namespace smla::test
