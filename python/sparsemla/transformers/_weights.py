"""The weights and numbers of transformers' DeepSeek-V4 attention under the names that the library has for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from sparsemla import Unsupported

if TYPE_CHECKING:
    from torch import nn

RATIOS = {"sliding_attention": 1, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}

# Rope types whose frequencies do not depend on the length of the sequence.
STATIC_ROPES = ("default", "linear", "yarn", "llama3")

_LINEAR = {
    "wq_a.weight": "q_a_proj",
    "wq_b.weight": "q_b_proj",
    "wkv.weight": "kv_proj",
    "wo_a.weight": "o_a_proj",
    "wo_b.weight": "o_b_proj",
}
_NORMS = {"q_norm.weight": "q_a_norm", "kv_norm.weight": "kv_norm"}
_COMPRESSOR_LINEAR = {"wkv.weight": "kv_proj", "wgate.weight": "gate_proj"}
_INDEXER_LINEAR = {"indexer.wq_b.weight": "q_b_proj", "indexer.weights_proj.weight": "scorer.weights_proj"}


@dataclass(frozen=True)
class Source:
    """Where a weight of the library lies in a module: the module that owns it and the parameter's name."""

    owner: nn.Module
    parameter: str
    as_float32: bool = False

    def tensor(self) -> torch.Tensor:
        return self.owner._parameters[self.parameter]

    def state(self) -> tuple[int, int]:
        """Changes when the weight moves, or, where the library reads a copy of it, when its numbers do."""
        tensor = self.tensor()
        counted = self.as_float32 and not tensor.is_inference()
        return tensor.data_ptr(), tensor._version if counted else 0


def _linear(root: nn.Module, path: str, where: str) -> Source:
    module = root.get_submodule(path)
    weight = module._parameters.get("weight")
    if weight is None or weight.dim() != 2 or getattr(module, "bias", None) is not None:
        raise Unsupported(
            f"{where}.{path}: got {type(module).__name__}, expected a linear layer with a plain weight and "
            "without a bias"
        )
    return Source(module, "weight")


def _compressor(found: dict[str, Source], prefix: str, module: nn.Module, where: str) -> None:
    for name, path in _COMPRESSOR_LINEAR.items():
        found[prefix + name] = _linear(module, path, where)
    found[prefix + "ape"] = Source(module, "position_bias")
    found[prefix + "norm.weight"] = Source(module.get_submodule("kv_norm"), "weight")


def find_weights(attention: nn.Module, where: str) -> dict[str, Source]:
    """Every weight of an attention module, by the library's checkpoint name.

    Raises Unsupported, naming the module, where a linear layer was replaced by something without a plain weight.
    """
    found = {name: _linear(attention, path, where) for name, path in _LINEAR.items()}
    for name, path in _NORMS.items():
        found[name] = Source(attention.get_submodule(path), "weight")
    found["attn_sink"] = Source(attention, "sinks", as_float32=True)
    compressor = attention._modules.get("compressor")
    if compressor is None:
        return found
    _compressor(found, "compressor.", compressor, f"{where}.compressor")
    indexer = compressor._modules.get("indexer")
    if indexer is not None:
        _compressor(found, "indexer.compressor.", indexer, f"{where}.compressor.indexer")
        for name, path in _INDEXER_LINEAR.items():
            found[name] = _linear(indexer, path, f"{where}.compressor.indexer")
    return found


def check_dtypes(weights: dict[str, Source], where: str) -> torch.dtype:
    """The dtype in which the module computes: that of its linear layers, float32 or bfloat16."""
    dtype = weights["wq_a.weight"].tensor().dtype
    if dtype not in (torch.float32, torch.bfloat16):
        raise Unsupported(f"{where}: got weights in {dtype}, expected torch.float32 or torch.bfloat16")
    for name, source in weights.items():
        tensor = source.tensor()
        if tensor.dtype not in (torch.float32, torch.bfloat16):
            raise Unsupported(f"{where}: {name}: got {tensor.dtype}, expected torch.float32 or torch.bfloat16")
        if tensor.dim() == 2 and tensor.stride(1) != 1:
            raise Unsupported(f"{where}: {name}: got strides {tuple(tensor.stride())}, expected contiguous rows")
    return dtype


def layer_config(config: Any, layer_type: str, where: str) -> dict[str, Any]:
    """The numbers of one attention layer, under the names of the library's LayerConfig.

    Raises Unsupported for numbers that no V4 layer of the library has.
    """
    if layer_type not in RATIOS:
        raise Unsupported(f"{where}: layer type: got {layer_type!r}, expected one of {', '.join(map(repr, RATIOS))}")
    ratio = RATIOS[layer_type]
    if ratio > 1 and config.compress_rates[layer_type] != ratio:
        raise Unsupported(
            f"{where}: compress_rates[{layer_type!r}]: got {config.compress_rates[layer_type]}, expected {ratio}"
        )
    numbers = {
        "hidden_size": config.hidden_size,
        "num_heads": config.num_attention_heads,
        "head_dim": config.head_dim,
        "rope_head_dim": config.qk_rope_head_dim,
        "q_lora_rank": config.q_lora_rank,
        "o_lora_rank": config.o_lora_rank,
        "o_groups": config.o_groups,
        "window": config.sliding_window,
        "compress_ratio": ratio,
        "rms_norm_eps": config.rms_norm_eps,
    }
    if ratio == 4:
        numbers |= {
            "index_n_heads": config.index_n_heads,
            "index_head_dim": config.index_head_dim,
            "index_topk": config.index_topk,
        }
    for name, expected in (("head_dim", 512), ("rope_head_dim", 64), ("window", 128), ("index_head_dim", 128)):
        if numbers.get(name, expected) != expected:
            raise Unsupported(f"{where}: {name}: got {numbers[name]}, expected {expected}")
    if numbers["num_heads"] > 128:
        raise Unsupported(f"{where}: num_heads: got {numbers['num_heads']}, expected at most 128")
    return numbers
