// Python's view of layers.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "python/layer.h"

namespace smla::python {

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
      "         \"indexer.compressor.*\", \"indexer.{wq_b,weights_proj}.weight\". E4M3 with \"wq_a.scale\" beside it.\n"
      "cos_sin: the rope table [positions, 64] float32, cosines first; its device is the layer's.\n\n"
      "Options: precision (\"bf16\"; \"f32\": activations and caches in float32), cache_rows (\"fp8_ds_mla\"), "
      "index_rows\n"
      "(\"index_fp8\"), kv_scale, q_scale, front_end (\"flashmla\"), implementation, gather_prefill, strict,\n"
      "padded_heads, score_bytes, deterministic, threads, side_streams.\n\n"
      "Raises InvalidArgument naming a number, weight or option that does not fit.")
      .def(
          "__init__",
          [](Layer* to, const nb::dict& config, const nb::dict& weights, nb::handle cos_sin,
             const nb::kwargs& options) { new (to) Layer(config, weights, cos_sin, nb::cast<nb::dict>(options)); },
          arg("config"), arg("weights"), arg("cos_sin"), arg("options"))
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
           "stream: a cudaStream_t, or None: the current one.");
  nb::class_<Step>(
      module, "Step",
      "Slots and index rows of one step, for all layers of the kind (compress_ratio, cache formats, device) "
      "of `layer`.")
      .def(nb::init<const Layer&>(), arg("layer"))
      .def(
          "build", &Step::build, arg("query_start_loc"), arg("seq_lens"), arg("positions"), arg("block_tables"),
          arg("max_seq_len") = nb::none(), arg("host_query_start_loc") = nb::none(), arg("host_seq_lens") = nb::none(),
          arg("decode_threshold") = 1, arg("stream") = nb::none(),
          "For a batch of R requests and T tokens, decodes first.\n\n"
          "query_start_loc: [R+1] int32. seq_lens: [R] int32, this step's tokens included. positions: [T] int64.\n"
          "block_tables: for each group [R, columns] int32, kept until the next build.\n"
          "max_seq_len: an upper bound of seq_lens; None: their largest. host_query_start_loc, host_seq_lens: the "
          "same\n"
          "as lists, which must be given on a GPU. decode_threshold: requests at the head with at most so many tokens\n"
          "are decodes. Nothing waits on a GPU.");
}

}  // namespace smla::python
