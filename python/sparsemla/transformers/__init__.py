"""DeepSeek-V4 of Hugging Face transformers with this library's attention.

    import sparsemla.transformers
    sparsemla.transformers.enable(model)      # model: DeepseekV4ForCausalLM, DeepseekV4Model, ...
    model.generate(**inputs)

`enable` replaces the forward of every attention module, on the CPU and on a GPU; on the CPU hyper-connections keep
their numbers and are computed in fewer passes through memory. A cache that the model makes, or an
empty DynamicCache, gets layers whose rows lie in the library's pages.
"""

from __future__ import annotations

import types
from typing import TypeVar

import torch
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4Attention

from sparsemla import InvalidArgument, Unsupported

from . import _hyper
from ._forward import Runner, Settings, attention_forward
from ._signature import check_signature

__all__ = ["disable", "enable", "enabled"]

CACHE_ROWS = ("fp8_ds_mla", "bf16")
INDEX_ROWS = ("index_fp8", "index_mxfp4")

Model = TypeVar("Model", bound=torch.nn.Module)


def _attentions(model: torch.nn.Module) -> dict[str, DeepseekV4Attention]:
    found = {name or "attention": m for name, m in model.named_modules() if isinstance(m, DeepseekV4Attention)}
    if not found:
        raise InvalidArgument(
            f"model: got {type(model).__name__} without an attention layer of DeepSeek-V4, expected "
            "DeepseekV4ForCausalLM or another module of transformers' deepseek_v4"
        )
    return found


def enable(
    model: Model,
    *,
    cache_rows: str | None = None,
    index_rows: str | None = None,
    chunk: int | None = None,
    threads: int | None = None,
) -> Model:
    """Computes the attention layers of a model with this library.

    Weights stay where they are and are read in place; they may move or be replaced afterwards. float32 models have
    caches in float32, whatever `cache_rows` says is for bfloat16 ones.

    Args:
        model: a module of transformers' deepseek_v4, in float32 or bfloat16, on the CPU or a GPU
        cache_rows: rows of the caches of a bfloat16 model: "fp8_ds_mla" (default) or "bf16"
        index_rows: rows of the indexer's keys of a bfloat16 model: "index_fp8" (default) or "index_mxfp4"
        chunk: tokens of a sequence that a layer computes at once; default 512 on the CPU, 2048 on a GPU
        threads: CPU threads; default torch.get_num_threads()

    Returns:
        the model

    Raises:
        InvalidArgument: a model without such a layer, or an impossible option
        Unsupported: dtypes, numbers, modules or a release of transformers that the library does not compute. No layer
            is changed then.
    """
    found = _attentions(model)
    check_signature(DeepseekV4Attention, attention_forward)
    _hyper.check_signatures()
    first = next(iter(found.values()))
    on_gpu = first.q_a_proj.weight.device.type == "cuda"
    if chunk is None:
        chunk = 2048 if on_gpu else 512
    if chunk < 1:
        raise InvalidArgument(f"chunk: got {chunk}, expected 1 or more")
    for name, given, known in (("cache_rows", cache_rows, CACHE_ROWS), ("index_rows", index_rows, INDEX_ROWS)):
        if given is not None and given not in known:
            raise InvalidArgument(f"{name}: got {given!r}, expected one of {', '.join(map(repr, known))}")
    settings = Settings(
        first.config, cache_rows, index_rows, chunk, torch.get_num_threads() if threads is None else threads
    )
    runners = {}
    for name, attention in found.items():
        if "forward" in attention.__dict__ and "_sparsemla" not in attention.__dict__:
            raise Unsupported(
                f"{name}: got a module whose forward was replaced before (by accelerate, for example), expected its own"
            )
        runners[name] = Runner(attention, settings, name)
    for name, attention in found.items():
        attention.__dict__["_sparsemla"] = runners[name]
        attention.__dict__["forward"] = types.MethodType(attention_forward, attention)
    _hyper.take(model)
    return model


def disable(model: Model) -> Model:
    """Gives every attention layer and hyper-connection its own forward back. Caches that were filled meanwhile cannot
    go on. Returns the model; a model that is not enabled stays as it is."""
    for attention in _attentions(model).values():
        attention.__dict__.pop("forward", None)
        attention.__dict__.pop("_sparsemla", None)
    _hyper.give_back(model)
    return model


def enabled(model: torch.nn.Module) -> bool:
    """Whether all attention layers of a model are computed by this library."""
    return all("_sparsemla" in attention.__dict__ for attention in _attentions(model).values())
