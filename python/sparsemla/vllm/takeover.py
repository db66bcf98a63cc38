"""Puts this library's layer where vLLM chooses one. Imports vLLM's model: only where a model is loaded."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import sparsemla
from sparsemla.vllm.kernels import Kernels
from sparsemla.vllm.refusals import refusal_of_config, refusal_of_device
from sparsemla.vllm.report import say, warn
from sparsemla.vllm.settings import Mode, Settings, read_settings

LayerChoice = Callable[[Any], type]

SPOKEN = {
    Mode.ATTENTION: "decode and prefill attention",
    Mode.INDEXER: "decode and prefill attention, index scores and top-k",
    Mode.FULL: "inserts, compressors, index queries, scores and top-k, attention and the grouped output projection",
}

LEFT = " Where FlashMLA is there, large prompts with 64 or 128 heads stay its; SPARSEMLA_VLLM_OWN=1 takes them, too."


def chooser(vllms: LayerChoice, settings: Settings, device: str = "cuda") -> LayerChoice:
    """The function that vLLM asks for the class of an attention layer: ours where it can be, else vLLM's own choice."""

    @functools.wraps(vllms)
    def choose(vllm_config: Any) -> Any:
        own: Any = vllms(vllm_config)
        if settings.mode is Mode.OFF:
            return own
        reason = refusal_of_config(vllm_config)
        if not reason and not own.use_fp8_ds_mla_layout:
            reason = f"{own.__name__} keeps plain rows, and fp8_ds_mla rows are expected"
        kernels = Kernels(portable=settings.portable, deterministic=settings.deterministic)
        if not reason:
            reason = refusal_of_device(kernels, device)
        if reason:
            warn(f"attention stays {own.__name__}: {reason}.")
            return own
        if settings.mode is Mode.FULL:
            take_surroundings(settings)
        say(
            f"version {sparsemla.__version__} computes {SPOKEN[settings.mode]} of DeepSeek-V4 "
            f"({kernels.used['sparse_attention']} kernels; SPARSEMLA_VLLM={settings.mode.value}); "
            f"vLLM would have chosen {own.__name__}." + (LEFT if settings.leaves_prefill() else "")
        )
        return layer_class(settings)

    choose.__dict__["sparsemla_settings"] = settings
    return choose


@functools.cache
def layer_class(settings: Settings) -> type:
    """The class of layers for these settings, one a process."""
    from sparsemla.vllm.layer import SparseMlaAttention

    kernels = Kernels(portable=settings.portable, deterministic=settings.deterministic)
    members = {"kernels": kernels, "settings": settings, "__module__": SparseMlaAttention.__module__}
    return type("SparseMlaAttention", (SparseMlaAttention,), members)


def index_queries_or_vllms(vllms: Callable[..., Any], kernels: Kernels) -> Callable[..., Any]:
    """The function that vLLM's indexer rotates and quantises its queries with: ours for FP8 index rows."""
    from sparsemla.vllm.full import index_queries

    @functools.wraps(vllms)
    def quantise(
        positions: Any,
        index_q: Any,
        index_q_cos_sin_cache: Any,
        index_weights: Any,
        index_weights_softmax_scale: float,
        index_weights_head_scale: float,
        use_fp4: bool = False,
    ) -> Any:
        if use_fp4 or index_q.dtype != index_weights.dtype:
            return vllms(
                positions,
                index_q,
                index_q_cos_sin_cache,
                index_weights,
                index_weights_softmax_scale,
                index_weights_head_scale,
                use_fp4=use_fp4,
            )
        return index_queries(kernels, index_q, index_weights, positions, index_q_cos_sin_cache)

    quantise.__dict__["sparsemla"] = True
    return quantise


def without_planner(sparse_swa: Any, flashmla: Any) -> None:
    """Where FlashMLA is not there, its plans, which nobody reads, are empty objects."""
    if not flashmla._is_flashmla_available()[0]:
        sparse_swa.get_mla_metadata = lambda *args, **kwargs: (flashmla.FlashMLASchedMeta(), None)


def take_surroundings(settings: Settings) -> None:
    """Mode full: what is not in the layer's class. Called when a layer is chosen; a second call changes nothing."""
    from vllm.models.deepseek_v4 import attention
    from vllm.v1.attention.backends.mla import sparse_swa
    from vllm.v1.attention.ops import flashmla

    if not hasattr(attention.fused_indexer_q_rope_quant, "sparsemla"):
        kernels = Kernels(portable=settings.portable, deterministic=settings.deterministic)
        attention.fused_indexer_q_rope_quant = index_queries_or_vllms(attention.fused_indexer_q_rope_quant, kernels)
    without_planner(sparse_swa, flashmla)


def install() -> None:
    """Replaces the choice of layers in vLLM's model of DeepSeek-V4; a second call changes nothing."""
    settings = read_settings()
    if settings.mode is Mode.OFF:
        return
    from vllm.models.deepseek_v4.nvidia import model

    if not hasattr(model._select_dsv4_attn_cls, "sparsemla_settings"):
        model._select_dsv4_attn_cls = chooser(model._select_dsv4_attn_cls, settings)
