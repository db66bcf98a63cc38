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

/// Two compressors in one call do what each does alone, with rows that are there and rows that they save.
TEST(CompressorParity, TwoInOneCallAreEachAlone) {
  for (const auto& [layer, index] : pairs()) {
    const CompressStore::Problem problem = together(layer, index);
    for (const std::string& name : accepted<CompressStore>(problem)) {
      for (const bool saves : {false, true}) {
        SCOPED_TRACE(testing::Message() << layer << " and " << index << " on " << name << (saves ? ", saving" : ""));
        const CompressorInputs want[] = {make_inputs(layer), make_inputs(index, 2)};
        const CompressorInputs got[] = {make_inputs(layer), make_inputs(index, 2)};
        for (const auto* in : {&want[0], &want[1], &got[0], &got[1]}) {
          if (!saves || in == &want[0] || in == &want[1]) {
            Plan<SaveState>(in == &want[0] || in == &got[0] ? layer.save() : index.save(), {.implementation = "ref"})
                .run(in->save);
          }
        }
        CompressStore::Args alone = want[1].store;
        alone.entry_slots = want[0].store.entry_slots;
        Plan<CompressStore>(layer.store(), {.implementation = name}).run(want[0].store);
        Plan<CompressStore>(index.store(), {.implementation = name}).run(alone);
        Plan<CompressStore>(problem, {.implementation = name})
            .run(saves ? together(got[0].saving(), got[1].saving()) : together(got[0].store, got[1].store));
        for (const int i : {0, 1}) {
          ASSERT_TRUE(want[i].state.bytes == got[i].state.bytes) << i;
          ASSERT_TRUE(want[i].entries.bytes == got[i].entries.bytes) << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace smla
