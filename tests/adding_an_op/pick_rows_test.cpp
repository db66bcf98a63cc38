// 8. The tests that a new op gets: every implementation against `ref` over the cases, its case form, what validate
// says, and the reference by hand. Of a real op: tests/unit, tests/parity.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "cases/op_case.h"
#include "pick_rows_cases.h"
#include "pick_rows_ops.h"
#include "sparsemla/error.h"
#include "sparsemla/ops/validate.h"

namespace smla {
namespace {

using pick_rows_cases::PickInputs;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(PickRows, ByHand) {
  const std::vector<float> x{1, 2, 3, 4};
  const std::vector<std::int32_t> index{1, 5, 0};
  std::vector<float> y(6, -1.0F);
  const PickRows::Problem problem{.rows = 3, .sources = 2, .dim = 2, .dtype = DType::kF32, .scale = 0.5F};
  Plan<PickRows>(problem, {.implementation = "ref"})
      .run({.x = view_of(x.data(), {2, 2}), .index = view_of(index.data(), {3}), .y = view_of(y.data(), {3, 2})});
  EXPECT_THAT(y, testing::ElementsAre(1.5F, 2.0F, 0.0F, 0.0F, 0.5F, 1.0F));
}

TEST(PickRows, EveryImplementationGivesTheBitsOfTheReference) {
  for (const auto& c : pick_rows_cases::all_cases()) {
    PickInputs want(c);
    Plan<PickRows>(c.problem(), {.implementation = "ref"}).run(want.args);
    for (const Candidate& candidate : explain<PickRows>(c.problem())) {
      if (!candidate.refusal.empty()) continue;
      PickInputs got(c);
      Plan<PickRows>(c.problem(), {.implementation = candidate.name}).run(got.args);
      EXPECT_EQ(std::memcmp(want.y.data(), got.y.data(), want.y.bytes()), 0) << candidate.name << ", dim " << c.dim;
    }
  }
}

TEST(PickRows, ACaseFileOfItReplays) {
  CaseFile file;
  file.path = "pick.smla-case";
  file.op = PickRows::kName;
  file.params = parse_json("pick_rows", R"({"rows": 2, "sources": 1, "dim": 2, "dtype": "F32", "scale": 3})");
  HostTensor x(DType::kF32, {1, 2});
  x.as<float>()[0] = 1, x.as<float>()[1] = -2;
  HostTensor index(DType::kI32, {2});
  index.as<std::int32_t>()[0] = 0, index.as<std::int32_t>()[1] = -1;
  file.tensors.emplace("in.x", std::move(x));
  file.tensors.emplace("in.index", std::move(index));
  file.tensors.emplace("out.y", HostTensor(DType::kF32, {2, 2}));
  const ReplayResult result = op_case::replay_op<PickRows>(file, {});
  EXPECT_EQ(result.implementation, "cpu");
  const auto* y = result.results.at("y").as<float>();
  EXPECT_THAT(std::vector<float>(y, y + 4), testing::ElementsAre(3.0F, -6.0F, 0.0F, 0.0F));
}

TEST(PickRows, ErrorsNameTheMember) {
  const auto c = pick_rows_cases::all_cases()[4];
  PickInputs in(c);
  EXPECT_THAT([&] { validate<PickRows>(c.problem(), in.args); },
              ThrowsMessage<InvalidArgument>(HasSubstr("pick_rows: index row 1: got 5, expected -1 or 0..4")));
  in.args.y = in.y.view().slice(1, 0, 3);
  EXPECT_THAT([&] { Plan<PickRows>(c.problem()).run(in.args); },
              ThrowsMessage<InvalidArgument>(HasSubstr("pick_rows: y: got")));
  EXPECT_THAT([] { Plan<PickRows>({.dtype = DType::kU8}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("pick_rows: dtype: got")));
}

}  // namespace
}  // namespace smla
