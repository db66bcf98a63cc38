"""The checks of one process, and the plugin of vLLM that puts them into worker processes."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from attention_check import AttentionCheck
from step_check import StepCheck

_attention: AttentionCheck | None = None
_steps: StepCheck | None = None


@dataclass
class Found:
    """What the checks of a process saw: rows by kind of call, kinds that failed, heads of its layers."""

    attention: list[dict[str, Any]]
    steps: list[dict[str, Any]]
    failed: list[str]
    heads: list[int]


def install(mode: str, with_peers: bool = True) -> None:
    """Puts the checks of a mode in place, before a layer is built.

    @param with_peers: FlashMLA, DeepGEMM and CuTe DSL are there to compare with
    """
    global _attention, _steps
    _attention = AttentionCheck(with_peers)
    _attention.install()
    if mode in ("indexer", "full"):
        _steps = StepCheck(mode, with_peers)
        _steps.install()


def found(heads: set[int]) -> Found:
    """Reads the statistics of this process. @param heads: head counts of its layers"""
    assert _attention is not None
    attention, failed = _attention.result()
    steps, failed_steps = ([], []) if _steps is None else _steps.result()
    return Found(attention, steps, failed + failed_steps, sorted(heads))


def register() -> None:
    """The plugin: weights and checks come into a process when its first layer is chosen; a second call does nothing."""
    from sparsemla.vllm import takeover

    if hasattr(takeover.layer_class, "installs_checks"):
        return
    layer_class = takeover.layer_class

    @functools.cache
    def install_once(mode: str) -> None:
        from small_model import replace_dummy_weights

        replace_dummy_weights()
        install(mode)

    def checked_layer_class(settings: Any) -> type:
        install_once(settings.mode.value)
        return layer_class(settings)

    checked_layer_class.__dict__["installs_checks"] = True
    takeover.layer_class = checked_layer_class


def register_weights() -> None:
    """The plugin that gives a process the small model's weights alone; a second call does nothing."""
    from sparsemla.vllm import takeover

    if hasattr(takeover.layer_class, "gives_weights"):
        return
    layer_class = takeover.layer_class

    def weighted_layer_class(settings: Any) -> type:
        from small_model import replace_dummy_weights

        replace_dummy_weights()
        return layer_class(settings)

    weighted_layer_class.__dict__["gives_weights"] = True
    takeover.layer_class = weighted_layer_class


def fetch(worker: Any) -> Found:
    """What a worker of vLLM found; run there by collective_rpc."""
    import torch

    torch.cuda.synchronize()
    return found({layer.attn.n_local_heads for layer in worker.model_runner.get_model().model.layers})
