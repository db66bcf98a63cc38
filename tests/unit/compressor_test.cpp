#include "sparsemla/ops/compressor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/row_codec.h"
#include "parity/compressor_cases.h"

namespace smla {
namespace {

using namespace compressor_cases;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::vector<std::string> runnable(const CompressStore::Problem& problem) {
  std::vector<std::string> names;
  for (const Candidate& candidate : explain<CompressStore>(problem)) {
    if (candidate.refusal.empty()) names.push_back(candidate.name);
  }
  return names;
}

void run(const CompressorCase& c, const CompressorInputs& in, const std::string& name) {
  Plan<SaveState>(c.save(), {.implementation = name == "ref" ? "ref" : "cpu"}).run(in.save);
  Plan<CompressStore>(c.store(), {.implementation = name}).run(in.store);
}

/// Entry g of the only request, as stored.
std::vector<float> entry(const CompressorCase& c, const CompressorInputs& in, std::int64_t g) {
  std::vector<float> row(static_cast<std::size_t>(c.format->dim));
  decode_row(in.entries.cache, in.entry_slots.as<std::int64_t>()[g * c.ratio + c.ratio - 1 - c.requests[0].first],
             row.data());
  return row;
}

bool untouched(const OwnedCache& owned) {
  return std::all_of(owned.bytes.begin(), owned.bytes.end(), [](std::uint8_t b) { return b == kPoison; });
}

/// Straight from the raw tokens of one request that starts at 0, in double, no pages: e_g, RMSNorm, rotation at g*r
/// (spec 3).
std::vector<double> oracle(const CompressorCase& c, const CompressorInputs& in, std::int64_t g) {
  const int d = c.format->dim;
  const int r = c.ratio;
  const int coff = r == 4 ? 2 : 1;
  const std::int64_t stride = in.kv_score.size(1);
  const auto small = [&](const HostTensor& t, std::int64_t i) {
    return t.dtype() == DType::kF32 ? t.as<float>()[i] : to_float(t.as<BF16>()[i]);
  };
  std::vector<double> e(static_cast<std::size_t>(d));
  double squares = 0;
  for (int channel = 0; channel < d; ++channel) {
    double sum = 0;
    double total = 0;
    for (int group = coff == 2 ? -1 : 0; group <= 0; ++group) {
      for (int k = 0; k < r; ++k) {
        const std::int64_t token = (g + group) * r + k;
        if (token < 0) continue;
        const int column = coff == 2 && group == 0 ? d + channel : channel;
        const float* row = in.kv_score.as<float>() + token * stride + 4;
        const double logit =
            static_cast<double>(row[coff * d + column]) + static_cast<double>(small(in.ape, k * coff * d + column));
        const double weight = std::exp(logit);  // logits of the cases are below 8
        sum += weight;
        total += weight * static_cast<double>(row[column]);
      }
    }
    e[static_cast<std::size_t>(channel)] = total / sum;
    squares += total / sum * total / sum;
  }
  const double inverse = 1.0 / std::sqrt(squares / d + 1e-6);
  for (int channel = 0; channel < d; ++channel)
    e[static_cast<std::size_t>(channel)] *= inverse * static_cast<double>(small(in.norm_weight, channel));
  for (int i = 0; i < 32; ++i) {
    double& even = e[static_cast<std::size_t>(d - 64 + 2 * i)];
    double& odd = e[static_cast<std::size_t>(d - 64 + 2 * i + 1)];
    const double cosine = in.cos_sin.as<float>()[g * r * 64 + i];
    const double sine = in.cos_sin.as<float>()[g * r * 64 + 32 + i];
    const double rotated = even * cosine - odd * sine;
    odd = odd * cosine + even * sine;
    even = rotated;
  }
  return e;
}

TEST(Compressor, MatchesTheStraightLineOracle) {
  const CompressorCase cases[] = {
      {.ratio = 4, .format = &f32_rows(), .requests = {{0, 43}}, .state_block = 3},
      {.ratio = 128, .format = &f32_rows(), .requests = {{0, 300}}, .state_block = 8, .small = DType::kF32},
      {.ratio = 4, .format = &index_f32_rows(), .requests = {{0, 43}}, .state_block = 4},
  };
  for (const CompressorCase& c : cases) {
    for (const std::string& name : runnable(c.store())) {
      SCOPED_TRACE(testing::Message() << c << " on " << name);
      const CompressorInputs in = make_inputs(c);
      run(c, in, name);
      for (std::int64_t g = 0; g < c.tokens() / c.ratio; ++g) {
        const std::vector<float> got = entry(c, in, g);
        const std::vector<double> want = oracle(c, in, g);
        double error = 0;
        double norm = 0;
        for (std::size_t i = 0; i < got.size(); ++i) {
          error += (static_cast<double>(got[i]) - want[i]) * (static_cast<double>(got[i]) - want[i]);
          norm += want[i] * want[i];
        }
        EXPECT_LE(std::sqrt(error), 1e-6 * std::sqrt(norm)) << "entry " << g;
      }
    }
  }
}

// Golden vector G6: zero logits, token t gives its next group t and its own group 100 + t. Channel 1 is 1 everywhere
// and shows the norm.
TEST(Compressor, GoldenPooling) {
  const CompressorCase c{.format = &f32_rows(), .requests = {{0, 8}}, .small = DType::kF32};
  for (const std::string& name : runnable(c.store())) {
    CompressorInputs in = make_inputs(c);
    std::memset(in.kv_score.data(), 0, in.kv_score.bytes());
    std::memset(in.ape.data(), 0, in.ape.bytes());
    std::fill_n(in.norm_weight.as<float>(), 512, 1.0F);
    for (std::int64_t t = 0; t < 8; ++t) {
      float* row = in.kv_score.as<float>() + t * in.kv_score.size(1) + 4;
      row[0] = static_cast<float>(t);
      row[512] = static_cast<float>(100 + t);
      row[1] = row[513] = 1.0F;
    }
    run(c, in, name);
    const std::vector<float> first = entry(c, in, 0);
    const std::vector<float> second = entry(c, in, 1);
    EXPECT_FLOAT_EQ(first[0] / first[1], 101.5F) << name;
    EXPECT_FLOAT_EQ(second[0] / second[1], 53.5F) << name;
    EXPECT_EQ(first[2], 0.0F) << name;
  }
}

TEST(Compressor, OnlyTheLastTokenOfAGroupStores) {
  for (const int ratio : {4, 128}) {
    const CompressorCase c{.ratio = ratio, .format = &bf16_rows(), .requests = {{0, 2 * ratio + 1}}, .state_block = 8};
    for (const std::string& name : runnable(c.store())) {
      CompressorInputs in = make_inputs(c);
      for (std::int64_t t = 0; t < in.entry_slots.numel(); ++t)
        in.entry_slots.as<std::int64_t>()[t] = t;  // also where no group ends
      CompressorInputs bigger = make_inputs(c);
      bigger.entries.allocate(bf16_rows(), 1, 2 * ratio + 1, kPoison);
      bigger.store.compressors[0].entries = bigger.entries.cache;
      bigger.store.entry_slots = in.entry_slots.view();
      run(c, bigger, name);
      for (std::int64_t slot = 0; slot <= 2 * ratio; ++slot) {
        const std::uint8_t* data = row_data(bigger.entries.cache, 0, slot);
        const bool stored =
            std::any_of(data, data + bf16_rows().data_bytes, [](std::uint8_t b) { return b != kPoison; });
        EXPECT_EQ(stored, (slot + 1) % ratio == 0) << name << " slot " << slot;
      }
    }
  }
}

TEST(Compressor, SkipsTokensThatPointNowhere) {
  const CompressorCase c{.format = &fp8_ds_mla_rows(), .requests = {{0, 4}}};
  for (const std::string& name : runnable(c.store())) {
    const auto attempt = [&](auto&& change) {
      CompressorInputs in = make_inputs(c);
      Plan<SaveState>(c.save()).run(in.save);
      change(in);
      Plan<CompressStore>(c.store(), {.implementation = name}).run(in.store);
      return untouched(in.entries);
    };
    EXPECT_FALSE(attempt([](auto&) {})) << name;
    EXPECT_TRUE(attempt([](auto& in) { in.state_slots.template as<std::int64_t>()[3] = -1; })) << name;
    EXPECT_TRUE(attempt([](auto& in) { in.entry_slots.template as<std::int64_t>()[3] = -1; })) << name;
    EXPECT_TRUE(attempt([](auto& in) { in.entry_slots.template as<std::int64_t>()[3] = in.entries.cache.num_slots(); }))
        << name;
    EXPECT_TRUE(attempt([](auto& in) { in.token_to_req.template as<std::int32_t>()[3] = 1; })) << name;
    EXPECT_TRUE(attempt([](auto& in) { in.token_to_req.template as<std::int32_t>()[3] = -1; })) << name;
    EXPECT_TRUE(attempt([](auto& in) { in.positions.template as<std::int64_t>()[3] = -1; })) << name;
    EXPECT_TRUE(attempt([](auto& in) {
      in.positions.template as<std::int64_t>()[3] = std::numeric_limits<std::int64_t>::max();
    })) << name;
    EXPECT_TRUE(attempt([](auto& in) { in.store.cos_sin.shape[0] = 0; })) << name;
    EXPECT_TRUE(attempt([](auto& in) { in.store.compressors[0].block_table.shape[1] = 0; }))
        << name << ": no row of the window can be read";
    EXPECT_TRUE(attempt([](auto& in) {
      in.block_table.template as<std::int32_t>()[0] = static_cast<std::int32_t>(in.state.cache.num_blocks);
    })) << name;
  }
}

TEST(Compressor, RowsThatCannotBeReadCountAsMasked) {
  // Group 1 with its previous group's block outside of the cache pools its own group only, as group 0 would.
  const CompressorCase c{.format = &f32_rows(), .requests = {{0, 8}}, .state_block = 4};
  for (const std::string& name : runnable(c.store())) {
    CompressorInputs in = make_inputs(c);
    Plan<SaveState>(c.save()).run(in.save);
    in.block_table.as<std::int32_t>()[0] = std::numeric_limits<std::int32_t>::max();
    std::memcpy(in.cos_sin.as<float>() + 4 * 64, in.cos_sin.as<float>(), 64 * sizeof(float));
    Plan<CompressStore>(c.store(), {.implementation = name}).run(in.store);
    const std::vector<float> got = entry(c, in, 1);

    CompressorInputs alone = make_inputs(c);
    const std::int64_t width = alone.kv_score.size(1);
    std::memcpy(alone.kv_score.as<float>(), alone.kv_score.as<float>() + 4 * width,
                static_cast<std::size_t>(4 * width) * sizeof(float));
    run(c, alone, name);
    EXPECT_EQ(got, entry(c, alone, 0)) << name;
  }
}

TEST(Compressor, NegativeTableEntriesAreReadAsBlockZero) {
  const CompressorCase c{.format = &f32_rows(), .requests = {{0, 4}}, .state_block = 4};
  for (const std::string& name : runnable(c.store())) {
    CompressorInputs in = make_inputs(c);
    for (std::int64_t t = 0; t < 4; ++t) in.state_slots.as<std::int64_t>()[t] = t;
    in.block_table.as<std::int32_t>()[0] = 0;
    run(c, in, name);
    const std::vector<float> want = entry(c, in, 0);
    in.block_table.as<std::int32_t>()[0] = -5;
    run(c, in, name);
    EXPECT_EQ(entry(c, in, 0), want) << name;
  }
}

TEST(Compressor, ChannelsWithoutFiniteLogitsPoolToZero) {
  const CompressorCase c{.format = &f32_rows(), .requests = {{0, 4}}};
  for (const std::string& name : runnable(c.store())) {
    CompressorInputs in = make_inputs(c);
    for (std::int64_t t = 0; t < 4; ++t) {
      in.kv_score.as<float>()[t * in.kv_score.size(1) + 4 + 1024 + 512 + 9] = -std::numeric_limits<float>::infinity();
    }
    run(c, in, name);
    const std::vector<float> row = entry(c, in, 0);
    EXPECT_EQ(row[9], 0.0F) << name;
    for (const float v : row) ASSERT_TRUE(std::isfinite(v)) << name;
  }
}

TEST(Compressor, SoftmaxIsTakenFromTheLargestLogit) {
  const CompressorCase c{.format = &f32_rows(), .requests = {{0, 8}}, .small = DType::kF32};
  for (const std::string& name : runnable(c.store())) {
    std::vector<float> want;
    for (const float shift : {0.0F, 1024.0F, -1024.0F}) {
      CompressorInputs in = make_inputs(c);
      std::memset(in.ape.data(), 0, in.ape.bytes());
      for (std::int64_t t = 0; t < 8; ++t) {
        float* logits = in.kv_score.as<float>() + t * in.kv_score.size(1) + 4 + 1024;
        for (int i = 0; i < 1024; ++i)
          logits[i] = std::round(16.0F * logits[i]) / 16.0F + shift;  // exact at every shift
      }
      run(c, in, name);
      if (shift == 0.0F) want = entry(c, in, 1);
      EXPECT_EQ(entry(c, in, 1), want) << name << " shift " << shift;
    }
  }
}

// The stored forms of one entry: F32 exact, bf16 rounded once, per-tensor rows and group-scaled rows quantised from the
// bf16 number.
TEST(Compressor, RoundsToBf16BeforeTheQuantiser) {
  for (const RowFormat* format : {&bf16_rows(), &fp8_per_tensor_rows(), &fp8_ds_mla_rows()}) {
    const CompressorCase exact{.format = &f32_rows(), .requests = {{0, 8}}};
    CompressorCase c = exact;
    c.format = format;
    for (const std::string& name : runnable(c.store())) {
      const CompressorInputs a = make_inputs(exact);
      const CompressorInputs b = make_inputs(c);
      run(exact, a, name);
      run(c, b, name);
      for (std::int64_t g = 0; g < 2; ++g) {
        std::vector<float> rounded = entry(exact, a, g);
        for (float& v : rounded) v = to_float(to_bf16(v));
        OwnedCache one;
        one.allocate(*format, 1, 1, 0);
        one.cache.scale = b.entries.cache.scale;
        encode_row(one.cache, 0, rounded.data());
        std::vector<float> want(512);
        decode_row(one.cache, 0, want.data());
        EXPECT_EQ(entry(c, b, g), want) << format->name << " on " << name;
      }
    }
  }
}

TEST(Compressor, HadamardComesAfterTheRotation) {
  const CompressorCase plain{.format = &index_f32_rows(), .requests = {{0, 8}}};
  CompressorCase c = plain;
  c.hadamard = true;
  for (const std::string& name : runnable(c.store())) {
    const CompressorInputs a = make_inputs(plain);
    const CompressorInputs b = make_inputs(c);
    run(plain, a, name);
    run(c, b, name);
    std::vector<float> want = entry(plain, a, 1);
    hadamard(want.data(), 128);
    EXPECT_EQ(entry(c, b, 1), want) << name;
  }
}

// Golden vector G4, an MXFP4 block.
TEST(Compressor, GoldenMxfp4Block) {
  OwnedCache cache;
  cache.allocate(index_mxfp4_rows(), 1, 2, kPoison);
  std::vector<float> row(128, 0.0F);
  for (int i = 0; i < 32; ++i) row[static_cast<std::size_t>(32 + i)] = static_cast<float>(i - 16) / 4.0F;
  encode_row(cache.cache, 1, row.data());
  const std::uint8_t expected[] = {0xEE, 0xDE, 0xDD, 0xCC, 0xCC, 0xAB, 0xAA, 0x89,
                                   0x00, 0x21, 0x22, 0x43, 0x44, 0x54, 0x55, 0x66};
  EXPECT_EQ(std::memcmp(row_data(cache.cache, 0, 1) + 16, expected, 16), 0);
  EXPECT_EQ(row_scales(cache.cache, 0, 1)[1], 127);
  EXPECT_EQ(row_scales(cache.cache, 0, 1)[0], 1);  // an all-zero block: 2^-126
}

TEST(SaveState, AddsTheApeOfThePositionInItsGroup) {
  const CompressorCase c{.format = &index_f32_rows(), .requests = {{6, 3}}, .small = DType::kF32};
  for (const std::string name : {"ref", "cpu"}) {
    const CompressorInputs in = make_inputs(c);
    Plan<SaveState>(c.save(), {.implementation = name}).run(in.save);
    for (std::int64_t t = 0; t < 3; ++t) {
      std::vector<float> row(512);
      decode_row(in.state.cache, in.state_slots.as<std::int64_t>()[t], row.data());
      const float* raw = in.kv_score.as<float>() + t * in.kv_score.size(1) + 4;
      for (int i = 0; i < 256; ++i) {
        ASSERT_EQ(row[static_cast<std::size_t>(i)], raw[i]) << name;
        ASSERT_EQ(row[static_cast<std::size_t>(256 + i)], raw[256 + i] + in.ape.as<float>()[(6 + t) % 4 * 256 + i])
            << name;
      }
    }
  }
}

TEST(SaveState, SlotsThatPointNowhereWriteNothing) {
  const CompressorCase c{.format = &f32_rows(), .requests = {{0, 5}}, .unmapped = 1};
  for (const std::string name : {"ref", "cpu"}) {
    CompressorInputs in = make_inputs(c);
    const std::int64_t bad[] = {-1, in.state.cache.num_slots(), std::numeric_limits<std::int64_t>::max(),
                                std::numeric_limits<std::int64_t>::min()};
    for (std::int64_t t = 0; t < 4; ++t) in.state_slots.as<std::int64_t>()[t] = bad[t];
    const std::vector<std::uint8_t> before = in.state.bytes;
    Plan<SaveState>(c.save(), {.implementation = name}).run(in.save);
    EXPECT_TRUE(in.state.bytes == before) << name;
  }
}

TEST(CompressorErrors, NameTheTensorWhatWasGotAndWhatWasExpected) {
  const CompressorCase c{.format = &fp8_ds_mla_rows(), .requests = {{0, 4}}};
  const auto save = [&](auto&& change) {
    CompressorInputs in = make_inputs(c);
    change(in.save);
    Plan<SaveState>(c.save()).run(in.save);
  };
  const auto store = [&](auto&& change) {
    CompressorInputs in = make_inputs(c);
    change(in.store);
    Plan<CompressStore>(c.store()).run(in.store);
  };
  EXPECT_THAT([&] { save([](auto& a) { a.kv_score = a.kv_score.slice(1, 0, 1024); }); },
              ThrowsMessage<InvalidArgument>("save_state: kv_score: got [4, 1024] F32, expected [4, 2048] F32"));
  EXPECT_THAT([&] { save([](auto& a) { a.ape = a.ape.slice(0, 0, 3); }); },
              ThrowsMessage<InvalidArgument>("save_state: ape: got [3, 1024] BF16, expected [4, 1024] F32 or BF16"));
  EXPECT_THAT([&] { save([](auto& a) { a.state_slots.shape[0] = 9; }); },
              ThrowsMessage<InvalidArgument>("save_state: state_slots: got [9] I64, expected at most 4 tokens"));
  EXPECT_THAT([&] { save([](auto& a) { a.state.format = &state_rows(512, 1); }); },
              ThrowsMessage<InvalidArgument>("save_state: state: got state_c128 rows, expected state_c4 rows"));
  EXPECT_THAT([&] { save([](auto& a) { a.state.block_stride_bytes += 2; }); },
              ThrowsMessage<InvalidArgument>(HasSubstr("off fp32 alignment")));
  EXPECT_THAT([&] { store([](auto& a) { a.entry_slots.shape[0] = 3; }); },
              ThrowsMessage<InvalidArgument>("compress_store: entry_slots: got [3] I64, expected [4] I64"));
  EXPECT_THAT([&] { store([](auto& a) { a.compressors[0].block_table.dtype = DType::kI64; }); },
              ThrowsMessage<InvalidArgument>(HasSubstr("compressors[0].block_table: got")));
  EXPECT_THAT([&] { store([](auto& a) { a.compressors[0].entries.format = &bf16_rows(); }); },
              ThrowsMessage<InvalidArgument>(HasSubstr("compress_store: compressors[0].entries: got")));
  EXPECT_THAT([] { Plan<SaveState>({.ratio = 8}); },
              ThrowsMessage<InvalidArgument>("save_state: ratio: got 8, expected 4 or 128"));
  EXPECT_THAT([] { Plan<SaveState>({.ratio = 128, .dim = 128}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("got dim 128 with 1 halves")));
  EXPECT_THAT([] { Plan<CompressStore>({}); },
              ThrowsMessage<InvalidArgument>(
                  "compress_store: compressors[0].format: got none, expected the entry cache's row format"));
  EXPECT_THAT([] { Plan<CompressStore>({.compressor = {{{.format = &index_fp8_rows()}}}}); },
              ThrowsMessage<InvalidArgument>(
                  "compress_store: compressors[0].format: got index_fp8 with 128 dims, expected 512 dims"));
  EXPECT_THAT([] { Plan<CompressStore>({.compressor = {{{.format = &f32_rows(), .hadamard = true}}}}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("hadamard: got dim 512")));
}

TEST(CompressorErrors, OfASecondCompressorSayWhich) {
  const CompressorCase layer{.format = &fp8_ds_mla_rows(), .requests = {{0, 4}}};
  const CompressorCase index{.format = &index_fp8_rows(), .requests = {{0, 4}}};
  const auto run = [&](auto&& change) {
    const CompressorInputs in[] = {make_inputs(layer), make_inputs(index)};
    CompressStore::Args args = together(in[0].saving(), in[1].saving());
    change(args);
    Plan<CompressStore>(together(layer, index)).run(args);
  };
  EXPECT_NO_THROW(run([](auto&) {}));
  EXPECT_THAT([&] { run([](auto& a) { a.compressors[1].state_slots.shape[0] = 3; }); },
              ThrowsMessage<InvalidArgument>("compress_store: entry_slots: got [4] I64, expected [3] I64"));
  EXPECT_THAT([&] { run([](auto& a) { a.compressors[1].block_table.dtype = DType::kI64; }); },
              ThrowsMessage<InvalidArgument>(HasSubstr("compressors[1].block_table: got")));
  EXPECT_THAT([&] { run([](auto& a) { a.compressors[1].norm_weight = a.compressors[0].norm_weight; }); },
              ThrowsMessage<InvalidArgument>(HasSubstr("compressors[1].norm_weight: got [512]")));
  EXPECT_THAT([&] { run([](auto& a) { a.compressors[1].state = a.compressors[0].state; }); },
              ThrowsMessage<InvalidArgument>(HasSubstr("compress_store: compressors[1].state: got state_c4 rows")));
  EXPECT_THAT([&] { run([](auto& a) { a.compressors[1].entries.format = &index_mxfp4_rows(); }); },
              ThrowsMessage<InvalidArgument>(HasSubstr("compress_store: compressors[1].entries: got")));
  EXPECT_THAT([&] { run([](auto& a) { a.compressors[1].kv_score = {}; }); },
              ThrowsMessage<InvalidArgument>("compress_store: compressors[1].kv_score: got none, expected a tensor, as "
                                             "compressors[0].kv_score"));
  EXPECT_THAT([&] { run([](auto& a) { a.compressors[1].ape = a.compressors[0].ape; }); },
              ThrowsMessage<InvalidArgument>(HasSubstr("compressors[1].ape: got [4, 1024]")));
  const auto plan = [](auto&& change) {
    return [change] {
      CompressStore::Problem p{.compressors = 2};
      p.compressor[0].format = &fp8_ds_mla_rows();
      p.compressor[1] = {.dim = 128, .format = &index_fp8_rows()};
      change(p);
      Plan<CompressStore> made(p);
    };
  };
  EXPECT_NO_THROW(plan([](auto&) {})());
  EXPECT_THAT(plan([](auto& p) { p.compressor[1].format = nullptr; }),
              ThrowsMessage<InvalidArgument>(
                  "compress_store: compressors[1].format: got none, expected the entry cache's row format"));
  for (const int compressors : {-1, 0, 3}) {
    EXPECT_THAT(plan([=](auto& p) { p.compressors = compressors; }),
                ThrowsMessage<InvalidArgument>("compress_store: compressors: got " + std::to_string(compressors) +
                                               ", expected 1 to 2"));
  }
  EXPECT_THAT(plan([](auto& p) { p.ratio = 128; }),
              ThrowsMessage<InvalidArgument>(HasSubstr("got dim 128 with 1 halves")));
}

}  // namespace
}  // namespace smla
