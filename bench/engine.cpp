// The host's part of a decode step: what is scheduled, laid out and moved to the device before the first layer runs.
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "bench/bench.h"
#include "engine/block_tables.h"
#include "engine/device_step.h"

namespace smla::bench {

namespace {

constexpr std::int64_t kRequests = 256;
constexpr std::int64_t kOthers = 8192;  ///< tokens of all requests but the longest, and a few more
constexpr std::int64_t kMaxLen = std::int64_t{1} << 20;
constexpr std::int64_t kBlocks = 400'000;

/// The cache groups of layers of all three kinds, without memory behind their blocks: rows are not written here.
KvLayout groups_alone(const Options& options) {
  const std::array layers{layer_of_ratio(options, 1), layer_of_ratio(options, 4), layer_of_ratio(options, 128)};
  KvLayout layout = make_kv_layout(layers, {});
  std::vector<CacheGroup> groups;
  for (CacheGroup& group : layout.groups) {
    group.name = group.name.substr(0, group.name.find('/'));
    group.caches.clear();
    group.page_bytes = 0;
    if (groups.empty() || groups.back().name != group.name) groups.push_back(group);
  }
  layout.groups = groups;
  layout.block_stride_bytes = 0;
  return layout;
}

/// Requests that decode, one of them long.
class Decodes {
 public:
  Decodes(const Options& options, std::int64_t longest)
      : device_(options.device),
        pool_(groups_alone(options), kBlocks),
        scheduler_(pool_, 2 * kRequests, kRequests, 0, false),
        tables_(pool_.layout(), device_, kRequests, kMaxLen),
        hidden_(DType::kBF16, {kRequests, 8}) {
    engine_.max_model_len = kMaxLen;
    for (std::int64_t i = 0; i < kRequests; ++i) {
      const std::int64_t context = i == 0 ? longest : kOthers + 7 * i;
      requests_.push_back(std::make_unique<Request>(
          RequestSpec{.id = i, .prompt_tokens = context, .output_tokens = kMaxLen - context}, pool_.layout()));
      Request& r = *requests_.back();
      r.result.generated = 1;
      r.computed = context;
      r.blocks.reserve_live(pool_, context);
      scheduler_.adopt(&r);
    }
  }

  /// One step. @return bytes that it moved to the device, hidden states left out.
  std::int64_t step() {
    std::vector<Scheduled> parts = scheduler_.schedule();
    tables_.keep_rows(parts);
    const StepTensors batch = make_step(std::move(parts), engine_);
    const StepSizes sizes = padded_sizes(batch, kMaxLen);
    tables_.update(batch.parts, {});
    const StepBatch on_device =
        step_.upload(device_, batch, hidden_, sizes, tables_.views(sizes.requests, sizes.max_seq_len), {});
    synchronize(device_);
    for (const Scheduled& part : batch.parts) {
      ++part.request->computed;
      ++part.request->result.generated;
      part.request->blocks.slide(pool_, part.request->computed);
    }
    std::int64_t bytes = tables_.moved();
    for (const ConstTensorView& v : {on_device.query_start_loc, on_device.seq_lens, on_device.positions})
      bytes += v.numel() * size_of(v.dtype);
    return bytes;
  }
  std::int64_t table_bytes() const { return tables_.bytes(); }

 private:
  DeviceKind device_;
  EngineOptions engine_;
  KvPool pool_;
  Scheduler scheduler_;
  BlockTables tables_;
  DeviceStep step_;
  HostTensor hidden_;
  std::vector<std::unique_ptr<Request>> requests_;
};

}  // namespace

void bench_engine(const Options& options, const Emit& emit) {
  if (!options.decode) return;
  for (const std::int64_t longest : {std::int64_t{8192}, std::int64_t{524'288}, std::int64_t{1'000'000}}) {
    Decodes decodes(options, longest);
    Row row{.group = "engine", .name = "step", .shape = {}, .implementation = "host", .time = {}};
    std::int64_t bytes = 0;
    std::int64_t steps = 0;
    decodes.step();  // all live columns, once
    row.time = measure(options.measure, [&](std::int64_t) {
      bytes += decodes.step();
      ++steps;
    });
    row.bytes = static_cast<double>(bytes) / static_cast<double>(steps);
    row.shape = std::to_string(kRequests) + " decodes, the longest of " + std::to_string(longest) + " tokens; moves " +
                std::to_string(bytes / steps) + " bytes a step, tables of " +
                std::to_string(decodes.table_bytes() / 1'000'000) + " MB stay";
    emit(row);
  }
}

}  // namespace smla::bench
