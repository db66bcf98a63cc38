// Python's view of layers.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "python/layer.h"
#include "sparsemla/checkpoint.h"

namespace smla::python {

namespace {

/// A layer over what a checkpoint holds, as its Python objects give it.
/// @param checkpoint a Checkpoint, or the path of one
/// @param move       called with each tensor, or None: they stay on the host
/// @throws InvalidArgument for a checkpoint without config.json, and what Checkpoint and AttentionLayer throw.
nb::object layer_of_checkpoint(nb::handle checkpoint, std::int64_t layer, std::int64_t positions, nb::handle move,
                               int tp_rank, int tp_size, bool keep_fp8, bool keep_nvfp4, const nb::kwargs& options) {
  nb::object opened = nb::borrow(checkpoint);
  if (!nb::isinstance<Checkpoint>(opened)) opened = nb::type<Checkpoint>()(nb::str(checkpoint));
  const nb::object model = opened.attr("model");
  if (model.is_none()) {
    throw InvalidArgument("AttentionLayer: checkpoint: got " + nb::cast<std::string>(opened.attr("path")) +
                          " without a config.json, expected one with the model's numbers");
  }
  const nb::dict loaded = nb::cast<nb::dict>(opened.attr("load_layer")(layer, tp_rank, tp_size, keep_fp8, keep_nvfp4));
  const auto placed = [&](nb::handle tensor) { return move.is_none() ? nb::borrow(tensor) : move(tensor); };
  nb::dict weights;
  for (const auto& [name, tensor] : nb::cast<nb::dict>(loaded["tensors"])) weights[name] = placed(tensor);
  nb::dict given = nb::cast<nb::dict>(options);
  for (const char* scale : {"q_scale", "kv_scale"})
    if (!given.contains(scale) && !loaded[scale].is_none()) given[scale] = loaded[scale];
  const nb::object cos_sin = placed(model.attr("rope_table")(layer, positions));
  return nb::type<Layer>()(loaded["config"], weights, cos_sin, **given);
}

}  // namespace

void bind_layers(nb::module_& module) {
  using nb::arg;
  nb::class_<Layer>(
      module, "AttentionLayer",
      "An attention layer of DeepSeek-V4: hidden states in, hidden states out. It reads its weights where they lie "
      "and\n"
      "keeps them.\n\n"
      "config:  its numbers: hidden_size, num_heads, q_lora_rank, o_lora_rank, o_groups, compress_ratio (1, 4 or "
      "128),\n"
      "         index_n_heads, index_topk, rms_norm_eps, hadamard, ...\n"
      "weights: by checkpoint name, bf16 or float32: \"wq_a.weight\" [q_lora_rank, hidden], \"q_norm.weight\",\n"
      "         \"wq_b.weight\", \"wkv.weight\", \"kv_norm.weight\", \"wo_a.weight\", \"wo_b.weight\", \"attn_sink\"\n"
      "         (float32); with entries \"compressor.{wkv.weight,wgate.weight,ape,norm.weight}\"; C4A layers also\n"
      "         \"indexer.compressor.*\", \"indexer.{wq_b,weights_proj}.weight\", but for those with reuses_topk.\n"
      "         E4M3 with \"wq_a.scale\" beside it; NVFP4 (uint8, two codes a byte) with \"wq_a.weight_scale\" and\n"
      "         \"wq_a.weight_scale_2\".\n"
      "cos_sin: the rope table [positions, 64] float32, cosines first; its device is the layer's.\n\n"
      "Options: precision (\"bf16\"; \"f32\": activations and caches in float32), cache_rows (\"fp8_ds_mla\"), "
      "index_rows\n"
      "(\"index_fp8\"), kv_scale, q_scale, front_end (\"flashmla\"), implementation, gather_prefill, strict,\n"
      "padded_heads, score_bytes, deterministic, threads, side_streams, draft_blocks (of DSpark: its window is kept "
      "one\n"
      "token longer).\n\n"
      "Raises InvalidArgument naming a number, weight or option that does not fit.")
      .def(
          "__init__",
          [](Layer* to, const nb::dict& config, const nb::dict& weights, nb::handle cos_sin,
             const nb::kwargs& options) { new (to) Layer(config, weights, cos_sin, nb::cast<nb::dict>(options)); },
          arg("config"), arg("weights"), arg("cos_sin"), arg("options"))
      .def_static(
          "from_checkpoint", &layer_of_checkpoint, arg("checkpoint"), arg("layer"), arg("positions"),
          arg("move") = nb::none(), arg("tp_rank") = 0, arg("tp_size") = 1, arg("keep_fp8") = false,
          arg("keep_nvfp4") = false, arg("options"),
          nb::sig("def from_checkpoint(checkpoint: Checkpoint | str, layer: int, positions: int, "
                  "move: collections.abc.Callable[[object], object] | None = None, tp_rank: int = 0, tp_size: int = 1, "
                  "keep_fp8: bool = False, keep_nvfp4: bool = False, **options) -> AttentionLayer"),
          "A layer of a checkpoint, with a rope table of its own.\n\n"
          "checkpoint: a Checkpoint, or the path of a folder with config.json. layer: its index; layers of "
          "multi-token\n"
          "prediction come last. positions: tokens of the longest sequence. move: called with each tensor, which lies\n"
          "on the host and has __dlpack__, to place it on a GPU: lambda t: torch.from_dlpack(t).cuda(); None leaves\n"
          "it. tp_rank, tp_size, keep_fp8, keep_nvfp4: as Checkpoint.load_layer takes them. options: as "
          "AttentionLayer\n"
          "takes them; q_scale and kv_scale are the checkpoint's where it has some and none are given.\n\n"
          "Raises InvalidArgument, IoError, Unsupported, as Checkpoint and AttentionLayer do.")
      .def_prop_ro(
          "caches", &Layer::caches,
          "By role (\"window\", \"compressed\", \"index\", \"state\", \"index_state\"), where the layer has it:\n"
          "format, block_size, page_bytes and the group whose block table it uses.")
      .def_prop_ro(
          "groups", &Layer::groups,
          "The cache groups: name, block_tokens (token p is in column p // block_tokens of a block table) and\n"
          "window (how many of the last tokens are kept; 0: all).")
      .def_prop_ro("device", [](const Layer& l) { return describe(l.place()); })
      .def("workspace_bytes", &Layer::workspace_bytes, arg("step"), "Bytes of workspace of a forward over this step.")
      .def("describe", &Layer::describe, arg("step"), "The implementation of each op over this step.")
      .def("forward", &Layer::forward, arg("step"), arg("caches"), arg("hidden"), arg("output"),
           arg("workspace") = nb::none(), arg("stream") = nb::none(),
           "output = attention(hidden), both [tokens, hidden] in the layer's precision; rows of the step are written\n"
           "into the caches.\n\n"
           "step: a built Step of a layer of this kind. caches: a Cache by role. workspace: a tensor of bytes, or "
           "None.\n"
           "stream: a cudaStream_t, or None: the current one.")
      .def(
          "insert_context", &Layer::insert_context, arg("hidden"), arg("positions"), arg("slots"), arg("window"),
          arg("workspace") = nb::none(), arg("stream") = nb::none(),
          "Writes rows of tokens into a window-only layer's cache and computes nothing else: the context of a layer\n"
          "of DSpark drafts, which sees what another stack made of these tokens.\n\n"
          "hidden: [tokens, hidden] in the layer's precision. positions: [tokens] int64. slots: [tokens] int64 of the\n"
          "cache, -1 where nothing is written. window: the layer's window Cache.");
  nb::class_<Step>(
      module, "Step",
      "Slots and index rows of one step, for all layers of the kind (compress_ratio, cache formats, device) "
      "of `layer`.")
      .def(nb::init<const Layer&>(), arg("layer"))
      .def(
          "build", &Step::build, arg("query_start_loc"), arg("seq_lens"), arg("positions"), arg("block_tables"),
          arg("max_seq_len") = nb::none(), arg("host_query_start_loc") = nb::none(), arg("host_seq_lens") = nb::none(),
          arg("decode_threshold") = 1, arg("dspark_tokens") = 0, arg("stream") = nb::none(),
          "For a batch of R requests and T tokens, decodes first.\n\n"
          "query_start_loc: [R+1] int32. seq_lens: [R] int32, this step's tokens included. positions: [T] int64.\n"
          "block_tables: for each group [R, columns] int32, kept until the next build.\n"
          "max_seq_len: an upper bound of seq_lens; None: their largest. host_query_start_loc, host_seq_lens: the "
          "same\n"
          "as lists, which must be given on a GPU. decode_threshold: requests at the head with at most so many tokens\n"
          "are decodes. dspark_tokens: above 0 the decodes are DSpark blocks of at most so many draft tokens, which\n"
          "see the whole block, the later ones too. Nothing waits on a GPU.")
      .def(
          "advance", &Step::advance, arg("seq_lens") = nb::none(), arg("max_seq_len") = nb::none(),
          arg("stream") = nb::none(),
          "The next draft step of window-only layers with one token a request, at seq_len - 1, in place: every tensor\n"
          "keeps its address, so that a loop of draft steps can be recorded as one CUDA graph.\n\n"
          "seq_lens: [R] int32, 0 for a request that sits out; None: each other request is one token longer.\n"
          "max_seq_len: their upper bound; None: that of the step before.");
}

}  // namespace smla::python
