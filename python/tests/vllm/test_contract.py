"""What the plugin overrides, replaces, calls and reads of vLLM exists in both versions' own sources."""

from __future__ import annotations

import ast
from dataclasses import fields

import pytest
import sparsemla.vllm as plugin
import world
from sources import VERSIONS, Sources, SourcesMissing

V4 = "vllm.models.deepseek_v4"
SWA = "vllm.v1.attention.backends.mla.sparse_swa"
INDEXER = "vllm.v1.attention.backends.mla.indexer"


@pytest.fixture(scope="module", params=VERSIONS)
def vllm(request: pytest.FixtureRequest) -> Sources:
    try:
        return Sources(request.param)
    except SourcesMissing as missing:
        pytest.skip(str(missing))


IMPORTED = {
    "vllm": ["ModelRegistry"],
    "vllm.envs": ["VLLM_SPARSE_INDEXER_MAX_LOGITS_MB"],
    "vllm.logger": ["init_logger"],
    "vllm.forward_context": ["get_forward_context"],
    "vllm.utils.deep_gemm": ["is_deep_gemm_supported", "fp8_einsum"],
    f"{V4}.attention": ["SparseAttnIndexer", "fused_indexer_q_rope_quant", "DeepseekV4Attention"],
    f"{V4}.compressor": ["DeepseekCompressor"],
    f"{V4}.nvidia.flashmla": ["DeepseekV4FlashMLAAttention"],
    f"{V4}.nvidia.model": ["_select_dsv4_attn_cls"],
    SWA: ["get_mla_metadata"],
    "vllm.v1.attention.ops.flashmla": [
        "_is_flashmla_available",
        "is_flashmla_sparse_supported",
        "FlashMLASchedMeta",
        "get_mla_metadata",
    ],
}
"""Module -> names that the plugin imports or replaces."""


@pytest.mark.parametrize("module", IMPORTED)
def test_names_exist(vllm: Sources, module: str) -> None:
    if module == "vllm":  # resolved on demand
        assert "ModelRegistry" in ast.dump(vllm.tree("vllm"))
        return
    assert set(IMPORTED[module]) <= vllm.names(module)


CALLED = {
    (f"{V4}.nvidia.model", "_select_dsv4_attn_cls"): ["vllm_config"],
    (f"{V4}.attention", "DeepseekV4Attention.__init__"): ["self", "vllm_config", "prefix"],
    (f"{V4}.attention", "DeepseekV4Attention.get_padded_num_q_heads"): ["cls", "num_heads"],
    (f"{V4}.attention", "DeepseekV4Attention.forward_mqa"): ["self", "q", "kv", "positions", "output"],
    (f"{V4}.attention", "DeepseekV4Attention._o_proj"): ["self", "o", "positions"],
    (f"{V4}.attention", "DeepseekV4Attention._fused_qnorm_rope_kv_insert"): [
        "self",
        "q",
        "kv",
        "positions",
        "attn_metadata",
    ],
    (f"{V4}.nvidia.flashmla", "DeepseekV4FlashMLAAttention._forward_prefill"): [
        "self",
        "q",
        "positions",
        "compressed_k_cache",
        "swa_k_cache",
        "output",
        "attn_metadata",
        "swa_metadata",
    ],
    (f"{V4}.compressor", "DeepseekCompressor.forward"): ["self", "kv_score", "positions", "rotary_emb"],
    (f"{V4}.common.ops.fused_indexer_q", "fused_indexer_q_rope_quant"): [
        "positions",
        "index_q",
        "index_q_cos_sin_cache",
        "index_weights",
        "index_weights_softmax_scale",
        "index_weights_head_scale",
        "use_fp4",
    ],
    ("vllm.model_executor.layers.sparse_attn_indexer", "SparseAttnIndexer.__init__"): [
        "self",
        "k_cache",
        "quant_block_size",
        "scale_fmt",
        "topk_tokens",
        "head_dim",
        "max_model_len",
        "max_total_seq_len",
        "topk_indices_buffer",
        "skip_k_cache_insert",
        "use_fp4_cache",
    ],
    ("vllm.model_executor.layers.sparse_attn_indexer", "SparseAttnIndexer.forward_cuda"): [
        "self",
        "hidden_states",
        "q_quant",
        "k",
        "weights",
    ],
    ("vllm.model_executor.models.registry", "_ModelRegistry.register_model"): ["self", "model_arch", "model_cls"],
    ("vllm.model_executor.models.registry", "_ModelRegistry.get_supported_archs"): ["self"],
}
"""(module, function) -> its first parameters, in this order."""


@pytest.mark.parametrize("where", CALLED)
def test_signatures_are_as_overridden(vllm: Sources, where: tuple[str, str]) -> None:
    expected = CALLED[where]
    assert vllm.parameters(*where)[: len(expected)] == expected


USED_BY_BENCH = {
    ("vllm.model_executor.model_loader.dummy_loader", "DummyModelLoader.load_weights"): ["model", "model_config"],
    ("vllm.model_executor.layers.quantization.utils.fp8_utils", "requant_weight_ue8m0_inplace"): [],
    ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner.capture_model"): [],
    ("vllm.v1.core.sched.scheduler", "Scheduler.reset_prefix_cache"): ["reset_running_requests"],
    ("vllm.entrypoints.llm", "LLM.collective_rpc"): ["method"],
}
"""(module, function) that python/bench/vllm replaces or calls -> parameters that it names."""


@pytest.mark.parametrize("where", USED_BY_BENCH)
def test_checks_and_times_find_what_they_use(vllm: Sources, where: tuple[str, str]) -> None:
    assert set(USED_BY_BENCH[where]) <= set(vllm.parameters(*where))


