#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "bench/device_layer.h"
#include "cases/tolerance.h"
#include "sparsemla/plan.h"

// Whether a layer's cell is right: fused and on several streams it must be what its ops give one after the other, and
// that must be what the host computes.

namespace smla::bench {

namespace {

constexpr double kL2 =
    0.01;  // roundings to bf16 and codes of rows on the way add up to 0.004; one wrong key among 640 is 0.04
constexpr double kL2OfFp8Inputs = 0.08;  // as of `smla run --check`: inputs between two codes may get either

/// How much less than one passed over a chosen entry's score on the host may be, as a share of the largest: queries are
/// rounded to codes after products that the two machines add up in different orders, and so are the inputs of FP8
/// weights before (`fp8_inputs`).
double score_slack(const RowFormat& index_rows, bool fp8_inputs) {
  return index_rows.nope == Element::kE2M1 || fp8_inputs ? 0.1 : 0.02;
}

/// Keeps what a GPU's layer chose; to be observed at all makes it run its ops one after the other.
class TopkRecorder : public LayerObserver {
 public:
  explicit TopkRecorder(Stream stream) : stream_(stream) {}
  void on_stage(Stage, double) override {}
  void on_tensor(std::string_view name, const ConstTensorView& value, std::int64_t) override {
    if (name == "topk" && !value.absent()) topk = to_host(value, stream_);
  }
  HostTensor topk;  ///< [tokens, k], empty where a layer chooses nothing

 private:
  Stream stream_;
};

/// Judges the GPU's choice by the host's scores, and has the host's layer go on with it.
class TopkSubstitute : public LayerObserver {
 public:
  /// @param chosen [tokens, k], the last of them those of `step`
  TopkSubstitute(const LayerStep& step, const HostTensor& chosen, std::int64_t first_position, int ratio, double slack)
      : step_(step), chosen_(chosen), first_position_(first_position), ratio_(ratio), slack_(slack) {}
  void on_stage(Stage, double) override {}
  void on_tensor(std::string_view name, const ConstTensorView& value, std::int64_t first_row) override {
    for (std::int64_t t = 0; name == "index_scores" && t < value.size(0); ++t) {
      const float* row = value.as<float>() + t * value.stride[0];
      const std::vector<float> scores(row, row + visible_entries(first_position_ + first_row + t, ratio_));
      check = worse(check, check_selection(choice(first_row + t), scores, slack_));
    }
    for (std::int64_t t = 0; name == "topk" && t < step_.topk.size(0); ++t) {
      std::ranges::copy(choice(t), static_cast<std::int32_t*>(step_.topk.data) + t * step_.topk.stride[0]);
    }
  }
  Check check;

 private:
  std::span<const std::int32_t> choice(std::int64_t token) const {
    const std::int64_t row = chosen_.size(0) - step_.tokens + token;
    return {chosen_.as<std::int32_t>() + row * chosen_.size(1), static_cast<std::size_t>(chosen_.size(1))};
  }

