#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <numeric>
#include <utility>

#include "cache/row_codec.h"
#include "parity/compressor_cases.h"

namespace smla {
namespace {

using namespace compressor_cases;

/// One request whose raw tokens are a function of (seed, position): the same however they arrive.
struct Request {
  int ratio = 4;
  const RowFormat* format = nullptr;
  std::int64_t block_size = 4;
  std::string implementation;
  std::int64_t capacity = 0;  ///< positions the caches can hold
  HostTensor ape, norm_weight, cos_sin;
  HostTensor block_table;
  std::vector<std::int32_t> entry_slot;
  OwnedCache state, entries;

  int coff() const { return ratio == 4 ? 2 : 1; }
  std::int64_t width() const { return 2 * static_cast<std::int64_t>(coff()) * format->dim; }

  /// `placement` seeds the order of the physical blocks (0: in order) and `fill` the bytes that nobody wrote.
  Request(int ratio_in, const RowFormat& format_in, std::int64_t block_in, std::string name, std::int64_t positions,
          std::uint64_t placement, std::uint8_t fill)
      : ratio(ratio_in),
        format(&format_in),
        block_size(block_in),
        implementation(std::move(name)),
        capacity(positions) {
    Random weights{42};
    ape = numbers(DType::kF32, {ratio, width() / 2}, weights);
    norm_weight = numbers(DType::kBF16, {format->dim}, weights, 2.0F);
    cos_sin = rope_rows(capacity, 64);
    const std::int64_t columns = (capacity + block_size - 1) / block_size;
    state.allocate(state_rows(format->dim, coff()), columns + 2, block_size, fill, placement == 0 ? 0 : 192);
    entries.allocate(*format, capacity / ratio / 3 + 2, 3, fill, placement == 0 ? 0 : 192);
    block_table = HostTensor(DType::kI32, {1, columns});
    Random order{placement};
    const std::vector<std::int32_t> blocks = permutation(columns + 2, order);
    entry_slot = permutation(entries.cache.num_slots(), order);
    for (std::int64_t i = 0; i < columns; ++i) {
      block_table.as<std::int32_t>()[i] =
          placement == 0 ? static_cast<std::int32_t>(i) : blocks[static_cast<std::size_t>(i)];
    }
    if (placement == 0) std::iota(entry_slot.begin(), entry_slot.end(), 0);
  }

  std::int64_t state_slot(std::int64_t pos) const {
    return block_table.as<std::int32_t>()[pos / block_size] * block_size + pos % block_size;
  }

  /// One step: positions [first, first + n) with the tokens of `seed`, followed by `padding` rows without slots.
  void step(std::int64_t first, std::int64_t n, std::uint64_t seed, std::int64_t padding = 0) {
    const std::int64_t rows = n + padding;
    HostTensor kv_score(DType::kF32, {rows, width()});
    HostTensor positions(DType::kI64, {rows});
    HostTensor requests(DType::kI32, {rows});
    HostTensor state_slots(DType::kI64, {rows});
    HostTensor entry_slots(DType::kI64, {rows});
    for (std::int64_t t = 0; t < rows; ++t) {
      const std::int64_t pos = first + t;
      Random random{seed * 1'000'003 + static_cast<std::uint64_t>(pos)};
      for (std::int64_t i = 0; i < width(); ++i) kv_score.as<float>()[t * width() + i] = 5.0F * random.number();
      positions.as<std::int64_t>()[t] = t < n ? pos : 0;
      state_slots.as<std::int64_t>()[t] = t < n ? state_slot(pos) : -1;
      entry_slots.as<std::int64_t>()[t] =
          t < n && (pos + 1) % ratio == 0 ? entry_slot[static_cast<std::size_t>(pos / ratio)] : -1;
    }
    const std::string save = implementation == "ref" ? "ref" : "cpu";
    Plan<SaveState>({.tokens = rows, .ratio = ratio, .dim = format->dim}, {.implementation = save, .threads = 2})
        .run({.kv_score = std::as_const(kv_score).view(),
              .ape = std::as_const(ape).view(),
              .positions = std::as_const(positions).view(),
              .state_slots = std::as_const(state_slots).view(),
              .state = state.cache});
    Plan<CompressStore>({.tokens = rows, .ratio = ratio, .compressor = {{{.dim = format->dim, .format = format}}}},
                        {.implementation = implementation, .threads = 2})
        .run({.positions = std::as_const(positions).view(),
              .token_to_req = std::as_const(requests).view(),
              .entry_slots = std::as_const(entry_slots).view(),
              .cos_sin = std::as_const(cos_sin).view(),
              .compressors = {{{.state_slots = std::as_const(state_slots).view(),
                                .block_table = std::as_const(block_table).view(),
                                .norm_weight = std::as_const(norm_weight).view(),
                                .state = state.cache,
                                .entries = entries.cache}}}});
  }

