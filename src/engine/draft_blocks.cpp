#include "engine/draft_blocks.h"

#include <algorithm>

#include "engine/prompt.h"
#include "engine/synthetic.h"

namespace smla {

namespace {

constexpr std::uint64_t kNoise = 3;  // the stream of hidden states that noise tokens have

/// The layout of the layers from `first` on, with those groups in which they have caches.
KvLayout layout_of_last(const KvLayout& all, std::int64_t first, std::vector<std::size_t>* groups) {
  KvLayout out = all;
  out.groups.clear();
  out.num_layers = all.num_layers - first;
  for (std::size_t g = 0; g < all.groups.size(); ++g) {
    CacheGroup group = all.groups[g];
    std::erase_if(group.caches, [&](const LayerCache& c) { return c.layer < first; });
    if (group.caches.empty()) continue;
    for (LayerCache& c : group.caches) c.layer -= first;
    out.groups.push_back(std::move(group));
    groups->push_back(g);
  }
  return out;
}

}  // namespace

StepTensors make_draft_blocks(const StepTensors& batch) {
  StepTensors out;
  const auto decodes =
      std::ranges::find_if_not(batch.parts, [](const Scheduled& part) { return part.request->decoding(); }) -
      batch.parts.begin();
  out.query_start_loc = HostTensor(DType::kI32, {decodes + 1});
  out.seq_lens = HostTensor(DType::kI32, {decodes});
  for (std::int64_t i = 0; i < decodes; ++i) {
    const Scheduled& part = batch.parts[static_cast<std::size_t>(i)];
    const Request& r = *part.request;
    for (std::int64_t j = 0; j < part.drafts; ++j)
      out.rows.push_back({.request = r.result.spec.id, .position = r.computed + j});
    const std::int64_t seq_len = part.drafts > 0 ? r.computed + part.drafts : 0;
    out.query_start_loc.as<std::int32_t>()[i + 1] = static_cast<std::int32_t>(out.rows.size());
    out.seq_lens.as<std::int32_t>()[i] = static_cast<std::int32_t>(seq_len);
    out.max_seq_len = std::max(out.max_seq_len, seq_len);
  }
  out.positions = HostTensor(DType::kI64, {static_cast<std::int64_t>(out.rows.size())});
  for (std::size_t t = 0; t < out.rows.size(); ++t) out.positions.as<std::int64_t>()[t] = out.rows[t].position;
  return out;
}

HostTensor draft_inputs(const StepTensors& blocks, const StepTensors& batch, const EngineOptions& options) {
  HostTensor x(activations_of(options), {static_cast<std::int64_t>(blocks.rows.size()), options.model.hidden_size});
  const TensorView rows = x.view();
  std::int64_t row = 0;
  for (const Scheduled& part : batch.parts) {
    if (!part.request->decoding()) break;
    for (std::int64_t j = 0; j < part.drafts; ++j, ++row) {
      const TensorView at = rows.slice(0, row, row + 1);
      const RequestSpec& spec = part.request->result.spec;
      const TokenRun run = run_at(spec, part.request->computed);
      if (j == 0) {
        synthetic_hidden(options.seed, run.stream, run.id, part.request->computed, at);
      } else {
        synthetic_hidden(options.seed, kNoise, 0, 0, at);
      }
    }
  }
  return x;
}

DraftStep::DraftStep(const KvLayout& pool, std::span<const LayerConfig> configs, std::size_t stack, FrontEnd front_end,
                     DeviceKind device)
    : metadata_(layout_of_last(pool, static_cast<std::int64_t>(stack), &groups_), configs.subspan(stack), front_end,
                device) {}

StepBatch DraftStep::upload(DeviceKind device, const StepTensors& blocks, const HostTensor& hidden,
                            const StepSizes& sizes, std::span<const ConstTensorView> tables, std::int64_t drafts,
                            Stream stream) {
  std::vector<ConstTensorView> own;
  for (const std::size_t g : groups_) own.push_back(tables[g]);
  StepBatch batch = step_.upload(device, blocks, hidden, sizes, std::move(own), stream);
  batch.decode_threshold = drafts;
  batch.causal = false;
  batch.dspark_tokens = drafts;
  return batch;
}

}  // namespace smla
