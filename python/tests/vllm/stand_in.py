"""As much of vLLM as the plugin touches, for machines without it. test_contract.py compares names and parameters of
what is here with vLLM's sources."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch


class Registry:
    def __init__(self, known: list[str]) -> None:
        self.models: dict[str, Any] = dict.fromkeys(known, "vLLM's")

    def get_supported_archs(self) -> Any:
        return self.models.keys()

    def register_model(self, model_arch: str, model_cls: Any) -> None:
        self.models[model_arch] = model_cls


class SparseAttnIndexer(torch.nn.Module):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.arguments = (args, kwargs)


class DeepseekCompressor(torch.nn.Module):
    def forward(self, kv_score: torch.Tensor, positions: torch.Tensor, rotary_emb: Any) -> None:
        raise AssertionError("vLLM's compressor ran")


class Projection(torch.nn.Module):
    """wo_a and wo_b: the first has a weight, the second passes on what it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.quant_method = types.SimpleNamespace(process_weights_after_loading=lambda layer: setattr(layer, "laid", 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def fp8_einsum(
    equation: str,
    a: tuple[torch.Tensor, torch.Tensor],
    b: tuple[torch.Tensor, torch.Tensor],
    out: torch.Tensor,
    recipe: tuple[int, int, int],
) -> None:
    """DeepGEMM's grouped product with scales for 1 x 128 and 128 x 128 numbers."""
    assert equation == "bhr,hdr->bhd" and recipe == (1, 128, 128)
    x, w = a[0].float(), b[0].float().view(out.shape[1], out.shape[2], a[0].shape[2])
    scale = b[1].view(out.shape[1], -1, x.shape[2] // 128)
    x = x * a[1].repeat_interleave(128, 2)
    w = w * torch.exp2(scale.float() - 127).repeat_interleave(128, 1).repeat_interleave(128, 2)
    out.copy_(torch.einsum(equation, x, w))


class DeepseekV4FlashMLAAttention(torch.nn.Module):
    """The attributes that vLLM's layer gives itself; `vllm_config` of these tests holds them in `layer`."""

    use_fp8_ds_mla_layout = True

    def __init__(self, vllm_config: Any, prefix: str = "m", **_: Any) -> None:
        super().__init__()
        for name, value in vllm_config.layer.items():
            setattr(self, name, value)
        self.prefix = prefix
        self._einsum_recipe, self._tma_aligned_scales = (1, 128, 128), False
        self.reserved = False
        self.wo_a, self.wo_b = Projection(), Projection()
        self.compressor = self.indexer = None
        if self.compress_ratio > 1:
            self.compressor = sys.modules["vllm.models.deepseek_v4.compressor"].DeepseekCompressor()
            self.compressor.use_fp4_cache = False
        if self.compress_ratio == 4:
            self.indexer = torch.nn.Module()
            self.indexer.n_head = 64
            self.indexer.compressor = sys.modules["vllm.models.deepseek_v4.compressor"].DeepseekCompressor()
            self.indexer.compressor.use_fp4_cache = False
            self.indexer.indexer_op = sys.modules["vllm.models.deepseek_v4.attention"].SparseAttnIndexer(
                vllm_config.index_cache,
                128,
                "ue8m0",
                self.topk_indices_buffer.shape[1],
                128,
                512,
                20480,
                self.topk_indices_buffer,
                skip_k_cache_insert=True,
                use_fp4_cache=vllm_config.fp4,
            )

    def forward_mqa(self, q: torch.Tensor, kv: torch.Tensor, positions: torch.Tensor, output: torch.Tensor) -> None:
        assert sys.modules["vllm.forward_context"].get_forward_context().attn_metadata is None, "FlashMLA ran"
        self.reserved = True

    def _forward_prefill(
        self,
        q: torch.Tensor,
        positions: torch.Tensor,
        compressed_k_cache: torch.Tensor | None,
        swa_k_cache: torch.Tensor,
        output: torch.Tensor,
        attn_metadata: Any,
        swa_metadata: Any,
    ) -> None:
        """FlashMLA's answer is its queries."""
        assert swa_k_cache is self.swa_cache_layer.kv_cache
        assert (attn_metadata is None) == (compressed_k_cache is None) == (self.compress_ratio == 1)
        assert q.shape[0] == positions.shape[0] == swa_metadata.num_prefill_tokens
        output.copy_(q)

    def _fused_qnorm_rope_kv_insert(self, q: torch.Tensor, kv: Any, positions: Any, attn_metadata: Any) -> torch.Tensor:
        return q + 1

    def _o_proj(self, o: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return torch.full((1,), 42.0)


class DeepseekV4FlashInferMLAAttention(DeepseekV4FlashMLAAttention):
    use_fp8_ds_mla_layout = False


def module(name: str, **members: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__dict__.update(members)
    return made


class Vllm:
    """The modules, put into sys.modules for one test."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        for name in [m for m in sys.modules if m in ("vllm",) or m.startswith("vllm.")]:
            patch.delitem(sys.modules, name)
        for name in ("layer", "takeover", "models", "refused_models"):
            patch.delitem(sys.modules, f"sparsemla.vllm.{name}", raising=False)
            package = sys.modules.get("sparsemla.vllm")
            if package is not None and hasattr(package, name):
                patch.delattr(package, name)
        self.registry = Registry(
            ["DeepseekV4ForCausalLM", "DeepSeekV4MTPModel", "DeepseekV41ForCausalLM", "LlamaForCausalLM"]
        )
        self.metadata: Any = None
        self.chosen: type = DeepseekV4FlashMLAAttention
        self.flashmla_available = True
        self.deep_gemm = True
        base = "vllm.models.deepseek_v4"
        self.attention = module(
            f"{base}.attention",
            SparseAttnIndexer=SparseAttnIndexer,
            fused_indexer_q_rope_quant=lambda *a, **k: "vLLM's",
        )
        self.model = module(f"{base}.nvidia.model", _select_dsv4_attn_cls=lambda vllm_config: self.chosen)
        self.sparse_swa = module("sparse_swa", get_mla_metadata=lambda: ("plan", None))
        self.flashmla_ops = module(
            "flashmla",
            _is_flashmla_available=lambda: (self.flashmla_available, None),
            is_flashmla_sparse_supported=lambda: (self.flashmla_available, None),
            FlashMLASchedMeta=object,
        )
        modules = {
            "vllm": module("vllm", ModelRegistry=self.registry, __path__=[]),
            "vllm.envs": module("vllm.envs", VLLM_SPARSE_INDEXER_MAX_LOGITS_MB=1),
            "vllm.forward_context": module(
                "vllm.forward_context",
                get_forward_context=lambda: types.SimpleNamespace(attn_metadata=self.metadata),
            ),
            "vllm.utils": module("vllm.utils", __path__=[]),
            "vllm.utils.deep_gemm": module(
                "vllm.utils.deep_gemm", is_deep_gemm_supported=lambda: self.deep_gemm, fp8_einsum=fp8_einsum
            ),
            "vllm.models": module("vllm.models", __path__=[]),
            base: module(base, __path__=[], DeepseekV4ForCausalLM="the model", DeepSeekV4MTP="the draft"),
            "vllm.models.deepseek_v41": module("vllm.models.deepseek_v41", DeepseekV41ForCausalLM="the other model"),
            f"{base}.attention": self.attention,
            f"{base}.compressor": module(f"{base}.compressor", DeepseekCompressor=DeepseekCompressor),
            f"{base}.nvidia": module(f"{base}.nvidia", __path__=[]),
            f"{base}.nvidia.flashmla": module(
                f"{base}.nvidia.flashmla", DeepseekV4FlashMLAAttention=DeepseekV4FlashMLAAttention
            ),
            f"{base}.nvidia.model": self.model,
            "vllm.v1.attention.backends.mla.sparse_swa": self.sparse_swa,
            "vllm.v1.attention.ops.flashmla": self.flashmla_ops,
        }
        for name in ("v1", "v1.attention", "v1.attention.backends", "v1.attention.backends.mla", "v1.attention.ops"):
            modules[f"vllm.{name}"] = module(f"vllm.{name}", __path__=[])
        for name, made in modules.items():
            patch.setitem(sys.modules, name, made)
            parent, _, last = name.rpartition(".")
            if parent:
                setattr(modules[parent], last, made)


def config(**changes: Any) -> Any:
    """What the plugin looks at of a VllmConfig."""
    parallel = {"decode_context_parallel_size": 1, "prefill_context_parallel_size": 1, "tensor_parallel_size": 1}
    model = {"head_dim": 512, "qk_rope_head_dim": 64, "num_attention_heads": 64}
    cache = {"cache_dtype": "fp8"}
    for part in (parallel, model, cache):
        part.update({k: v for k, v in changes.items() if k in part})
    return types.SimpleNamespace(
        parallel_config=types.SimpleNamespace(**parallel),
        model_config=types.SimpleNamespace(hf_config=types.SimpleNamespace(**model)),
        cache_config=types.SimpleNamespace(**cache),
        speculative_config=None,
    )
