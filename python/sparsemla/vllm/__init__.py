"""DeepSeek-V4 in vLLM with this library's kernels, without a change to vLLM.

vLLM calls :func:`register` in each of its processes (entry point group ``vllm.general_plugins``). It only notes, by
name, where the architectures of DeepSeek-V4 are to be imported from; everything else happens when such a model is
loaded. The environment variable ``SPARSEMLA_VLLM`` says what is taken over: ``attention``, ``indexer``, ``full`` or
``off`` (docs/vllm.md).
"""

from __future__ import annotations

ARCHITECTURES = {
    "DeepseekV4ForCausalLM": "DeepseekV4ForCausalLM",
    "DeepseekV4ForConditionalGeneration": "DeepseekV4ForConditionalGeneration",
    "DeepSeekV4MTPModel": "DeepSeekV4MTP",
    "DSparkDraftModel": "DSparkDeepseekV4ForCausalLM",
}
"""Architectures, as vLLM's registry names them, and their classes in ``vllm.models.deepseek_v4``."""

REFUSED_ARCHITECTURES = {
    "DeepseekV41ForCausalLM": "DeepseekV41ForCausalLM",
    "DSparkV41DraftModel": "DSparkDeepseekV4ForCausalLM",
}
"""Architectures that stay vLLM's, which the log says, and their classes in ``vllm.models.deepseek_v41``."""


def register() -> None:
    """The entry point. It may run several times in a process, and imports no model and no CUDA.

    @raises ValueError: ``SPARSEMLA_VLLM`` holds something else than one of its words.
    """
    from sparsemla.vllm.settings import Mode, read_settings

    if read_settings().mode is Mode.OFF:
        return
    from vllm import ModelRegistry

    known = ModelRegistry.get_supported_archs()
    for architecture, name in ARCHITECTURES.items():
        if architecture in known:
            ModelRegistry.register_model(architecture, f"sparsemla.vllm.models:{name}")
    for architecture, name in REFUSED_ARCHITECTURES.items():
        if architecture in known:
            ModelRegistry.register_model(architecture, f"sparsemla.vllm.refused_models:{name}")
