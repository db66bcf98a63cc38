// Packing and unpacking on the GPU against `_ref`, byte for byte, gaps included.
#include <random>

#include "gpu/gpu_run.h"
#include "sparsemla/ops/sequences.h"

namespace smla {
namespace {

class SequencesGpu : public test::GpuTest {};

constexpr std::uint8_t kFill = 0xA5;

/// The two tensors of a call, gaps behind their rows, and the list of starts.
struct Sequences {
  PackSequences::Problem problem;
  std::int64_t row_gap = 0;     ///< elements behind a row
  std::int64_t packed_gap = 0;  ///< elements behind a row of the rectangle
  std::vector<std::int32_t> starts;

  std::int64_t row_stride() const { return problem.row + row_gap; }
  std::int64_t packed_stride() const { return problem.row + packed_gap; }
  std::int64_t request_stride() const { return problem.max_len * packed_stride() + packed_gap; }
  std::vector<std::uint8_t> memory(std::int64_t elements) const {
    return std::vector<std::uint8_t>(static_cast<std::size_t>(elements * size_of(problem.dtype)), kFill);
  }
  std::vector<std::uint8_t> rows_memory() const { return memory(problem.tokens * row_stride()); }
  std::vector<std::uint8_t> packed_memory() const { return memory(problem.requests * request_stride()); }
  TensorView rows(std::vector<std::uint8_t>& bytes) const {
    TensorView v(bytes.data(), problem.dtype, {problem.tokens, problem.row});
    v.stride[0] = row_stride();
    return v;
  }
  TensorView packed(std::vector<std::uint8_t>& bytes) const {
    TensorView v(bytes.data(), problem.dtype, {problem.requests, problem.max_len, problem.row});
    v.stride = {request_stride(), packed_stride(), 1, 0};
    return v;
  }
  ConstTensorView start_view() const { return view_of(starts.data(), {problem.requests + 1}); }
  friend std::ostream& operator<<(std::ostream& out, const Sequences& s) {
    out << name_of(s.problem.dtype) << " " << s.problem.tokens << " rows of " << s.problem.row << " + " << s.row_gap
        << " to " << s.problem.requests << " x " << s.problem.max_len << " + " << s.packed_gap << ", starts";
    for (std::size_t i = 0; i < std::min<std::size_t>(s.starts.size(), 12); ++i) out << " " << s.starts[i];
    return out;
  }
  /// Row t of how many requests.
  std::int64_t claims(std::int64_t t) const {
    std::int64_t n = 0;
    for (std::size_t b = 0; b + 1 < starts.size(); ++b) {
      n += starts[b] >= 0 && t >= starts[b] && t < starts[b + 1] && t - starts[b] < problem.max_len ? 1 : 0;
    }
    return n;
  }
};

void expect_same(const std::vector<std::uint8_t>& want, const std::vector<std::uint8_t>& got, const char* what) {
  const auto [a, b] = std::mismatch(want.begin(), want.end(), got.begin());
  ASSERT_TRUE(a == want.end()) << what << ": byte " << a - want.begin() << " of " << want.size() << ": want " << +*a
                               << " got " << +*b;
}

/// Both ops; rows that several requests claim are nobody's promise and not compared.
void check(const Sequences& s, std::mt19937_64& random) {
  SCOPED_TRACE(testing::PrintToString(s));
  std::vector<std::uint8_t> rows = s.rows_memory();
  for (std::uint8_t& byte : rows) byte = static_cast<std::uint8_t>(random() >> 40);
  std::vector<std::uint8_t> want = s.packed_memory();
  std::vector<std::uint8_t> got = want;
  Plan<PackSequences>(s.problem, {.implementation = "ref"})
      .run({.rows = s.rows(rows), .query_start_loc = s.start_view(), .packed = s.packed(want)});
  test::run_on_gpu<PackSequences>(
      s.problem, {.rows = s.rows(rows), .query_start_loc = s.start_view(), .packed = s.packed(got)}, "cuda");
  expect_same(want, got, "pack_sequences");

  for (std::uint8_t& byte : want) byte = static_cast<std::uint8_t>(random() >> 40);
  std::vector<std::uint8_t> back = s.rows_memory();
  std::vector<std::uint8_t> got_back = back;
  Plan<UnpackSequences>(s.problem, {.implementation = "ref"})
      .run({.packed = s.packed(want), .query_start_loc = s.start_view(), .rows = s.rows(back)});
  test::run_on_gpu<UnpackSequences>(
      s.problem, {.packed = s.packed(want), .query_start_loc = s.start_view(), .rows = s.rows(got_back)}, "cuda");
  const std::int64_t bytes = s.row_stride() * size_of(s.problem.dtype);
  for (std::int64_t t = 0; s.problem.tokens <= 1000 && t < s.problem.tokens; ++t) {
    if (s.claims(t) > 1)
      std::copy_n(back.begin() + t * bytes, s.problem.row * size_of(s.problem.dtype), got_back.begin() + t * bytes);
  }
  expect_same(back, got_back, "unpack_sequences");
}

TEST_F(SequencesGpu, RandomBatchesAreRefByteForByte) {
  constexpr DType kTypes[] = {DType::kF32, DType::kF64, DType::kBF16, DType::kE4M3,
                              DType::kU8,  DType::kI32, DType::kI64,  DType::kBool};
  for (unsigned seed = 0; seed < 200 && !HasFailure(); ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](int n) { return static_cast<std::int64_t>(random() % static_cast<unsigned>(n)); };
    Sequences s;
    s.starts.push_back(static_cast<std::int32_t>(below(3)));
    const std::int64_t requests = below(7);
    for (std::int64_t b = 0; b < requests; ++b)
      s.starts.push_back(s.starts.back() + static_cast<std::int32_t>(below(6)));
    s.problem = {.requests = requests,
                 .tokens = s.starts.back() + below(3),
                 .max_len = below(8),
                 .row = below(3) == 0 ? 16 * below(20) : below(300),
                 .dtype = kTypes[seed % 8]};
    s.row_gap = below(2) * below(9);
    s.packed_gap = below(2) * below(9);
    check(s, random);
  }
}

TEST_F(SequencesGpu, HostileStartsAreRefByteForByte) {
  const std::vector<std::int32_t> wild{INT32_MIN, -1, 0, 1, 3, 4, 5, 7, 9, 100, INT32_MAX};
  for (unsigned seed = 0; seed < 200 && !HasFailure(); ++seed) {
    std::mt19937_64 random(seed);
    Sequences s{.problem = {.requests = 4,
                            .tokens = 9,
                            .max_len = 5,
                            .row = 1 + static_cast<std::int64_t>(seed % 40),
                            .dtype = DType::kBF16},
                .row_gap = 1,
                .packed_gap = 3,
                .starts = {}};
    for (int i = 0; i < 5; ++i)
      s.starts.push_back(random() % 4 == 0 ? static_cast<std::int32_t>(random()) : wild[random() % wild.size()]);
    check(s, random);
  }
}

TEST_F(SequencesGpu, RowsLongerThanAPieceAndMoreThan65535Rows) {
  std::mt19937_64 random(1);
  check({.problem = {.requests = 2, .tokens = 5, .max_len = 3, .row = 9001, .dtype = DType::kF32},
         .row_gap = 1,
         .starts = {0, 2, 5}},
        random);
  check({.problem = {.requests = 2, .tokens = 5, .max_len = 2, .row = 40'003, .dtype = DType::kU8},
         .packed_gap = 2,
         .starts = {1, 2, 4}},
        random);
  check(
      {.problem = {.requests = 1, .tokens = 3, .max_len = 4, .row = 64 * 512, .dtype = DType::kBF16}, .starts = {0, 3}},
      random);
  Sequences many{.problem = {.requests = 70'000, .tokens = 105'000, .max_len = 2, .row = 3, .dtype = DType::kBF16},
                 .starts = {0}};
  for (std::int32_t b = 0; b < 70'000; ++b) many.starts.push_back(many.starts.back() + 1 + b % 2);
  check(many, random);
}

}  // namespace
}  // namespace smla
