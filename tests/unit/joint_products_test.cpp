// Which layers' products norm the latent queries themselves, and what runs beside wq_b.
#include "layer/joint_products.h"

#include <gtest/gtest.h>

namespace smla {
namespace {

TEST(JointProducts, NormQueriesWhereItPays) {
  const LayerConfig config{.compress_ratio = 4};
  ASSERT_TRUE(config.has_compressor());
  LayerWeights weights;
  weights.q_norm.dtype = DType::kBF16;
  const auto of_heads = [](std::int64_t heads) { return ConstTensorView(nullptr, DType::kE4M3, {heads * 512, 1024}); };
  weights.wq_b = of_heads(32);
  const JointProjection::Problem alone{.parts = 1};
  const JointProjection::Problem with_indexer{.parts = 2};
  LayerOptions options{.device = DeviceKind::kCuda, .side_streams = true};
  const auto rows = [&](const JointProjection::Problem& queries) {
    return normed_query_rows(config, options, weights, queries);
  };
  EXPECT_EQ(0, rows(alone));
  EXPECT_EQ(8, rows(with_indexer));
  options.side_streams = false;
  EXPECT_EQ(0, rows(with_indexer)) << "nothing streams beside the indexer";
  weights.wq_b = of_heads(48);
  EXPECT_EQ(8, rows(alone));
  weights.wq_b = of_heads(47);
  EXPECT_EQ(0, rows(alone));
  options.implementations = {{"joint_projection", "sm90_stream"}};
  EXPECT_EQ(16, rows(alone));
  EXPECT_EQ(16, rows(with_indexer));
  weights.q_norm.dtype = DType::kF32;
  EXPECT_EQ(0, rows(alone)) << "a weight that the kernel does not take";
  weights.q_norm.dtype = DType::kBF16;
  options = {
      .device = DeviceKind::kCuda, .side_streams = true, .implementations = {{"joint_projection", "cuda_stream"}}};
  EXPECT_EQ(0, rows(with_indexer)) << "another implementation is named";
}

TEST(JointProducts, CompressorsRunApartBesideALargeWqB) {
  LayerWeights weights;
  const auto of_heads = [](std::int64_t heads, DType dtype) {
    return ConstTensorView(nullptr, dtype, {heads * 512, 1024});
  };
  weights.wq_b = of_heads(64, DType::kE4M3);
  EXPECT_FALSE(compressors_run_apart(weights, 1)) << "three steps of four close no group";
  EXPECT_TRUE(compressors_run_apart(weights, 2));
  EXPECT_TRUE(compressors_run_apart(weights, 8));
  EXPECT_FALSE(compressors_run_apart(weights, 9));
  weights.wq_b = of_heads(63, DType::kE4M3);
  EXPECT_FALSE(compressors_run_apart(weights, 4)) << "a smaller slice";
  weights.wq_b = of_heads(97, DType::kE4M3);
  EXPECT_FALSE(compressors_run_apart(weights, 4)) << "attention waits for wq_b";
  weights.wq_b = of_heads(64, DType::kBF16);
  EXPECT_FALSE(compressors_run_apart(weights, 4));
}

TEST(JointProducts, IndexQueriesRehearseWhereTheyWait) {
  LayerWeights weights;
  const auto of_heads = [](std::int64_t heads, DType dtype) {
    return ConstTensorView(nullptr, dtype, {heads * 512, 1024});
  };
  weights.wq_b = of_heads(64, DType::kE4M3);
  EXPECT_TRUE(wq_b_leaves_room(weights));
  EXPECT_TRUE(index_queries_rehearse(weights, 1));
  EXPECT_TRUE(index_queries_rehearse(weights, 4));
  EXPECT_FALSE(index_queries_rehearse(weights, 5)) << "of eight it costs more than it saves";
  weights.wq_b = of_heads(32, DType::kE4M3);
  EXPECT_TRUE(index_queries_rehearse(weights, 4));
  weights.wq_b = of_heads(31, DType::kE4M3);
  EXPECT_TRUE(wq_b_leaves_room(weights));
  EXPECT_FALSE(index_queries_rehearse(weights, 1)) << "a smaller slice";
  weights.wq_b = of_heads(96, DType::kE4M3);
  EXPECT_TRUE(index_queries_rehearse(weights, 1));
  weights.wq_b = of_heads(97, DType::kE4M3);
  EXPECT_FALSE(wq_b_leaves_room(weights)) << "attention waits for wq_b";
  EXPECT_FALSE(index_queries_rehearse(weights, 1));
  weights.wq_b = of_heads(64, DType::kBF16);
  EXPECT_FALSE(wq_b_leaves_room(weights));
  EXPECT_FALSE(index_queries_rehearse(weights, 1));
}

}  // namespace
}  // namespace smla
