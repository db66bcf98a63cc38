#include "run_combinations.h"

#include "arguments.h"
#include "sparsemla/front_end.h"

namespace smla {

namespace {

/// Options of cache rows and queries, each of which some rows leave without effect.
void check_formats(const CLI::App& command, const RunArguments& a) {
  for (const char* option : {"--cache-dtype", "--index-dtype", "--kv-scale", "--q-scale"}) {
    refuse_useless(command, option, a.precision == "f32", "beside --precision f32, which makes queries and caches f32",
                   "one of the two");
  }
  const FrontEnd chosen = front_end(a.front_end);
  refuse_useless(command, "--gather-prefill", chosen != FrontEnd::kFlashMla, "beside --front-end " + a.front_end,
                 "--front-end flashmla, which alone gathers");
  refuse_useless(command, "--gather-prefill", a.precision == "f32", "beside --precision f32", "fp8_ds_mla rows");
  if (a.precision == "f32") return;
  const RowFormat& rows = cache_rows(chosen, a.cache_dtype.empty() ? "auto" : a.cache_dtype, a.strict);
  const std::string beside = "beside " + std::string(rows.name) + " rows";
  refuse_useless(command, "--gather-prefill", rows.scale != ScaleKind::kUe8m0, beside, "--cache-dtype fp8_ds_mla");
  for (const char* option : {"--kv-scale", "--q-scale"})
    refuse_useless(command, option, rows.scale != ScaleKind::kPerTensor, beside, "--cache-dtype fp8_per_tensor");
}

}  // namespace

void check_combinations(const CLI::App& command, const RunArguments& a) {
  check_formats(command, a);
  for (const char* option : {"--prefix-retention", "--prefix-compare"})
    refuse_useless(command, option, !a.prefix_cache, "without --prefix-cache", "--prefix-cache");
  refuse_useless(command, "--clock", a.clock == "cpu" && a.device == "cuda", "beside --device cuda", "--device cpu");
  refuse_useless(command, "--clock", a.clock == "cpu" && a.arrival_speed > 0, "beside --arrival-speed",
                 "all requests at once, for that clock stands still while nothing comes");
  refuse_useless(command, "--dump", a.prefix_compare, "beside --prefix-compare, which runs twice", "one of the two");
  refuse_useless(command, "--dump", a.tensor_parallel * a.context_parallel > 1,
                 "beside --tp or --cp, whose ranks run at the same time", "one rank");
  refuse_useless(command, "--prefix-cache", a.context_parallel > 1, "beside --cp", "one of the two");
  refuse_useless(command, "--kv-bytes", a.kv_blocks > 0, "beside --kv-blocks", "one of the two");
  for (const char* option : {"--fp8-weights", "--nvfp4-weights"})
    refuse_useless(command, option, a.weights.empty(), "without --weights", "a checkpoint, whose weights it is about");
  for (const char* option : {"--adaptive-speculation", "--draft-acceptance", "--dspark"})
    refuse_useless(command, option, a.speculative == 0, "without --speculative", "--speculative of 1 or more");
  for (const char* option : {"--no-graphs", "--stage-times"})
    refuse_useless(command, option, a.device != "cuda", "beside --device " + a.device, "--device cuda");
  refuse_useless(command, "--no-graphs", a.stage_times, "beside --stage-times, which runs no graphs", "one of the two");
  refuse_useless(command, "--plant-error", a.check == 0, "beside --check 0", "--check of 1 or more, to see it fail");
  refuse_useless(command, "--index-topk-freq", !a.index_topk_pattern.empty(), "beside --index-topk-pattern",
                 "one of the two");
  refuse_useless(command, "--dump-step", a.dump.empty(), "without --dump", "--dump DIR");
}

}  // namespace smla
