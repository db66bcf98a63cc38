#include "engine/step_tensors.h"

#include <algorithm>
#include <utility>

#include "engine/prompt.h"
#include "engine/synthetic.h"

namespace smla {

namespace {

/// Drafts accepted in a row; a coin of (seed, request, position), so that a replay after preemption or another batch
/// sees the same tokens.
std::int64_t accepted_drafts(const Request& r, std::int64_t drafts, const EngineOptions& options) {
  std::int64_t accepted = 0;
  while (accepted < drafts) {
    const auto position = static_cast<std::uint64_t>(r.computed + 1 + accepted);
    const std::uint64_t coin =
        mix(mix(options.seed, 0xACCE97U), mix(static_cast<std::uint64_t>(r.result.spec.id), position));
    if (unit(coin) >= options.draft_acceptance) break;
    ++accepted;
  }
  return accepted;
}

/// Wrong positions: neighbours swapped.
void swap_positions(StepTensors& batch, const EngineOptions& options) {
  for (std::int64_t t = 0; t < batch.positions.numel(); ++t) {
    std::int64_t& position = batch.positions.as<std::int64_t>()[t];
    if (position + 1 < options.max_model_len) position ^= 1;
  }
}

}  // namespace

StepTensors make_step(std::vector<Scheduled> parts, const EngineOptions& options) {
  StepTensors b;
  b.parts = std::move(parts);
  const auto requests_in = static_cast<std::int64_t>(b.parts.size());
  b.query_start_loc = HostTensor(DType::kI32, {requests_in + 1});
  b.seq_lens = HostTensor(DType::kI32, {requests_in});
  for (std::int64_t i = 0; i < requests_in; ++i) {
    const Scheduled& part = b.parts[static_cast<std::size_t>(i)];
    const Request& r = *part.request;
    const std::int64_t accepted = accepted_drafts(r, part.drafts, options);
    for (std::int64_t j = 0; j < part.tokens; ++j) {
      b.rows.push_back({.request = r.result.spec.id,
                        .position = r.computed + j,
                        .rejected = j > part.tokens - 1 - part.drafts + accepted});
    }
    const std::int64_t seq_len = r.computed + part.tokens;
    b.query_start_loc.as<std::int32_t>()[i + 1] = static_cast<std::int32_t>(b.rows.size());
    b.seq_lens.as<std::int32_t>()[i] = static_cast<std::int32_t>(seq_len);
    b.max_seq_len = std::max(b.max_seq_len, seq_len);
  }
  b.positions = HostTensor(DType::kI64, {static_cast<std::int64_t>(b.rows.size())});
  for (std::size_t t = 0; t < b.rows.size(); ++t) b.positions.as<std::int64_t>()[t] = b.rows[t].position;
  if (options.planted_error == PlantedError::kPosition) swap_positions(b, options);
  return b;
}

DType activations_of(const EngineOptions& options) {
  return options.layer.precision == Precision::kF32 ? DType::kF32 : DType::kBF16;
}

HostTensor step_inputs(const StepTensors& batch, const EngineOptions& options) {
  HostTensor x(activations_of(options), {static_cast<std::int64_t>(batch.rows.size()), options.model.hidden_size});
  const TensorView rows = x.view();
  std::vector<const RequestSpec*> specs;
  for (const Scheduled& part : batch.parts)
    specs.insert(specs.end(), static_cast<std::size_t>(part.tokens), &part.request->result.spec);
#pragma omp parallel for schedule(static)
  for (std::size_t t = 0; t < batch.rows.size(); ++t) {
    const auto row = static_cast<std::int64_t>(t);
    const StepRow& r = batch.rows[t];
    const TokenRun run = r.rejected ? TokenRun{.stream = 1, .id = r.request} : run_at(*specs[t], r.position);
    synthetic_hidden(options.seed, run.stream, run.id, r.position, rows.slice(0, row, row + 1));
  }
  return x;
}

}  // namespace smla
