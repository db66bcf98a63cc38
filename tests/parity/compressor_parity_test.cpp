#include <gtest/gtest.h>

#include "parity/accepted.h"
#include "parity/compressor_compare.h"

namespace smla {
namespace {

using test::accepted;

using namespace compressor_cases;

TEST(CompressorParity, SaveStateIsExact) {
  for (const CompressorCase& c : all_cases()) {
    const CompressorInputs want = make_inputs(c);
    Plan<SaveState>(c.save(), {.implementation = "ref"}).run(want.save);
    for (const std::string& name : accepted<SaveState>(c.save())) {
      SCOPED_TRACE(testing::Message() << c << " on " << name);
      const CompressorInputs got = make_inputs(c);
      Plan<SaveState>(c.save(), {.implementation = name, .threads = 3}).run(got.save);
      ASSERT_TRUE(want.state.bytes == got.state.bytes);
    }
  }
}

TEST(CompressorParity, CompressStore) {
  std::int64_t entries = 0;
  std::int64_t equal = 0;
  for (const CompressorCase& c : all_cases()) {
    const CompressorInputs want = make_inputs(c);
    Plan<SaveState>(c.save(), {.implementation = "ref"}).run(want.save);
    Plan<CompressStore>(c.store(), {.implementation = "ref"}).run(want.store);
    for (const std::string& name : accepted<CompressStore>(c.store())) {
      SCOPED_TRACE(testing::Message() << c << " on " << name);
      CompressorInputs got = make_inputs(c);
      Plan<SaveState>(c.save(), {.implementation = "ref"}).run(got.save);
      const std::vector<std::uint8_t> before = got.entries.bytes;
      Plan<CompressStore>(c.store(), {.implementation = name, .threads = 3}).run(got.store);
      ASSERT_TRUE(want.state.bytes == got.state.bytes) << "the state was changed";
      for (std::int64_t slot = 0; slot < got.entries.cache.num_slots(); ++slot) {
        ASSERT_EQ(written(want.entries.cache, slot), written(got.entries.cache, slot)) << "slot " << slot;
        if (!written(got.entries.cache, slot)) continue;
        ++entries;
        equal += same_record(want.entries.cache, got.entries.cache, slot) ? 1 : 0;
        expect_close_record(want, got, slot);
        if (HasFatalFailure()) FAIL() << "slot " << slot;
      }
      ASSERT_TRUE(without_records(got.entries) == before) << "bytes outside of the records were changed";
      const std::vector<std::uint8_t> threaded = got.entries.bytes;
      std::copy(before.begin(), before.end(), got.entries.bytes.begin());
      Plan<CompressStore>(c.store(), {.implementation = name, .threads = 1}).run(got.store);
      ASSERT_TRUE(threaded == got.entries.bytes) << "the thread count changed a result";
    }
  }
  EXPECT_GT(entries, 1000);
  // Sums differ in their last fp32 bit: few codes flip. A wrong rounding would leave hardly a record equal.
  EXPECT_GT(equal, entries / 2);
}

/// A call with kv_score does what SaveState and CompressStore do.
TEST(CompressorParity, SavingInTheSameCallIsThePair) {
  for (const CompressorCase& c : all_cases()) {
    for (const std::string& name : accepted<CompressStore>(c.store())) {
      SCOPED_TRACE(testing::Message() << c << " on " << name);
      const CompressorInputs want = make_inputs(c);
      Plan<SaveState>(c.save(), {.implementation = "ref"}).run(want.save);
      Plan<CompressStore>(c.store(), {.implementation = name}).run(want.store);
      const CompressorInputs got = make_inputs(c);
      Plan<CompressStore>(c.store(), {.implementation = name}).run(got.saving());
      ASSERT_TRUE(want.state.bytes == got.state.bytes);
      ASSERT_TRUE(want.entries.bytes == got.entries.bytes);
    }
  }
}

}  // namespace
}  // namespace smla
