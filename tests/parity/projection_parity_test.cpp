#include <gtest/gtest.h>

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

void expect_agreement(const std::vector<ProjectionCase>& cases) {
  std::map<std::string, std::map<std::string, int>> refused;
  std::map<std::string, int> compared;
  for (const ProjectionCase& c : cases) {
    const ProjectionTensors tensors(c);
    ProjectionBuffer truth = tensors.poisoned_y();
    const int threads =
        c.seed % 8 == 0 ? 2 : 1;  // seldom two: a busy machine makes teams of threads wait for each other
    run_one(tensors, "ref", threads, truth);
    check_written(tensors, truth);
    ASSERT_FALSE(::testing::Test::HasFatalFailure()) << "ref: " << describe(c);
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
      ASSERT_FALSE(::testing::Test::HasFatalFailure());
      ++compared[candidate.name];
    }
  }
  for (const auto& [name, count] : compared) std::cout << "[ compared ] " << name << ": " << count << " cases\n";
  for (const auto& [name, reasons] : refused) {
    for (const auto& [reason, count] : reasons)
      std::cout << "[  refused ] " << name << ": " << count << " cases: " << reason << "\n";
  }
  EXPECT_EQ(compared["cpu"], static_cast<int>(cases.size()));
}

TEST(ProjectionParity, EveryImplementationAgreesWithRef) { expect_agreement(projection_cases()); }

TEST(ProjectionParity, EveryImplementationAgreesWithRefOnFp8Weights) { expect_agreement(fp8_weight_cases()); }

TEST(ProjectionParity, EveryImplementationAgreesWithRefOnNvfp4Weights) { expect_agreement(nvfp4_weight_cases()); }

TEST(ProjectionParity, OutputsAreQuantisedAsQuantizeRowsDoes) {
  std::map<std::string, int> compared;
  for (const ProjectionCase& c : quantising_cases()) {
    for (const Candidate& candidate : explain<Projection>(c.problem, options("", 2))) {
      if (!candidate.refusal.empty()) continue;
      SCOPED_TRACE(candidate.name + ": " + describe(c));
      const auto run = [&](const auto& problem, const auto& args) {
        const Plan<Projection> plan(problem, options(candidate.name, 2));
        HostTensor memory(DType::kU8, {static_cast<std::int64_t>(plan.workspace_bytes())});
        plan.run(args, {.data = memory.data(), .bytes = plan.workspace_bytes()});
      };
      check_quantised(c, run, [](const auto& problem, const auto& args) {
        Plan<QuantizeRows>(problem, {.implementation = "ref"}).run(args);
      });
      if (HasFatalFailure()) return;
      ++compared[candidate.name];
    }
  }
  EXPECT_EQ(compared["ref"], static_cast<int>(quantising_cases().size()));
  EXPECT_GE(compared.size(), 2U);
}

}  // namespace
}  // namespace smla::test