  const LayerStep& step_;
  const HostTensor& chosen_;
  std::int64_t first_position_;
  int ratio_;
  double slack_;
};

/// Rows [first, first + rows) of a tensor, copied.
HostTensor rows_of(const HostTensor& from, std::int64_t first, std::int64_t rows) {
  HostTensor out(from.dtype(), {rows, from.size(1)});
  const std::size_t row_bytes = from.bytes() / static_cast<std::size_t>(from.size(0));
  std::memcpy(out.data(), static_cast<const std::uint8_t*>(from.data()) + static_cast<std::size_t>(first) * row_bytes,
              out.bytes());
  return out;
}

}  // namespace

Check LayerRun::check(const std::function<void()>& replay) {
  const Step& step = *steps_.back();
  const auto outputs_of = [&](const std::function<void()>& run) {
    fill_bytes(DeviceKind::kCuda, output_.data(), 0xFF, output_.bytes(), stream_);
    run();
    return to_host(std::as_const(output_).view(), stream_);
  };
  const HostTensor got = outputs_of(replay);
  if (const std::int64_t bad = gpu_count_nan(std::as_const(output_).view(), stream_); bad > 0) {
    return {.done = true, .l2 = 0, .failure = fmt::format("{} outputs are NaN or were not written", bad)};
  }
  TopkRecorder recorder(stream_);
  const HostTensor apart = outputs_of([&] { forward(step, &recorder); });
  std::int64_t different = 0;
  for (std::int64_t i = 0; i < got.numel(); ++i)
    different += got.as<BF16>()[i].bits != apart.as<BF16>()[i].bits ? 1 : 0;
  if (different > 0) {
    return {.done = true,
            .l2 = 0,
            .failure =
                fmt::format("{} of {} outputs are not those of the ops one after the other", different, got.numel())};
  }
  return check_on_host(step, got, recorder.topk);
}

Check LayerRun::check_on_host(const Step& step, const HostTensor& got, const HostTensor& chosen) const {
  const LayerConfig& config = layer_.config;
  const std::int64_t request = shape_.requests - 1;
  const std::int64_t tokens = shape_.prefill ? 1 : shape_.tokens;
  const std::int64_t row = shape_.requests * shape_.tokens - tokens;
  const std::int32_t length = step.host_lens.back();

  // The request's blocks, numbered in the order of its table.
  std::deque<HostTensor> memory;
  std::vector<HostTensor> tables;
  LayerCaches caches;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const GroupCaches& group = groups_[g];
    const HostTensor& device_table = step.host_tables[g];
    const std::int32_t* blocks = device_table.as<std::int32_t>() + request * device_table.size(1) + group.first_column;
    HostTensor& table = tables.emplace_back(DType::kI32, std::vector<std::int64_t>{1, device_table.size(1)});
    for (std::int64_t c = 0; c < table.size(1); ++c) {
      table.as<std::int32_t>()[c] = static_cast<std::int32_t>(std::max<std::int64_t>(c - group.first_column, -1));
    }
    for (std::size_t c = 0; c < group.caches.size(); ++c) {
      const PagedCache& from = caches_[group.roles[c]];
      PagedCache& to = caches[group.roles[c]];
      to = from;
      to.num_blocks = group.columns;
      to.base = memory.emplace_back(DType::kU8, std::vector<std::int64_t>{group.columns * from.block_stride_bytes})
                    .as<std::uint8_t>();
      for (std::int64_t b = 0; b < group.columns; ++b) {
        copy_bytes(DeviceKind::kCuda, to.block(b), from.block(blocks[b]),
                   static_cast<std::size_t>(from.block_stride_bytes), stream_);
      }
    }
  }
  const HostTensor all_hidden = to_host(step.hidden.view(), stream_);  // waits for the copies too
  const HostTensor hidden = rows_of(all_hidden, row, tokens);

  const std::vector<std::int32_t> starts{0, static_cast<std::int32_t>(tokens)};
  std::vector<std::int64_t> positions;
  for (std::int64_t t = 0; t < tokens; ++t) positions.push_back(length - tokens + t);
  StepBatch batch{.query_start_loc = ConstTensorView(starts.data(), DType::kI32, {2}),
                  .seq_lens = ConstTensorView(&length, DType::kI32, {1}),
                  .positions = ConstTensorView(positions.data(), DType::kI64, {tokens}),
                  .block_tables = {},
                  .max_seq_len = length,
                  .decode_threshold = tokens};
  for (const HostTensor& table : tables) batch.block_tables.push_back(table.view());
  const AttentionLayer& layer = rounds_inputs() ? *layer_.on_host_rounding : *layer_.on_host;
  StepMetadata metadata(layout_, std::span(&config, 1), layer.options().front_end);
  metadata.build(batch);
  const LayerPlan plan = layer.plan(metadata.shape(), caches);
  HostTensor workspace(DType::kU8, {static_cast<std::int64_t>(plan.workspace_bytes())});
  HostTensor want(DType::kBF16, {tokens, config.hidden_size});
  TopkSubstitute substitute(metadata.layer(0), chosen, positions[0], config.compress_ratio,
                            score_slack(*layer.options().caches.index, rounds_inputs()));
  layer.forward(plan, metadata.layer(0), caches, hidden.view(), want.view(),
                {.data = workspace.data(), .bytes = workspace.bytes()}, {}, &substitute);
  Check out = check_result(rows_of(got, row, tokens), want, rounds_inputs() ? kL2OfFp8Inputs : kL2);
  if (out.failure.empty()) out.failure = substitute.check.failure;
  return out;
}

}  // namespace smla::bench
