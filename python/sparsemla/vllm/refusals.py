"""What is not taken over, and the sentence that says why."""

from __future__ import annotations

from typing import Any

import sparsemla
from sparsemla.vllm.kernels import Kernels, Scalar

HEAD_DIM, ROPE_DIM, MAX_HEADS = 512, 64, 128


def refusal_of_config(vllm_config: Any) -> str:
    """Why a model's attention stays vLLM's; empty when it can be taken over.

    Looked at: parallelism, cache dtype, and the shapes of the heads.
    """
    parallel = vllm_config.parallel_config
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        size = getattr(parallel, name, 1)
        if size > 1:
            return f"{name} is {size}, and a sequence's cache on one rank is expected"
    dtype = vllm_config.cache_config.cache_dtype
    if not (dtype == "auto" or dtype.startswith("fp8")):
        return f"the cache dtype is {dtype}, and fp8_ds_mla rows are expected"
    config = vllm_config.model_config.hf_config
    if config.head_dim != HEAD_DIM or config.qk_rope_head_dim != ROPE_DIM:
        return (
            f"heads have {config.head_dim} numbers of which {config.qk_rope_head_dim} are rotated, "
            f"and {HEAD_DIM} and {ROPE_DIM} are expected"
        )
    heads = config.num_attention_heads // parallel.tensor_parallel_size
    if not 1 <= heads <= MAX_HEADS:
        return f"there are {heads} heads a rank, and 1 to {MAX_HEADS} are expected"
    return ""


def refusal_of_device(kernels: Kernels, device: str) -> str:
    """Why this machine's GPU cannot run the kernels; empty when it can. Makes a plan, so a worker asks it and no other
    process."""
    scalars: dict[str, Scalar] = {
        "tokens": 1,
        "heads": 64,
        "scopes": 1,
        "scopes[0].format": "fp8_ds_mla",
        "scopes[0].block_size": 64,
        "scopes[0].width": 128,
    }
    try:
        kernels.plan("sparse_attention", scalars, device)
    except sparsemla.Error as error:
        return "; ".join(line.strip() for line in str(error).splitlines())
    return ""
