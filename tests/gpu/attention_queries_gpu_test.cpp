// How sparse attention on the GPU reads its queries.
#include <cstring>

#include "gpu/attention_gpu.h"

namespace smla {
namespace {

using namespace attention_gpu;

/// One number of a token's queries that half precision does not hold, in turn at every place of the 16 bytes that a
/// thread may read at once, of every group of 64 numbers, and of heads near and far.
TEST_F(AttentionGpu, OneQueryNumberPastHalfPrecisionIsRef) {
  std::map<std::string, int> ran;
  for (const std::int64_t heads : {11, 64}) {
    SCOPED_TRACE(heads);
    constexpr std::int64_t kTokens = 24;
    AttentionInputs in = make_inputs({.tokens = kTokens, .heads = heads, .sink = 0.2F, .scopes = {{.width = 9}}});
    for (std::int64_t t = 0; t < kTokens; ++t) {
      const std::int64_t head = (heads - 1) * t / (kTokens - 1);
      const std::int64_t dim = t * 3 % 8 * 64 + t * 5 % 8 * 8 + (t + t / 8) % 8;
      put(DType::kBF16, in.q.data(), t * in.q_stride + head * in.problem.dim + dim, t % 2 == 0 ? 0x1p16F : -0x1p16F);
    }
    check(in, ran);
    if (HasFailure()) return;
  }
}

/// Strides of q change nothing but the place. The numbers between two heads are NaN.
TEST_F(AttentionGpu, QueriesFarApartGiveTheSameBits) {
  for (const DType q : {DType::kBF16, DType::kE4M3}) {
    for (const std::int64_t heads : {1, 6, 63, 64, 75}) {
      SCOPED_TRACE(testing::Message() << heads << " heads, q " << name_of(q));
      AttentionInputs in = make_inputs({.tokens = 3, .heads = heads, .q = q, .sink = 0.1F, .scopes = {{.width = 70}}});
      const std::int64_t size = size_of(q);
      const std::int64_t row = in.problem.dim * size;
      for (const std::int64_t gap : {16, 160}) {  // numbers
        const std::int64_t stride = in.problem.dim + gap;
        const std::int64_t token_stride = heads * stride + 3 * gap;
        std::vector<std::uint8_t> apart(static_cast<std::size_t>(3 * token_stride * size), 0xFF);
        for (std::int64_t t = 0; t < 3; ++t) {
          for (std::int64_t h = 0; h < heads; ++h) {
            std::memcpy(apart.data() + (t * token_stride + h * stride) * size,
                        in.q.data() + (t * in.q_stride + h * in.problem.dim) * size, static_cast<std::size_t>(row));
          }
        }
        for (const Way& way : ways_of(in.problem)) {
          SCOPED_TRACE(testing::PrintToString(way));
          const AttentionOutputs want = run_device(in, way);
          AttentionOutputs got(in.problem);
          SparseAttention::Args args = in.args();
          got.attach(args);
          args.q = ConstTensorView(apart.data(), q, {3, heads, in.problem.dim});
          args.q.stride[1] = stride;
          args.q.stride[0] = token_stride;
          run_way(in.problem, args, way);
          expect_same_bits(want, got);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

}  // namespace
}  // namespace smla
