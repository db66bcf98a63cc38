// Reported failures of whole layers and batches, each as a test named after the report; those of single ops are
// tests/unit/incidents_test.cpp.
#include <gtest/gtest.h>

#include "property/layer_harness.h"
#include "property/small_model.h"
#include "sparsemla/engine.h"

namespace smla {
namespace {

using test::LayerHarness;
using test::Steps;
using test::Trace;

LayerOptions plain() {
  LayerOptions options;
  options.deterministic = true;
  options.implementations = {{"projection", "ref"}};
  return options;
}

/// One request of `length` tokens in pieces of `chunk`.
Steps in_chunks(std::int64_t length, std::int64_t chunk) {
  Steps steps;
  for (std::int64_t at = 0; at < length; at += chunk)
    steps.push_back({{.request = 0, .begin = at, .end = std::min(at + chunk, length)}});
  return steps;
}

void expect_same(const Trace& a, const Trace& b) {
  EXPECT_EQ(a.output, b.output);
  EXPECT_EQ(a.topk, b.topk);
  EXPECT_EQ(a.caches, b.caches);
}

// One decoded token over a cache gave another next token than the whole prompt computed again.
TEST(Incident, MlxLm1189DecodeEqualsPrefillAgain) {
  for (const int ratio : {1, 4, 128}) {
    const LayerHarness layer(ratio, plain(), {137});
    Steps decode = in_chunks(136, 136);
    decode.push_back({{.request = 0, .begin = 136, .end = 137}});
    expect_same(layer.run(in_chunks(137, 137), {}), layer.run(decode, {}));
  }
}

// A prompt that spanned more than one forward pass gave nothing but "<".
TEST(Incident, LlamaCpp26509APromptOfSeveralPasses) {
  for (const int ratio : {1, 4, 128}) {
    const LayerHarness layer(ratio, plain(), {150});
    const Trace whole = layer.run(in_chunks(150, 150), {});
    for (const std::int64_t chunk : {41, 149}) expect_same(whole, layer.run(in_chunks(150, chunk), {}));
  }
}

// Unused bytes of freshly given blocks (another request's, another precision's) got into the answer of requests that
// shared a pool.
TEST(Incident, Vllm43416WhatBlocksHeldBeforeDoesNotMatter) {
  for (const int ratio : {1, 4, 128}) {
    const LayerHarness layer(ratio, plain(), {140});
    const Trace clean = layer.run(in_chunks(140, 50), {});
    for (const std::uint8_t fill : {std::uint8_t{0xFF}, std::uint8_t{0x7F}})
      expect_same(clean, layer.run(in_chunks(140, 50), {.block_seed = 3, .gap = 64, .fill = fill}));
  }
}

std::map<std::int64_t, std::uint64_t> digests(const std::vector<RequestSpec>& specs, int speculative) {
  EngineOptions o;
  o.model = test::small_model();
  o.layers = {0, 1, 2};
  o.layer = plain();
  o.max_batched_tokens = 48;
  o.max_seqs = 4;
  o.num_blocks = 600;
  o.max_model_len = 256;
  o.speculative = speculative;
  Engine engine(o);
  for (const RequestSpec& s : specs) engine.submit(s);
  for (int i = 0; i < 10000 && engine.step([] { return 0.0; }); ++i) {
  }
  std::map<std::int64_t, std::uint64_t> out;
  for (const RequestResult& r : engine.results()) {
    EXPECT_EQ(r.state, RequestResult::State::kFinished) << r.refusal;
    out[r.spec.id] = r.digest;
  }
  return out;
}

// With two drafts a step, a prefill beside the decodes put wrong tokens into running answers: 9 of 20 requests, none
// without drafts.
TEST(Incident, Vllm41834DraftsBesideAPrefill) {
  const RequestSpec running{.id = 0, .arrival_seconds = 0, .prompt_tokens = 20, .output_tokens = 25};
  const RequestSpec joining{.id = 1, .arrival_seconds = 0, .prompt_tokens = 150, .output_tokens = 3};
  const auto alone = digests({running}, 0);
  EXPECT_EQ(digests({running, joining}, 2).at(0), alone.at(0));
  EXPECT_EQ(digests({running}, 2).at(0), alone.at(0));
}

// Two sequences of unequal length in parallel crashed at once.
TEST(Incident, IkLlama2229TwoSequencesOfUnequalLength) {
  const RequestSpec a{.id = 0, .arrival_seconds = 0, .prompt_tokens = 5, .output_tokens = 9};
  const RequestSpec b{.id = 1, .arrival_seconds = 0, .prompt_tokens = 131, .output_tokens = 2};
  const auto both = digests({a, b}, 0);
  EXPECT_EQ(both.at(0), digests({a}, 0).at(0));
  EXPECT_EQ(both.at(1), digests({b}, 0).at(1));
}

}  // namespace
}  // namespace smla
