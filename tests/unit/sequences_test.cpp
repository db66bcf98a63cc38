#include "sparsemla/ops/sequences.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <random>

#include "cases/replay.h"
#include "core/host_tensor.h"
#include "sparsemla/case.h"
#include "sparsemla/error.h"

namespace smla {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::uint8_t kFill = 0xA5;

/// Rows of bytes in strided memory, all kFill.
struct Matrix {
  std::vector<std::uint8_t> bytes;
  TensorView view;
  Matrix(std::int64_t rows, std::int64_t row, std::int64_t gap)
      : bytes(static_cast<std::size_t>(rows * (row + gap)), kFill) {
    view = TensorView(bytes.data(), DType::kU8, {rows, row});
    view.stride[0] = row + gap;
  }
};

TEST(Sequences, PackByHand) {
  const std::vector<float> rows{1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<std::int32_t> starts{0, 1, 1, 4};
  std::vector<float> packed(3 * 2 * 2, -1);
  const PackSequences::Problem problem{.requests = 3, .tokens = 4, .max_len = 2, .row = 2, .dtype = DType::kF32};
  Plan<PackSequences>(problem).run({.rows = view_of(rows.data(), {4, 2}),
                                    .query_start_loc = view_of(starts.data(), {4}),
                                    .packed = view_of(packed.data(), {3, 2, 2})});
  EXPECT_EQ(packed, (std::vector<float>{1, 2, 0, 0, /**/ 0, 0, 0, 0, /**/ 3, 4, 5, 6}));  // of three rows the first two
  std::vector<float> back(8, -1);
  Plan<UnpackSequences>(problem).run({.packed = view_of(std::as_const(packed).data(), {3, 2, 2}),
                                      .query_start_loc = view_of(starts.data(), {4}),
                                      .rows = view_of(back.data(), {4, 2})});
  EXPECT_EQ(back, (std::vector<float>{1, 2, 3, 4, 5, 6, -1, -1}));
}

TEST(Sequences, UnpackGivesBackWhatWasPacked) {
  std::mt19937 random(3);
  for (int run = 0; run < 300; ++run) {
    const auto below = [&](int n) { return static_cast<std::int64_t>(random() % static_cast<unsigned>(n)); };
    const std::int64_t requests = below(6);
    const std::int64_t row = below(70);
    std::vector<std::int32_t> starts{static_cast<std::int32_t>(below(3))};
    std::int64_t longest = 0;
    for (std::int64_t b = 0; b < requests; ++b) {
      const std::int64_t length = below(5);
      longest = std::max(longest, length);
      starts.push_back(starts.back() + static_cast<std::int32_t>(length));
    }
    const std::int64_t tokens = starts.back() + below(3);
    const std::int64_t max_len = longest + below(2);
    Matrix rows(tokens, row, below(4));
    for (std::uint8_t& byte : rows.bytes) byte = static_cast<std::uint8_t>(random());
    Matrix packed(requests * max_len, row, 3);
    TensorView rectangle(packed.bytes.data(), DType::kU8, {requests, max_len, row});
    rectangle.stride = {max_len * (row + 3), row + 3, 1, 0};
    const PackSequences::Problem problem{
        .requests = requests, .tokens = tokens, .max_len = max_len, .row = row, .dtype = DType::kU8};
    const ConstTensorView loc = view_of(std::as_const(starts).data(), {requests + 1});
    Plan<PackSequences>(problem).run({.rows = rows.view, .query_start_loc = loc, .packed = rectangle});
    for (std::int64_t b = 0; b < requests; ++b) {
      for (std::int64_t i = 0; i < max_len; ++i) {
        const std::int64_t t = starts[static_cast<std::size_t>(b)] + i;
        const bool there = t < starts[static_cast<std::size_t>(b + 1)];
        for (std::int64_t d = 0; d < row + 3; ++d) {
          const std::uint8_t got = packed.bytes[static_cast<std::size_t>((b * max_len + i) * (row + 3) + d)];
          ASSERT_EQ(got, d >= row ? kFill
                         : there  ? rows.bytes[static_cast<std::size_t>(t * rows.view.stride[0] + d)]
                                  : 0);
        }
      }
    }
    Matrix back(tokens, row, 2);
    Plan<UnpackSequences>(problem).run({.packed = rectangle, .query_start_loc = loc, .rows = back.view});
    for (std::int64_t t = 0; t < tokens; ++t) {
      const bool mine = t >= starts.front() && t < starts.back();
      for (std::int64_t d = 0; d < row + 2; ++d) {
        const std::uint8_t got = back.bytes[static_cast<std::size_t>(t * (row + 2) + d)];
        ASSERT_EQ(got, d < row && mine ? rows.bytes[static_cast<std::size_t>(t * rows.view.stride[0] + d)] : kFill);
      }
    }
  }
}

TEST(Sequences, HostileStartsReadAndWriteNothingOutside) {
  std::mt19937 random(4);
  const std::vector<std::int32_t> wild{INT32_MIN, -1, 0, 1, 3, 4, 5, 100, INT32_MAX};
  for (int run = 0; run < 500; ++run) {
    std::vector<std::int32_t> starts;
    for (int i = 0; i < 4; ++i) starts.push_back(wild[random() % wild.size()]);
    const ConstTensorView loc = view_of(std::as_const(starts).data(), {4});
    const std::vector<std::uint8_t> rows{1, 2, 3, 4};
    std::vector<std::uint8_t> packed(3 * 2 + 1, kFill);
    const PackSequences::Problem problem{.requests = 3, .tokens = 4, .max_len = 2, .row = 1, .dtype = DType::kU8};
    Plan<PackSequences>(problem).run(
        {.rows = view_of(rows.data(), {4, 1}), .query_start_loc = loc, .packed = view_of(packed.data(), {3, 2, 1})});
    for (std::size_t i = 0; i < 6; ++i) {
      const std::int64_t first = starts[i / 2];
      const std::int64_t t = first + static_cast<std::int64_t>(i % 2);
      const bool there = first >= 0 && t < starts[i / 2 + 1] && t < 4;
      ASSERT_EQ(packed[i], there ? rows[static_cast<std::size_t>(t)] : 0);
    }
    ASSERT_EQ(packed.back(), kFill);
    std::vector<std::uint8_t> back(5, kFill);
    Plan<UnpackSequences>(problem).run({.packed = view_of(std::as_const(packed).data(), {3, 2, 1}),
                                        .query_start_loc = loc,
                                        .rows = view_of(back.data(), {4, 1})});
    ASSERT_EQ(back.back(), kFill);
  }
}

TEST(Sequences, WrongTensorsAreNamed) {
  const PackSequences::Problem problem{.requests = 1, .tokens = 2, .max_len = 2, .row = 1, .dtype = DType::kU8};
  std::vector<std::uint8_t> bytes(4);
  const std::vector<std::int32_t> starts{0, 2};
  PackSequences::Args args{.rows = view_of(std::as_const(bytes).data(), {2, 1}),
                           .query_start_loc = view_of(starts.data(), {2}),
                           .packed = view_of(bytes.data(), {1, 3, 1})};
  EXPECT_THAT(
      [&] { Plan<PackSequences>(problem).run(args); },
      ThrowsMessage<InvalidArgument>(HasSubstr("pack_sequences: packed: got [1, 3, 1] U8, expected [1, 2, 1]")));
  EXPECT_THAT([] { Plan<UnpackSequences>({.requests = -1}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("unpack_sequences: requests: got -1, expected 0 or more")));
  EXPECT_THAT([] { Plan<PackSequences>({.requests = std::int64_t{1} << 40, .max_len = 1 << 20, .row = 1 << 20}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("a size that 64 bits can address")));
}

TEST(Sequences, HaveACaseForm) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("smla_sequences_" + std::to_string(getpid()));
  std::filesystem::remove_all(folder);
  record_calls(folder.string());
  const std::vector<float> rows{1, 2, 3, 4, 5, 6};
  const std::vector<std::int32_t> starts{0, 2, 3};
  std::vector<float> packed(8);
  std::vector<float> back(6);
  const PackSequences::Problem problem{.requests = 2, .tokens = 3, .max_len = 2, .row = 2, .dtype = DType::kF32};
  Plan<PackSequences>(problem).run({.rows = view_of(rows.data(), {3, 2}),
                                    .query_start_loc = view_of(starts.data(), {3}),
                                    .packed = view_of(packed.data(), {2, 2, 2})});
  Plan<UnpackSequences>(problem).run({.packed = view_of(std::as_const(packed).data(), {2, 2, 2}),
                                      .query_start_loc = view_of(starts.data(), {3}),
                                      .rows = view_of(back.data(), {3, 2})});
  record_calls("");
  EXPECT_EQ(back, rows);
  int replayed = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const CaseFile file = read_case(entry.path().string());
    for (const Verdict& verdict : judge(file, replay(file, {}))) EXPECT_TRUE(verdict.comparison.pass) << file.op;
    ++replayed;
  }
  EXPECT_EQ(replayed, 2);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace smla
