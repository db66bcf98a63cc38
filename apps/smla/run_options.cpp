#include "run_options.h"

#include <CLI/CLI.hpp>

#include "arguments.h"

namespace smla {

void add_engine_options(CLI::App* c, RunArguments& arguments) {
  RunArguments* a = &arguments;
  c->add_option("--model", a->model,
                "Preset (v4-flash, v4-pro, tiny) or a config.json (default: that of --weights, else tiny)");
  c->add_option("--weights", a->weights,
                "Checkpoint: a folder with safetensors, or one file (default: random weights of --seed)");
  c->add_option(
       "--fp8-weights", a->fp8_weights,
       "The checkpoint's FP8 weights: on keeps them, off dequantises them, auto keeps them on CPUs and, "
       "where --max-seqs and their drafts are up to 128 tokens (with --tp 16), on GPUs of compute capability 9.0")
      ->check(one_of({"auto", "on", "off"}))
      ->capture_default_str();
  c->add_option("--nvfp4-weights", a->nvfp4_weights,
                "The checkpoint's NVFP4 weights: on keeps them, off dequantises them, auto keeps them on CPUs")
      ->check(one_of({"auto", "on", "off"}))
      ->capture_default_str();
  c->add_option("--layers", a->layers,
                "N: the first N layers; a list has a comma: 0,2,3 or 3, (default: all decoder layers)");
  c->add_option("--trace", a->trace,
                "Request trace, JSON Lines: timestamp (ms), input_length, output_length (default: bundled slice)");
  c->add_option("--max-requests", a->max_requests,
                "Only the first N requests (default: 16 of the bundled slice, all of a file)")
      ->check(whole(1));
  c->add_option("--scale-lengths", a->scale_lengths,
                "Factor on prompt and output lengths (default: 0.15 for the bundled slice, 1 for a file)")
      ->check(real(1e-9, 1e3));
  c->add_option("--arrival-speed", a->arrival_speed,
                "Replay arrivals this many times faster than recorded, the first at once; 0: all at once")
      ->check(real(0, 1e9))
      ->capture_default_str();
  c->add_option("--max-batched-tokens", a->max_batched_tokens, "Tokens of a step")
      ->check(whole(1, 1 << 20))
      ->capture_default_str();
  c->add_option("--max-seqs", a->max_seqs, "Requests in flight")->check(whole(1, 1 << 16))->capture_default_str();
  c->add_option("--kv-blocks", a->kv_blocks,
                "Blocks of the KV pool (default: enough for max-seqs of the longest, at most 4 GiB; with "
                "--prefix-cache 4 GiB)")
      ->check(whole(1, std::int64_t{1} << 31));
  c->add_option("--kv-bytes", a->kv_bytes, "Bytes of the KV pool in place of --kv-blocks, e.g. 500M or 2GB");
  c->add_option("--front-end", a->front_end, "flashmla, flashinfer, sm120, auto, or one of upstream's backend names")
      ->capture_default_str();
  c->add_flag("--strict", a->strict, "Refuse what upstream's kernels of that front-end refuse, with its texts");
  c->add_flag("--gather-prefill", a->gather_prefill,
              "flashmla: prefills copy their rows into a bf16 workspace first, as upstream does");
  c->add_option("--cache-dtype", a->cache_dtype,
                "fp8_ds_mla, bf16, fp8_per_tensor (queries e4m3 too), auto, or upstream's names: bfloat16, fp8, "
                "fp8_e4m3, fp8_inc (default: the "
                "front-end's: bf16 with flashinfer, else fp8_ds_mla)");
  c->add_option("--index-dtype", a->index_dtype, "Rows of the index cache: fp8 or mxfp4")->capture_default_str();
  c->add_flag("--hadamard", a->hadamard, "Walsh-Hadamard transform on both sides of the indexer");
  c->add_option("--index-topk-freq", a->index_topk_freq,
                "Of N C4A layers in a row the first chooses entries, the others reuse them (default: the model's)")
      ->check(whole(1, 1 << 20));
  c->add_option("--index-topk-pattern", a->index_topk_pattern,
                "Or layer by layer: a letter for each C4A layer that runs, F chooses entries, S takes the last choice");
  c->add_option("--output-projection", a->output_projection,
                "bf16; fp8: E4M3 outputs with fp32 scales; fp8-ue8m0: with packed UE8M0 scales")
      ->check(one_of({"bf16", "fp8", "fp8-ue8m0"}))
      ->capture_default_str();
  c->add_option("--precision", a->precision, "bf16, or f32: float32 activations and caches")
      ->check(one_of({"bf16", "f32"}))
      ->capture_default_str();
  c->add_option("--kv-scale", a->kv_scale, "Scale of fp8_per_tensor rows, for layers whose checkpoint has none")
      ->check(real(1e-6, 1e6))
      ->capture_default_str();
  c->add_option("--q-scale", a->q_scale, "Scale of e4m3 queries, for layers whose checkpoint has none")
      ->check(real(1e-6, 1e6))
      ->capture_default_str();
  c->add_option("--speculative", a->speculative, "Draft tokens a decode step verifies")
      ->check(whole(0, 64))
      ->capture_default_str();
  c->add_option("--draft-acceptance", a->acceptance, "Share of drafts that the seeded coin accepts")
      ->check(real(0, 1))
      ->capture_default_str();
  c->add_flag("--adaptive-speculation", a->adaptive_speculation,
              "Draft as many tokens as a request's last step suggests, at most --speculative");
  c->add_flag("--dspark", a->dspark,
              "The model's MTP layers compute the drafts as DSpark blocks of --speculative tokens that see each other, "
              "over context rows of the stack's output");
  c->add_option("--plant-error", a->plant_error, "Plant a fault (position, block or rope) to see the check fail")
      ->check(one_of({"position", "block", "rope"}));
  c->add_option("--device", a->device, "Where layers and caches are: cpu or cuda")
      ->check(one_of({"cpu", "cuda"}))
      ->capture_default_str();
  c->add_option("--tp", a->tensor_parallel, "Ranks that share out heads, a thread each; cuda: on GPUs 0, 1, 2, ...")
      ->check(whole(1, 1024))
      ->capture_default_str();
  c->add_option("--cp", a->context_parallel, "Ranks that share out compressed and index rows; with --tp N * M ranks")
      ->check(whole(1, 1024))
      ->capture_default_str();
  c->add_flag("--no-graphs", a->no_graphs,
              "cuda: queue every decode step anew instead of launching recorded CUDA graphs");
  c->add_option("--max-graphs", a->max_graphs,
                "cuda: recorded graphs that are kept; the one launched longest ago goes first")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
      ->capture_default_str();
  c->add_option("--graph-memory", a->graph_memory, "cuda: MiB of the GPU's memory that recorded graphs may keep")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 24))
      ->capture_default_str();
  c->add_option("--graph-after", a->graph_after,
                "cuda: decode steps of a size that run without a graph before the next one is recorded")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
      ->capture_default_str();
  c->add_option("--threads", a->threads, "CPU threads; 0: all")->check(whole(0, 4096))->capture_default_str();
  c->add_option("--seed", a->seed, "Seed of weights, inputs, drafts and samples")
      ->check(seed_number())
      ->capture_default_str();
  add_impl_option(c, a->implementations);
  c->add_option("--json", a->json,
                "Also write the report to FILE as JSON; - writes JSON alone to stdout, the report to stderr");
  c->add_flag("-q,--quiet", a->quiet, "No progress");
}

}  // namespace smla
