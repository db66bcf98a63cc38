"""vLLM's own scores and choice beside this library's."""

from __future__ import annotations

from typing import Any

import torch


def own_indexer(indexer: type, k_cache: Any, k: int, most_entries: int, choice: torch.Tensor) -> Any:
    """vLLM's indexer over a layer's index cache.

    @param indexer: vLLM's SparseAttnIndexer, taken before layers are built
    @param most_entries: entries of a request at most
    @param choice: int32 [tokens, k], where it writes
    """
    return indexer(k_cache, 128, "ue8m0", k, 128, most_entries, most_entries * 40, choice, skip_k_cache_insert=True)
