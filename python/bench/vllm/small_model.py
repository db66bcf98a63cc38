"""A small DeepSeek-V4: V4-Flash's widths wherever an attention kernel looks, few layers, narrow experts.

Its weights are drawn from a fixed seed. vLLM's own dummy weights all lie within 1e-3 of zero, norms and block scales
included, so that every activation would be about zero.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

VOCABULARY = 8192
SEED = 1234
FP8_DEVIATION = 32.0
"""Standard deviation of e4m3 weights, before their scales."""


def small_config(ratios: Sequence[int], heads: int, experts: str) -> dict[str, Any]:
    """config.json of the model.

    @param ratios: the compress ratio of each layer, 0 for window attention
    @param experts: the format of the experts, "fp8" or "fp4"
    """
    return {
        "architectures": ["DeepseekV4ForCausalLM"],
        "model_type": "deepseek_v4",
        "torch_dtype": "bfloat16",
        "vocab_size": VOCABULARY,
        "hidden_size": 4096,
        "num_hidden_layers": len(ratios),
        "num_nextn_predict_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": 1,
        "head_dim": 512,
        "qk_rope_head_dim": 64,
        "q_lora_rank": 1024,
        "o_lora_rank": 1024,
        "o_groups": heads // 8,
        "sliding_window": 128,
        "compress_ratios": [*ratios, 0],
        "index_n_heads": 64,
        "index_head_dim": 128,
        "index_topk": 512,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "rope_theta": 10000,
        "compress_rope_theta": 160000,
        "max_position_embeddings": 1048576,
        "rope_scaling": {
            "type": "yarn",
            "factor": 16,
            "original_max_position_embeddings": 65536,
            "beta_fast": 32,
            "beta_slow": 1,
        },
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
        "n_routed_experts": 64,
        "num_experts_per_tok": 6,
        "n_shared_experts": 1,
        "moe_intermediate_size": 256,
        "num_hash_layers": 1,
        "routed_scaling_factor": 1.5,
        "swiglu_limit": 10.0,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "expert_dtype": experts,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "use_cache": True,
        "quantization_config": {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "scale_fmt": "ue8m0",
            "weight_block_size": [128, 128],
        },
    }


def write_model(folder: Path, config: Mapping[str, Any]) -> str:
    """A folder that vLLM takes for a model; its path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(folder)


def fill_with_random_weights(model: torch.nn.Module) -> None:
    """Linear layers keep the variance of their input, norms are about 1, block scales are powers of two."""
    parameters = dict(model.named_parameters())
    generator = torch.Generator(device=next(iter(parameters.values())).device)
    generator.manual_seed(SEED)
    with torch.no_grad():
        for name, parameter in parameters.items():
            _fill(name, parameter, parameters, generator)


def _fill(
    name: str, parameter: torch.Tensor, parameters: Mapping[str, torch.Tensor], generator: torch.Generator
) -> None:
    def normal() -> torch.Tensor:
        return torch.randn(parameter.shape, generator=generator, device=parameter.device, dtype=torch.float32)

    if parameter.dtype in (torch.int32, torch.int64):
        return  # the table of hashed experts, which the layer draws
    if parameter.dtype == torch.float8_e4m3fn:
        _fill_fp8(parameter, generator)
    elif "weight_scale" in name:
        width = parameters[name.replace("_scale_inv", "").replace("_scale", "")].shape[-1]
        exponent = round(math.log2(1 / (FP8_DEVIATION * math.sqrt(width))))
        if parameter.dtype == torch.uint8:
            parameter.fill_(127 + exponent)
        else:
            parameter.copy_(torch.full(parameter.shape, 2.0**exponent, device=parameter.device).to(parameter.dtype))
    elif parameter.dtype == torch.uint8:  # packed MXFP4 experts
        codes = torch.randint(0, 256, parameter.shape, generator=generator, device=parameter.device, dtype=torch.uint8)
        parameter.copy_(codes)
    elif "norm" in name:
        parameter.copy_(1 + 0.1 * normal())
    elif name.endswith("attn_sink"):
        parameter.copy_(normal())
    elif name.endswith(".ape"):
        parameter.copy_(0.5 * normal())
    elif "hc_" in name and name.endswith("_scale"):
        parameter.fill_(1.0)
    elif "hc_" in name and name.endswith("_base"):
        parameter.copy_(0.2 * normal())
    elif "e_score_correction_bias" in name:
        parameter.copy_(0.1 * normal())
    elif "embed_tokens" in name:
        parameter.copy_(normal())
    elif "lm_head" in name:
        parameter.copy_(4 * normal() / math.sqrt(parameter.shape[-1]))
    elif parameter.dim() >= 2:
        parameter.copy_(normal() / math.sqrt(parameter.shape[-1]))
    else:
        parameter.copy_(0.1 * normal())
        print(f"{name}: {tuple(parameter.shape)} {parameter.dtype}, a weight of no known kind", flush=True)


def _fill_fp8(parameter: torch.Tensor, generator: torch.Generator) -> None:
    if parameter.dim() == 3:  # experts one by one, in the dtype of the model, to save memory
        draws = [(matrix, torch.get_default_dtype()) for matrix in parameter]
    else:
        draws = [(parameter, torch.float32)]
    for matrix, dtype in draws:
        values = torch.randn(matrix.shape, generator=generator, device=matrix.device, dtype=dtype) * FP8_DEVIATION
        matrix.copy_(values.clamp(-448, 448).to(matrix.dtype))


def replace_dummy_weights() -> None:
    """vLLM's load format "dummy" then gives these weights, in this process."""
    from vllm.model_executor.layers.quantization.utils import fp8_utils
    from vllm.model_executor.model_loader import dummy_loader

    def load_weights(self: Any, model: torch.nn.Module, model_config: Any) -> None:
        fill_with_random_weights(model)

    dummy_loader.DummyModelLoader.load_weights = load_weights
    # Block scales are powers of two already.
    fp8_utils.requant_weight_ue8m0_inplace = lambda *args, **kwargs: None
