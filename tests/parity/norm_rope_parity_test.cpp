#include <gtest/gtest.h>

#include "aligned_workspace.h"
#include "parity/accepted.h"
#include "parity/norm_rope_compare.h"

namespace smla {
namespace {

using test::accepted;

using namespace norm_rope_cases;

TEST(NormRopeParity, RmsNorm) {
  for (const RmsNormCase& c : rms_norm_cases()) {
    const RmsNormInputs want = make_inputs(c);
    Plan<RmsNorm>(c.problem, {.implementation = "ref"}).run(want.args);
    for (const std::string& name : accepted<RmsNorm>(c.problem)) {
      SCOPED_TRACE(testing::Message() << c << " on " << name);
      const RmsNormInputs got = make_inputs(c);
      Plan<RmsNorm>(c.problem, {.implementation = name, .threads = 3}).run(got.args);
      expect_close_norm(c, want, got);
      const RmsNormInputs alone = make_inputs(c);
      Plan<RmsNorm>(c.problem, {.implementation = name, .threads = 1}).run(alone.args);
      expect_equal_bytes(got.y, alone.y);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(NormRopeParity, RmsNormInPlace) {
  for (const RmsNormCase& c : rms_norm_cases()) {
    if (c.problem.in != c.problem.out) continue;
    for (const std::string& name : accepted<RmsNorm>(c.problem)) {
      SCOPED_TRACE(testing::Message() << c << " on " << name);
      RmsNormInputs in = make_inputs(c);
      const Plan<RmsNorm> plan(c.problem, {.implementation = name});
      plan.run(in.args);
      RmsNorm::Args same = in.args;
      same.y = in.x.view().slice(1, c.row_gap, c.row_gap + c.problem.dim);
      plan.run(same);
      for (std::int64_t r = 0; r < c.problem.rows; ++r) {
        for (std::int64_t i = 0; i < c.problem.dim; ++i) {
          ASSERT_EQ(element(in.y, r * (c.problem.dim + 8) + i),
                    element(in.x, r * (c.problem.dim + c.row_gap) + c.row_gap + i));
        }
      }
    }
  }
}

/// Each of the two norms has the bits of RmsNorm; in place too.
TEST(NormRopeParity, LatentNormsAreTwoRmsNorms) {
  for (const LatentNormsCase& c : latent_norms_cases()) {
    const LatentNormsInputs ref = make_inputs(c);
    Plan<LatentNorms>(c.problem, {.implementation = "ref"}).run(ref.args());
    for (const std::string& name : accepted<LatentNorms>(c.problem)) {
      SCOPED_TRACE(testing::Message() << c << " on " << name);
      LatentNormsInputs got = make_inputs(c);
      const Plan<LatentNorms> plan(c.problem, {.implementation = name, .threads = 3});
      plan.run(got.args());
      expect_close_norm(c.qr(), ref.qr, got.qr);
      expect_close_norm(c.kv(), ref.kv, got.kv);
      const LatentNormsInputs want = make_inputs(c);
      Plan<RmsNorm>(c.qr().problem, {.implementation = name, .threads = 1}).run(want.qr.args);
      Plan<RmsNorm>(c.kv().problem, {.implementation = name, .threads = 1}).run(want.kv.args);
      expect_equal_bytes(want.qr.y, got.qr.y);
      expect_equal_bytes(want.kv.y, got.kv.y);
      if (HasFatalFailure()) return;
      if (c.problem.in != c.problem.out) continue;
      LatentNorms::Args same = got.args();
      same.qr_out = got.qr.x.view().slice(1, c.row_gap, c.row_gap + c.problem.qr_dim);
      same.kv_out = got.kv.x.view().slice(1, c.row_gap, c.row_gap + c.problem.kv_dim);
      plan.run(same);
      const auto expect_in_place = [&](const RmsNormInputs& in, std::int64_t dim) {
        for (std::int64_t r = 0; r < c.problem.rows; ++r) {
          for (std::int64_t i = 0; i < dim; ++i)
            ASSERT_EQ(element(in.y, r * (dim + 8) + i), element(in.x, r * (dim + c.row_gap) + c.row_gap + i));
        }
      };
      expect_in_place(got.qr, c.problem.qr_dim);
      expect_in_place(got.kv, c.problem.kv_dim);
      if (HasFatalFailure()) return;
    }
  }
}

/// Latent norms that quantise are the norms and the quantisation of the latent queries.
TEST(NormRopeParity, LatentNormsThatQuantiseAreTheTwoOps) {
  for (const LatentNormsCase& c : quantised_norms_cases()) {
    for (const std::string& name : accepted<LatentNorms>(c.problem)) {
      SCOPED_TRACE(testing::Message() << c << " on " << name);
      LatentNormsCase plain = c;
      plain.problem.quantises_qr = false;
      const LatentNormsInputs want = make_inputs(plain);
      Plan<LatentNorms>(plain.problem, {.implementation = name}).run(want.args());
      test::QuantisedRows wanted = quantised_qr(c.problem);
      Plan<QuantizeRows>({.rows = c.problem.rows, .dim = c.problem.qr_dim, .in = c.problem.out},
                         {.implementation = "ref"})
          .run(wanted.args(want.args().qr_out));
      const LatentNormsInputs got = make_inputs(c);
      test::QuantisedRows quantised = quantised_qr(c.problem);
      LatentNorms::Args args = got.args();
      args.qr_values = quantised.rows();
      args.qr_scales = quantised.scales.view();
      Plan<LatentNorms>(c.problem, {.implementation = name, .threads = 3}).run(args);
      expect_equal_bytes(want.qr.y, got.qr.y);
      expect_equal_bytes(want.kv.y, got.kv.y);
      expect_equal_bytes(wanted.values, quantised.values);
      expect_equal_bytes(wanted.scales, quantised.scales);
      if (HasFatalFailure()) return;
    }
  }
}

/// Latent norms that insert are the norms and the insert.
TEST(NormRopeParity, LatentNormsThatInsertAreTheThreeOps) {
  for (const NormInsertCase& c : norm_insert_cases()) {
    for (const std::string& name : accepted<LatentNorms>(c.problem(true))) {
      SCOPED_TRACE(testing::Message() << c << " on " << name);
      NormInsertInputs want(c);
      Plan<LatentNorms>(c.problem(false), {.implementation = name}).run(want.args(c, false));
      QNormRopeInsert::Args insert = want.insert.args;
      insert.kv = std::as_const(want.kv_out).view();
      Plan<QNormRopeInsert>(c.insert.problem(), {.implementation = "ref"}).run(insert);
      NormInsertInputs got(c);
      const Plan<LatentNorms> plan(c.problem(true), {.implementation = name, .threads = 3});
      const test::AlignedWorkspace scratch(plan.workspace_bytes());
      plan.run(got.args(c, true), scratch.get());
      expect_equal_bytes(want.qr_out, got.qr_out);
      ASSERT_TRUE(want.insert.cache.bytes == got.insert.cache.bytes);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(NormRopeParity, QNormRopeInsert) {
  for (const InsertCase& c : insert_cases()) {
    const InsertInputs want = make_inputs(c);
    Plan<QNormRopeInsert>(c.problem(), {.implementation = "ref"}).run(want.args);
    for (const std::string& name : accepted<QNormRopeInsert>(c.problem())) {
      SCOPED_TRACE(testing::Message() << c << " on " << name);
      const InsertInputs got = make_inputs(c);
      Plan<QNormRopeInsert>(c.problem(), {.implementation = name, .threads = 3}).run(got.args);
      expect_close_rows(want.q_out, got.q_out, c.problem().dim);
      // No sum stands before the bytes of kv: they are exact, and so is everything that must not be written.
      ASSERT_TRUE(want.cache.bytes == got.cache.bytes);
      const InsertInputs alone = make_inputs(c);
      Plan<QNormRopeInsert>(c.problem(), {.implementation = name, .threads = 1}).run(alone.args);
      expect_equal_bytes(got.q_out, alone.q_out);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(NormRopeParity, InverseRopeIsExact) {
  for (const InverseCase& c : inverse_cases()) {
    const InverseInputs want = make_inputs(c);
    Plan<InverseRope>(c.problem, {.implementation = "ref"}).run(want.args);
    for (const std::string& name : accepted<InverseRope>(c.problem)) {
      SCOPED_TRACE(testing::Message() << c << " on " << name);
      InverseInputs got = make_inputs(c);
      const Plan<InverseRope> plan(c.problem, {.implementation = name, .threads = 3});
      plan.run(got.args);
      expect_equal_bytes(want.y, got.y);
      if (HasFatalFailure()) return;
      if (c.problem.in != c.problem.out) continue;
      InverseRope::Args same = got.args;
      same.y = got.x.view().slice(1, 0, c.problem.heads);
      plan.run(same);
      for (std::int64_t t = 0; t < c.problem.tokens; ++t) {
        const std::int64_t position = got.positions.as<std::int64_t>()[t];
        if (position < 0 || position >= 300) continue;  // skipped rows of y are poison
        for (std::int64_t i = 0; i < c.problem.heads * c.problem.dim; ++i) {
          const std::int64_t at = t * (c.problem.heads + 1) * c.problem.dim + i;
          ASSERT_EQ(element(got.y, at), element(got.x, t * (c.problem.heads + c.extra_heads) * c.problem.dim + i));
        }
      }
    }
  }
}

}  // namespace
}  // namespace smla