def test_graphs_can_be_swapped(vllm: Sources) -> None:
    graphs = "vllm.compilation.breakable_cudagraph", "BreakableCUDAGraphWrapper"
    assert "_all_instances" in vllm.fields(*graphs)
    assert "entries" in vllm.attributes(*graphs)


ATTRIBUTES = {
    (f"{V4}.attention", "DeepseekV4Attention"): [
        "prefix",
        "n_local_heads",
        "n_local_groups",
        "o_lora_rank",
        "compress_ratio",
        "scale",
        "eps",
        "window_size",
        "attn_sink",
        "wo_a",
        "wo_b",
        "rotary_emb",
        "topk_indices_buffer",
        "indexer",
        "compressor",
        "swa_cache_layer",
        "kv_cache",
    ],
    (f"{V4}.nvidia.flashmla", "DeepseekV4FlashMLAAttention"): ["_einsum_recipe", "_tma_aligned_scales"],
    (f"{V4}.attention", "DeepseekV4Indexer"): ["n_head", "compressor", "indexer_op"],
    (f"{V4}.compressor", "DeepseekCompressor"): [
        "ape",
        "norm",
        "rms_norm_eps",
        "compress_ratio",
        "state_cache",
        "k_cache_prefix",
        "use_fp4_cache",
        "_static_forward_context",
    ],
    (SWA, "DeepseekV4SWACache"): ["prefix", "kv_cache"],
    (f"{V4}.attention", "DeepseekV4IndexerCache"): ["prefix", "kv_cache"],
}
"""(module, class) -> attributes that the plugin reads of its instances."""


@pytest.mark.parametrize("where", ATTRIBUTES)
def test_instances_have_what_is_read(vllm: Sources, where: tuple[str, str]) -> None:
    assert set(ATTRIBUTES[where]) <= vllm.attributes(*where)


MODULES = {
    "DeepseekSparseSWAMetadata": SWA,
    "DeepseekV4FlashMLAMetadata": f"{V4}.sparse_mla",
    "DeepseekV32IndexerPrefillChunkMetadata": INDEXER,
    "DeepseekV32IndexerPrefillMetadata": INDEXER,
    "DeepSeekV32IndexerDecodeMetadata": INDEXER,
    "DeepseekV32IndexerMetadata": INDEXER,
    "CompressorMetadata": f"{V4}.compressor",
}


@pytest.mark.parametrize("name", MODULES)
def test_metadata_has_the_fields_of_its_stand_in(vllm: Sources, name: str) -> None:
    assert {f.name for f in fields(world.READ[name])} <= vllm.fields(MODULES[name], name)


def test_architectures_are_where_the_plugin_takes_them_from(vllm: Sources) -> None:
    """Each architecture that this version knows comes from the modules whose classes are re-exported."""
    registry = {
        key.value: [e.value for e in value.elts if isinstance(e, ast.Constant)]
        for node in ast.walk(vllm.tree("vllm.model_executor.models.registry"))
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values)
        if isinstance(key, ast.Constant) and isinstance(value, ast.Tuple)
    }
    known = {a: registry[a] for a in plugin.ARCHITECTURES if a in registry}
    assert {"DeepseekV4ForCausalLM", "DeepSeekV4MTPModel"} <= set(known)
    assert known == {a: [V4, plugin.ARCHITECTURES[a]] for a in known}
    refused = {a: registry[a] for a in plugin.REFUSED_ARCHITECTURES if a in registry}
    assert refused == {a: ["vllm.models.deepseek_v41", plugin.REFUSED_ARCHITECTURES[a]] for a in refused}
    assert bool(refused) == (vllm.version == "0.33.0")
    missed = {a for a, place in registry.items() if place[:1] == [V4]} - set(plugin.ARCHITECTURES)
    assert not missed


def test_every_kind_of_layer_asks_the_replaced_choice(vllm: Sources) -> None:
    """Model, drafts and vision build DeepseekV4DecoderLayer, and that calls the module's _select_dsv4_attn_cls."""
    init = vllm.function(f"{V4}.nvidia.model", "DeepseekV4DecoderLayer.__init__")
    assert any(isinstance(n, ast.Name) and n.id == "_select_dsv4_attn_cls" for n in ast.walk(init))
    drafts = ["mtp"] if vllm.version == "0.24.0" else ["mtp", "dspark"]
    for module in drafts:
        assert "DeepseekV4DecoderLayer" in vllm.names(f"{V4}.nvidia.{module}")


def test_the_indexer_is_built_from_the_replaced_name(vllm: Sources) -> None:
    """DeepseekV4Indexer looks SparseAttnIndexer up when it is built, in its class's body or a hook of it."""
    indexer = vllm.cls(f"{V4}.attention", "DeepseekV4Indexer")
    uses = [n for n in ast.walk(indexer) if isinstance(n, ast.Name) and n.id == "SparseAttnIndexer"]
    assert uses
    hooks = [n for n in indexer.body if isinstance(n, ast.FunctionDef) and n.name in ("__init__", "_get_attn_cls")]
    assert any(isinstance(n, ast.Name) and n.id == "SparseAttnIndexer" for h in hooks for n in ast.walk(h))


def test_groups_of_layers_stay_vllms(vllm: Sources) -> None:
    """The layer's backend keeps its name, so that vLLM's warm-up and metadata builders are those of its own layer."""
    assert "backend_cls" in ast.dump(vllm.cls(f"{V4}.nvidia.flashmla", "DeepseekV4FlashMLAAttention"))
    name = vllm.function(f"{V4}.sparse_mla", "DeepseekV4FlashMLABackend.get_name")
    assert [n.value for n in ast.walk(name) if isinstance(n, ast.Constant)] == ["FLASHMLA_SPARSE_DSV4"]
