// Sparse attention over lists of unlike lengths, which the GPU cuts by their lengths.
#include <algorithm>
#include <numeric>
#include <random>
#include <tuple>

#include "cache/row_codec.h"
#include "gpu/attention_gpu.h"
#include "ops/attention/hopper_split.h"

namespace smla {
namespace {

using namespace attention_gpu;

constexpr std::int64_t kEntryBytes = AttentionSplit::kSumBytes + AttentionSplit::kStateBytes;

/// How the lists' lengths are drawn.
enum class Lengths { kOneLong, kAlike, kAny, kNone };

std::string name_of(Lengths lengths) {
  switch (lengths) {
    case Lengths::kOneLong: return "one long";
    case Lengths::kAlike: return "alike";
    case Lengths::kAny: return "any";
    case Lengths::kNone: return "none";
  }
  return "";
}

/// Inputs whose lists name rows in every entry, so that any part of a list can be its length.
AttentionInputs inputs_of(AttentionCase c, Lengths lengths, unsigned seed = 1) {
  for (ScopeCase& scope : c.scopes) scope.lens = Lens::kAbsent;
  AttentionInputs in = make_inputs(c);
  std::mt19937_64 random(seed);
  for (std::size_t s = 0; s < in.scopes.size(); ++s) {
    const auto width = static_cast<std::int32_t>(c.scopes[s].width);
    for (std::int64_t t = 0; t < c.tokens; ++t) {
      std::int32_t length = 0;
      switch (lengths) {
        case Lengths::kOneLong: length = t == c.tokens / 2 ? width : std::min(width, 65); break;
        case Lengths::kAlike: length = width / 3; break;
        case Lengths::kAny:
          length = static_cast<std::int32_t>(random() % static_cast<unsigned>(width + 200)) - 100;
          break;
        case Lengths::kNone: break;
      }
      in.scopes[s].lens.push_back(length);
    }
  }
  return in;
}

/// The cut that a way of running a call has room for.
LengthCut cut_of(const SparseAttention::Problem& p, const Way& way) {
  const SharedLimit limit(way.shared);
  const device::Gpu gpu = device::current_gpu();
  if (way.deterministic) return {};
  if (way.implementation == "cuda") return split_attention(p, gpu, false).cut;
  if (way.implementation == "sm90") return split_for_hopper(p, gpu, false).cut;
  return {};
}

/// What a run leaves in its workspace.
std::vector<std::uint8_t> workspace_after(const Plan<SparseAttention>& plan, AttentionInputs& in) {
  AttentionOutputs out(in.problem);
  SparseAttention::Args args = in.args();
  out.attach(args);
  const DeviceMemory workspace(DeviceKind::kCuda, plan.workspace_bytes(), false);
  StagedTensors staged(DeviceKind::kCuda);
  plan.run(staged.bring<SparseAttention>(args), {.data = workspace.data(), .bytes = workspace.bytes()});
  std::vector<std::uint8_t> bytes(workspace.bytes());
  copy_bytes(DeviceKind::kCuda, bytes.data(), workspace.data(), bytes.size());
  synchronize(DeviceKind::kCuda);
  return bytes;
}

/// Every way against `_ref`. Each implementation that cuts by length, and is tested, must have done it.
void check_lengths(AttentionInputs& in) {
  const AttentionOutputs want = attention_cases::run(in, "ref", 1);
  std::map<std::string, int> cut;
  for (const Way& way : ways_of(in.problem)) {
    SCOPED_TRACE(testing::PrintToString(way));
    expect_parity(want, run_device(in, way), bound_of(way));
    if (cut_of(in.problem, way).extra > 0) ++cut[way.implementation];
  }
  // The emulated GPU's few multiprocessors have no room for so many items of sm90, and lists of as many tokens occupy
  // them whole.
  constexpr int kReal = 32;
  const int multiprocessors = device::current_gpu().multiprocessors;
  for (const std::string& name : test::gpu_implementations<SparseAttention>(in.problem)) {
    const bool cuts = (multiprocessors >= kReal && (name == "cuda" || name == "sm90")) ||
                      (name == "cuda" && in.problem.tokens < multiprocessors);
    EXPECT_TRUE(!cuts || cut[name] > 0) << name;
  }
}

TEST_F(AttentionGpu, ListsCutByLengthAreRef) {
  for (const Lengths lengths : {Lengths::kOneLong, Lengths::kAlike, Lengths::kAny, Lengths::kNone}) {
    for (const auto& [tokens, heads, width] :
         {std::tuple{1, 5, 2700}, std::tuple{2, 100, 700}, std::tuple{33, 3, 300}}) {
      SCOPED_TRACE(testing::Message() << name_of(lengths) << ", " << tokens << " tokens, " << heads << " heads");
      AttentionInputs in = inputs_of({.tokens = tokens,
                                      .heads = heads,
                                      .out_heads = heads + 2,
                                      .sink = 0.3F,
                                      .scopes = {{.width = 128}, {.width = width}}},
                                     lengths, 7);
      check_lengths(in);
      if (HasFailure()) return;
    }
  }
}

/// More tokens than a warp looks at at once, one of the lists long: also where lists that are alike would not be cut.
TEST_F(AttentionGpu, ManyShortListsBesideALongOneAreRef) {
  AttentionInputs in = inputs_of(
      {.tokens = 140, .heads = 2, .scopes = {{.width = 20}, {.width = 2700, .num_blocks = 4}}}, Lengths::kOneLong);
  for (std::size_t t = 0; t < 140; t += 3) in.scopes[1].lens[t] = 0;
  check_lengths(in);
}

/// Rows that fp16 cannot represent, in lists of one part and of several; only one scope has lengths.
TEST_F(AttentionGpu, ListsCutByLengthAreRefInFp32) {
  AttentionInputs in =
      inputs_of({.tokens = 3, .heads = 5, .sink = -0.2F, .scopes = {{.width = 60}, {.width = 300}}}, Lengths::kOneLong);
  in.scopes[0].lens.clear();
  shift_rows(in.scopes[1], 18);
  check_lengths(in);
}

TEST_F(AttentionGpu, ListsCutByLengthGiveTheSameBitsTwice) {
  AttentionInputs in =
      inputs_of({.tokens = 5, .heads = 20, .sink = 0.3F, .scopes = {{.width = 128}, {.width = 700}}}, Lengths::kAny, 3);
  for (const Way& way : ways_of(in.problem)) {
    SCOPED_TRACE(testing::PrintToString(way));
    const AttentionOutputs first = run_device(in, way);
    for (int i = 0; i < 3; ++i) expect_same_bits(first, run_device(in, way));
  }
}

/// What the device tells the merge of its cut: all lists in parts of one number of tiles, no more parts than there is
/// room for, and the longest list shared out.
TEST_F(AttentionGpu, ALongListIsSharedOut) {
  AttentionInputs in =
      inputs_of({.tokens = 12, .heads = 64, .scopes = {{.width = 64}, {.width = 2048}}}, Lengths::kOneLong);
  for (const std::string& implementation : {std::string("cuda"), std::string("sm90")}) {
    const Way way{.implementation = implementation};
    const std::vector<std::string> names = test::gpu_implementations<SparseAttention>(in.problem);
    if (std::ranges::find(names, implementation) == names.end()) continue;
    SCOPED_TRACE(implementation);
    const LengthCut cut = cut_of(in.problem, way);
    ASSERT_GT(cut.extra, 0U);
    const std::int64_t keys =
        implementation == "cuda"
            ? kAttentionTiles[static_cast<std::size_t>(split_attention(in.problem, device::current_gpu(), false).tile)]
                  .keys
            : HopperSplit::kTileKeys;
    std::vector<std::int64_t> tiles;
    for (std::size_t t = 0; t < 12; ++t) {
      std::int64_t sum = 0;
      for (std::size_t s = 0; s < 2; ++s) sum += (in.scopes[s].lens[t] + keys - 1) / keys;
      tiles.push_back(sum);
    }
    const Plan<SparseAttention> plan(in.problem, {.device = DeviceKind::kCuda, .implementation = implementation});
    const std::vector<std::uint8_t> workspace = workspace_after(plan, in);
    const std::int64_t at = cut.rows(12) * in.problem.heads * kEntryBytes;
    std::vector<std::uint32_t> cuts(2 * 12);
    ASSERT_GE(static_cast<std::int64_t>(workspace.size()), at + 8 * 12);
    std::memcpy(cuts.data(), workspace.data() + at, 8 * 12);
    std::int64_t parts = 0;
    std::int64_t rows = 0;
    const std::int64_t longest = *std::ranges::max_element(tiles);
    const auto of_longest = std::int64_t{cuts[2 * 6 + 1]};
    ASSERT_GT(of_longest, 4) << "parts of the longest list";
    const std::int64_t of_part = (longest + of_longest - 1) / of_longest;
    for (std::size_t t = 0; t < 12; ++t) {
      const auto own = std::int64_t{cuts[2 * t + 1]};
      EXPECT_EQ(std::max<std::int64_t>((tiles[t] + of_part - 1) / of_part, 1), own) << "token " << t;
      if (own > 1) {
        EXPECT_EQ(rows, cuts[2 * t]) << "token " << t;
        rows += own;
      }
      parts += own;
    }
    EXPECT_LE(parts, 12 + cut.extra);
    EXPECT_LE(rows, cut.rows(12));
  }
}

/// Deterministic: lists cut alike have the same bits when other lists make the matrix wider, also where that makes more
/// threads share the merge.
TEST_F(AttentionGpu, ATokenIsTheSameInMuchWiderMatrices) {
  AttentionInputs in = inputs_of(
      {.tokens = 2, .heads = 3, .sink = 0.3F, .scopes = {{.width = 1300, .index_gap = 4000}}}, Lengths::kAny, 5);
  in.scopes[0].lens = {1300, 900};
  for (const std::string& implementation : test::gpu_implementations<SparseAttention>(in.problem, true)) {
    SCOPED_TRACE(implementation);
    const Way way{.implementation = implementation, .deterministic = true};
    AttentionInputs wider = in;
    const AttentionOutputs narrow = run_device(in, way);
    wider.problem.scope[0].width = 5000;
    expect_same_bits(narrow, run_device(wider, way));
  }
}

}  // namespace
}  // namespace smla
