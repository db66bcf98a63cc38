"""The layers of a transformers cache whose rows lie in the library's pages."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache

from sparsemla import InvalidArgument, Unsupported

from ._pages import LayerMemory, Pages


class PagedLayer(CacheLayerMixin):
    """One layer's rows, entries and compressor states in pages; `pages` is shared by the layers of a cache."""

    is_compileable = False
    is_croppable = False
    is_sliding = True
    supports_early_init = False

    def __init__(self, pages: Pages, window: int) -> None:
        super().__init__()
        self.pages = pages
        self.window = window
        self.memory = LayerMemory()
        self.length = 0
        self._batch = pages.batch
        self.is_initialized = True

    @property
    def batch_size(self) -> int:
        """Sequences in the cache."""
        return self._batch

    def get_seq_length(self) -> int:
        """Tokens of each sequence that are in the cache."""
        return self.length

    def get_max_length(self) -> int:
        """As transformers' own layers of this model say it: the window."""
        return self.window

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Keys and offset of the mask that the model makes for its window; ours needs none."""
        offset = max(self.length - self.window + 1, 0)
        return min(self.length, self.window - 1) + query_length, offset

    def reset(self) -> None:
        """Empties the layer and keeps its memory."""
        self.length = 0

    def _select(self, indices: torch.Tensor) -> None:
        self._batch = self.memory.select(indices)
        self.pages.resize(self._batch)

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Sequence i becomes what sequence beam_idx[i] was."""
        if self.length > 0:
            self._select(beam_idx)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keeps the sequences of `indices`, in that order."""
        if self.length > 0:
            kept = indices.nonzero().flatten() if indices.dtype == torch.bool else indices
            self._select(kept)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each sequence `repeats` times, one after the other."""
        if self.length > 0:
            self._select(torch.arange(self._batch).repeat_interleave(repeats))

    def crop(self, tokens_to_remove: int) -> None:
        """Takes back the last -tokens_to_remove tokens. 0 is no change; anything else but that is refused."""
        if tokens_to_remove == 0:
            return
        if tokens_to_remove > 0:
            raise InvalidArgument(f"crop: got {tokens_to_remove}, expected a number below 0: how many tokens to remove")
        removed = -tokens_to_remove
        if removed > min(self.length, self.pages.chunk):
            raise Unsupported(
                f"crop: got {removed} tokens of {self.length}, expected at most {min(self.length, self.pages.chunk)}: "
                "of the window and of unfinished entries only so many are kept"
            )
        self.length -= removed

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to do: pages grow by themselves."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: rows are written by the layer itself."""
        raise InvalidArgument(
            "cache: got a cache that sparsemla.transformers filled in a forward of transformers' own "
            "attention: start with a new cache after disable(model)"
        )

    def offload(self) -> NoReturn:
        """Refused."""
        raise Unsupported("cache: offloading a cache of sparsemla.transformers is not supported")

    prefetch = offload


def paged_layer(cache: Cache, index: int, batch: int, chunk: int, window: int, device: torch.device) -> PagedLayer:
    """Layer `index` of a cache. A cache that is still empty gets layers of ours in place of its own.

    Raises Unsupported for a cache that has tokens of transformers' attention, or is no plain DynamicCache.
    """
    layers: list[Any] = cache.layers
    if index < len(layers) and isinstance(layers[index], PagedLayer):
        return _checked(layers[index], batch)
    if not isinstance(cache, DynamicCache) or getattr(cache, "offloading", False):
        offloading = " with offloading" if getattr(cache, "offloading", False) else ""
        raise Unsupported(
            f"cache: got {type(cache).__name__}{offloading}, expected a DynamicCache without offloading, or none"
        )
    if any(layer.get_seq_length() for layer in layers):
        raise Unsupported(
            f"cache: got a cache with {layers[0].get_seq_length()} tokens of transformers' own attention, "
            "expected a new one, or one that was filled after enable(model)"
        )
    pages = Pages(batch, chunk, device)
    for i in range(len(layers)):
        layers[i] = PagedLayer(pages, window)
    if index >= len(layers):
        raise InvalidArgument(
            f"cache: got a cache of {len(layers)} layers, expected one made with DynamicCache(config=model.config)"
        )
    layer: PagedLayer = layers[index]
    return layer


def _checked(layer: PagedLayer, batch: int) -> PagedLayer:
    if layer.length == 0 and batch != layer.batch_size:
        # An empty cache, after reset, takes any batch.
        layer.memory = LayerMemory()
        layer._batch = batch
        layer.pages.resize(batch)
    if batch != layer.batch_size:
        raise InvalidArgument(f"batch: got {batch} sequences, expected {layer.batch_size} as in the cache")
    return layer
