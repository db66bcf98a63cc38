#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "parity/projection_cases.h"

namespace smla::test {
namespace {

PlanOptions steady(const std::string& implementation, int threads) {
  PlanOptions out;
  out.implementation = implementation;
  out.deterministic = true;
  out.threads = threads;
  return out;
}

/// The implementations that promise a row the same bits whatever else is computed.
std::vector<std::string> steady_implementations(const Projection::Problem& problem) {
  std::vector<std::string> names;
  for (const Candidate& c : explain<Projection>(problem, steady("", 1))) {
    if (c.refusal.empty()) names.push_back(c.name);
  }
  return names;
}

void run(const Projection::Problem& problem, const Projection::Args& args, const std::string& implementation,
         int threads) {
  const Plan<Projection> plan(problem, steady(implementation, threads));
  std::vector<float> memory(plan.workspace_bytes() / sizeof(float) + 16);
  auto* start = reinterpret_cast<unsigned char*>(memory.data());
  start += (64 - reinterpret_cast<std::uintptr_t>(start) % 64) % 64;
  plan.run(args, {.data = start, .bytes = plan.workspace_bytes()});
}

ProjectionCase arbitrary_case() {
  using rc::gen::inRange;
  ProjectionCase c;
  Projection::Problem& p = c.problem;
  // Few rows, about a register block of them, about a tile of them.
  p.m = *rc::gen::oneOf(inRange<std::int64_t>(1, 8), inRange<std::int64_t>(8, 40), inRange<std::int64_t>(186, 200));
  p.n = *inRange<std::int64_t>(1, p.m > 100 ? 20 : 140);
  p.k = *rc::gen::oneOf(inRange<std::int64_t>(0, 40), inRange<std::int64_t>(1000, p.m > 100 ? 1100 : 2100));
  p.groups = *inRange<std::int64_t>(1, 4);
  p.x = *rc::gen::element(DType::kBF16, DType::kF32, DType::kE4M3);
  if (p.x == DType::kE4M3) {
    p.k = p.k / Projection::kScaleGroup * Projection::kScaleGroup;
    p.x_scale = *rc::gen::element(OutputScale::kF32, OutputScale::kUe8m0x4);
    c.scale_gap = *inRange<std::int64_t>(0, 4);
  }
  p.w = *rc::gen::element(DType::kBF16, DType::kF32, DType::kE4M3);
  if (p.w == DType::kE4M3) c.w_scale_gap = *inRange<std::int64_t>(0, 3);
  p.y = *rc::gen::element(DType::kBF16, DType::kF32);
  c.x_gap = *inRange<std::int64_t>(0, 9);
  c.y_gap = *inRange<std::int64_t>(0, 9);
  c.y_group_major = *rc::gen::arbitrary<bool>();
  c.seed = *rc::gen::arbitrary<std::uint32_t>();
  return c;
}

void expect_equal(const ProjectionBuffer& got, const ProjectionBuffer& want, const std::string& what) {
  RC_LOG() << what << "\n";
  RC_ASSERT(got.same_bits(want));
}

/// The rows [begin, end) computed on their own, into `y`.
void run_part(const ProjectionTensors& t, ProjectionBuffer& y, const std::string& implementation, int threads,
              std::int64_t begin, std::int64_t end) {
  Projection::Problem p = t.problem;
  p.m = end - begin;
  Projection::Args a = t.args(y);
  a.x = a.x.slice(0, begin, end);
  if (p.x == DType::kE4M3) a.x_scale = a.x_scale.slice(2, begin, end);
  a.y = a.y.slice(0, begin, end);
  run(p, a, implementation, threads);
}

TEST(ProjectionProperty, RowsDoNotDependOnTheSplitOfTheBatchNorOnThreads) {
  EXPECT_TRUE(rc::check([] {
    const ProjectionCase c = arbitrary_case();
    const ProjectionTensors t(c);
    RC_LOG() << describe(c) << "\n";
    const auto cut = *rc::gen::inRange<std::int64_t>(0, c.problem.m + 1);
    const auto row = *rc::gen::inRange<std::int64_t>(0, c.problem.m);
    for (const std::string& name : steady_implementations(c.problem)) {
      ProjectionBuffer whole = t.poisoned_y();
      run_part(t, whole, name, 1, 0, c.problem.m);
      ProjectionBuffer threads = t.poisoned_y();
      run_part(t, threads, name, 3, 0, c.problem.m);
      expect_equal(threads, whole, name + ", three threads");
      ProjectionBuffer halves = t.poisoned_y();
      run_part(t, halves, name, 2, 0, cut);
      run_part(t, halves, name, 1, cut, c.problem.m);
      expect_equal(halves, whole, name + ", cut at " + std::to_string(cut));
      run_part(t, halves, name, 1, row, row + 1);
      expect_equal(halves, whole, name + ", row " + std::to_string(row) + " alone");
    }
  }));
}

TEST(ProjectionProperty, RowsDoNotDependOnTheirNeighbours) {
  EXPECT_TRUE(rc::check([] {
    const ProjectionCase c = arbitrary_case();
    RC_LOG() << describe(c) << "\n";
    const ProjectionTensors t(c);
    const auto row = *rc::gen::inRange<std::int64_t>(0, c.problem.m);
    ProjectionTensors loud(c);  // every other row infinite
    for (std::int64_t i = 0; i < c.problem.m; ++i) {
      for (std::int64_t j = 0; i != row && j < c.problem.groups * c.problem.k; ++j)
        loud.x.set(i * loud.x_row + j, c.problem.x == DType::kE4M3 ? NAN : HUGE_VALF);
    }
    for (const std::string& name : steady_implementations(c.problem)) {
      ProjectionBuffer quiet = t.poisoned_y();
      run_part(t, quiet, name, 2, 0, c.problem.m);
      ProjectionBuffer beside = t.poisoned_y();
      run_part(loud, beside, name, 2, 0, c.problem.m);
      for (std::int64_t g = 0; g < c.problem.groups; ++g) {
        for (std::int64_t j = 0; j < c.problem.n; ++j) RC_ASSERT(quiet.same_bits(beside, t.y_at(row, g, j)));
      }
    }
  }));
}

TEST(ProjectionProperty, GroupsAndOutputsStandAlone) {
  EXPECT_TRUE(rc::check([] {
    const ProjectionCase c = arbitrary_case();
    RC_LOG() << describe(c) << "\n";
    const ProjectionTensors t(c);
    const auto group = *rc::gen::inRange<std::int64_t>(0, c.problem.groups);
    constexpr std::int64_t kBlock = Projection::kWeightBlock;
    auto first = *rc::gen::inRange<std::int64_t>(0, c.problem.n);
    if (c.problem.w == DType::kE4M3) first = first / kBlock * kBlock;
    const auto last = *rc::gen::inRange<std::int64_t>(first + 1, c.problem.n + 1);
    Projection::Problem part = c.problem;
    part.groups = 1;
    part.n = last - first;
    for (const std::string& name : steady_implementations(c.problem)) {
      ProjectionBuffer whole = t.poisoned_y();
      run_part(t, whole, name, 1, 0, c.problem.m);
      const ProjectionBuffer before = whole;
      Projection::Args a = t.args(whole);
      a.x = a.x.slice(1, group, group + 1);
      if (part.x == DType::kE4M3) a.x_scale = a.x_scale.slice(0, group, group + 1);
      a.y = a.y.slice(1, group, group + 1).slice(2, first, last);
      a.w = a.w.slice(0, group, group + 1).slice(1, first, last);
      a.w.stride = ConstTensorView(a.w.data, a.w.dtype, {1, part.n, part.k}).stride;
      if (part.w == DType::kE4M3)
        a.w_scale = a.w_scale.slice(0, group, group + 1).slice(1, first / kBlock, (last + kBlock - 1) / kBlock);
      run(part, a, name, 1);
      expect_equal(whole, before,
                   name + ", group " + std::to_string(group) + ", outputs " + std::to_string(first) + " to " +
                       std::to_string(last));
    }
  }));
}

}  // namespace
}  // namespace smla::test