  /// The logical contents after n positions: state rows and entries in order, byte for byte.
  std::vector<std::uint8_t> contents(std::int64_t n) const {
    std::vector<std::uint8_t> bytes;
    const auto append = [&](const PagedCache& cache, std::int64_t slot) {
      const std::uint8_t* data = row_data(cache, slot / cache.block_size, slot % cache.block_size);
      const std::uint8_t* scales = row_scales(cache, slot / cache.block_size, slot % cache.block_size);
      bytes.insert(bytes.end(), data, data + cache.format->data_bytes);
      bytes.insert(bytes.end(), scales, scales + cache.format->scale_bytes);
    };
    for (std::int64_t pos = 0; pos < n; ++pos) append(state.cache, state_slot(pos));
    for (std::int64_t g = 0; g < n / ratio; ++g) append(entries.cache, entry_slot[static_cast<std::size_t>(g)]);
    return bytes;
  }
};

struct Setting {
  int ratio = 4;
  const RowFormat* format = nullptr;
  std::int64_t block_size = 4;
  std::string implementation;
  std::int64_t tokens = 0;

  Request request(std::uint64_t placement, std::uint8_t fill) const {
    return Request(ratio, *format, block_size, implementation, tokens + 8, placement, fill);
  }
};

Setting any_setting(int ratio) {
  Setting s;
  s.ratio = ratio;
  s.format = ratio == 4 ? *rc::gen::element(&fp8_ds_mla_rows(), &bf16_rows(), &f32_rows(), &index_fp8_rows(),
                                            &index_mxfp4_rows(), &index_f32_rows())
                        : *rc::gen::element(&fp8_ds_mla_rows(), &fp8_per_tensor_rows(), &f32_rows());
  s.block_size = *rc::gen::element<std::int64_t>(1, 2, 3, 4, 8, 53, 64, 256);
  std::vector<std::string> names;
  for (const Candidate& candidate :
       explain<CompressStore>({.ratio = ratio, .compressor = {{{.dim = s.format->dim, .format = s.format}}}})) {
    if (candidate.refusal.empty()) names.push_back(candidate.name);
  }
  s.implementation = *rc::gen::elementOf(names);
  s.tokens = ratio == 4 ? *rc::gen::inRange<std::int64_t>(1, 50)
                        : *rc::gen::element<std::int64_t>(127, 128, 129, 200, 256, 270);
  RC_LOG() << "ratio " << ratio << " " << s.format->name << " block " << s.block_size << " " << s.implementation
           << " tokens " << s.tokens << "\n";
  return s;
}

std::vector<std::uint8_t> in_one_step(const Setting& s) {
  Request whole = s.request(0, 0);
  whole.step(0, s.tokens, 1);
  return whole.contents(s.tokens);
}

class CompressorProperty : public testing::TestWithParam<int> {};

TEST_P(CompressorProperty, ChunksBlocksAndUnusedBytesDoNotMatter) {
  EXPECT_TRUE(rc::check([this] {
    const Setting s = any_setting(GetParam());
    const std::vector<std::uint8_t> want = in_one_step(s);
    Request cut =
        s.request(*rc::gen::inRange<std::uint64_t>(1, 1000), *rc::gen::element<std::uint8_t>(0xFF, 0x7F, 0xA5));
    const auto longest = *rc::gen::element<std::int64_t>(1, 2, 5, 131);
    for (std::int64_t pos = 0; pos < s.tokens;) {
      const std::int64_t n = std::min(s.tokens - pos, *rc::gen::inRange<std::int64_t>(1, longest + 1));
      cut.step(pos, n, 1, *rc::gen::inRange<std::int64_t>(0, 3));
      pos += n;
    }
    RC_ASSERT(cut.contents(s.tokens) == want);
  }));
}

TEST_P(CompressorProperty, TokenByTokenIsOneStep) {
  EXPECT_TRUE(rc::check([this] {
    const Setting s = any_setting(GetParam());
    Request single = s.request(7, 0xFF);
    for (std::int64_t pos = 0; pos < s.tokens; ++pos) single.step(pos, 1, 1);
    RC_ASSERT(single.contents(s.tokens) == in_one_step(s));
  }));
}

// A rejected draft is written over by the token that really stands there; entries that drafts closed are closed again.
TEST_P(CompressorProperty, RejectedDraftsLeaveNoTrace) {
  EXPECT_TRUE(rc::check([this] {
    const Setting s = any_setting(GetParam());
    Request drafted = s.request(11, 0xFF);
    for (std::int64_t pos = 0; pos < s.tokens;) {
      const std::int64_t accepted = std::min(s.tokens - pos, *rc::gen::inRange<std::int64_t>(1, 20));
      const auto drafts = *rc::gen::inRange<std::int64_t>(0, 8);
      drafted.step(pos, accepted, 1);
      if (drafts > 0) drafted.step(pos + accepted, drafts, 2 + static_cast<std::uint64_t>(pos));
      pos += accepted;
    }
    RC_ASSERT(drafted.contents(s.tokens) == in_one_step(s));
  }));
}

INSTANTIATE_TEST_SUITE_P(Ratio, CompressorProperty, testing::Values(4, 128));

}  // namespace
}  // namespace smla
