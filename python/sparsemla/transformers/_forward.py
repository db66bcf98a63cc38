"""The forward that takes the place of transformers' DeepSeek-V4 attention."""

from __future__ import annotations

from typing import Any

import torch

from sparsemla import InvalidArgument, Unsupported

from . import _core
from ._cache import PagedLayer, paged_layer
from ._pages import LayerMemory, Pages
from ._rope import RopeTables
from ._weights import RATIOS, check_dtypes, find_weights, layer_config


class Settings:
    """What all layers of a model share: options and rope tables."""

    def __init__(self, config: Any, rows: str | None, index_rows: str | None, chunk: int, threads: int) -> None:
        self.config = config
        self.rows = rows
        self.index_rows = index_rows
        self.chunk = chunk
        self.threads = threads
        self._ropes: dict[torch.device, RopeTables] = {}

    def options(self, dtype: torch.dtype) -> dict[str, Any]:
        """Options of a layer that computes in a dtype."""
        options: dict[str, Any] = {"precision": "f32" if dtype == torch.float32 else "bf16", "threads": self.threads}
        if dtype != torch.float32:
            options |= {"cache_rows": self.rows, "index_rows": self.index_rows}
        return options

    def rope(self, device: torch.device) -> RopeTables:
        """The tables in the memory of a device."""
        if device not in self._ropes:
            self._ropes[device] = RopeTables(self.config, device)
        return self._ropes[device]


class Runner:
    """One attention module, computed by the library."""

    def __init__(self, attention: torch.nn.Module, settings: Settings, where: str) -> None:
        self.where = where
        self.index: int = attention.layer_idx
        self.settings = settings
        self.training_of = attention
        self.weights = find_weights(attention, where)
        self.config = layer_config(settings.config, attention.layer_type, where)
        self.kind = RATIOS[attention.layer_type]
        self.window = self.config["window"]
        self.rope_kind = "main" if self.kind == 1 else "compress"
        check_dtypes(self.weights, where)
        self._layer: _core.Layer | None = None
        self._state: tuple[Any, ...] = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> Runner:
        raise Unsupported("copy of a model: call sparsemla.transformers.disable(model) before, enable the copy after")

    def __reduce__(self) -> Any:
        raise Unsupported("pickle of a model: call sparsemla.transformers.disable(model) before")

    def layer(self, device: torch.device, dtype: torch.dtype, positions: int) -> _core.Layer:
        """The layer over the weights where they lie now, with a rope table of at least `positions` rows."""
        table = self.settings.rope(device).table(self.rope_kind, positions)
        state = (table.data_ptr(), dtype, *(source.state() for source in self.weights.values()))
        if self._layer is None or state != self._state:
            expected = check_dtypes(self.weights, self.where)
            if dtype != expected:
                raise InvalidArgument(f"hidden_states: got {dtype}, expected {expected} as the weights of {self.where}")
            tensors = {}
            for name, source in self.weights.items():
                tensor = source.tensor().detach()
                if tensor.device != device:
                    raise InvalidArgument(f"hidden_states: got device {device}, expected {tensor.device} as {name}")
                tensors[name] = tensor.float() if source.as_float32 else tensor
            self._layer = _core.Layer(self.config, tensors, table, self.settings.options(dtype))
            self._state = state
        return self._layer

    def check_call(self, hidden: torch.Tensor, options: dict[str, Any]) -> None:
        """Refuses what the library does not compute."""
        if self.training_of.training:
            raise Unsupported(
                f"{self.where}: got a model in training mode, expected model.eval(): there are no gradients"
            )
        if torch.is_grad_enabled() and hidden.requires_grad:
            raise Unsupported(
                "hidden_states: got a tensor that wants gradients, expected a call under torch.no_grad() or "
                "torch.inference_mode(): there are no gradients"
            )
        if options.get("output_attentions"):
            raise Unsupported("output_attentions: got True, expected False: attention weights are never formed")
        if hidden.dim() != 3:
            raise InvalidArgument(f"hidden_states: got shape {tuple(hidden.shape)}, expected [batch, tokens, hidden]")

    def run(
        self,
        hidden: torch.Tensor,
        positions: torch.Tensor | None,
        mask: Any,
        cache: Any,
    ) -> torch.Tensor:
        """attention(hidden) [batch, tokens, hidden]; writes the rows of these tokens into the cache."""
        batch, tokens, _ = hidden.shape
        chunk = max(1, self.settings.chunk)
        if cache is None:
            pages, memory, before = Pages(batch, min(chunk, max(tokens, 1)), hidden.device), LayerMemory(), 0
            held: PagedLayer | None = None
        else:
            held = paged_layer(cache, self.index, batch, chunk, self.window, hidden.device)
            pages, memory, before = held.pages, held.memory, held.length
        if pages.device != hidden.device:
            raise InvalidArgument(f"hidden_states: got device {hidden.device}, expected {pages.device} as in the cache")
        offset = max(before - self.window + 1, 0)
        pages.check(mask, positions, before, tokens, self.window, offset)
        pages.reserve(before + tokens)
        layer = self.layer(hidden.device, hidden.dtype, pages.capacity)
        caches = memory.caches(layer, pages)
        output = torch.empty(hidden.shape, dtype=hidden.dtype, device=hidden.device)
        for place, begin in enumerate(range(0, tokens, pages.chunk)):
            end = min(begin + pages.chunk, tokens)
            step = pages.step(layer, self.kind, place, before + begin, end - begin)
            rows = hidden[:, begin:end].reshape(-1, hidden.shape[2])
            whole = batch == 1 or end - begin == tokens
            out = output[:, begin:end].view(rows.shape) if whole else torch.empty_like(rows)
            layer.forward(step, caches, rows, out)
            if not whole:
                output[:, begin:end] = out.view(batch, end - begin, -1)
        if held is not None:
            held.length = before + tokens
        return output


def attention_forward(
    self: torch.nn.Module,
    hidden_states: torch.Tensor,
    position_embeddings: Any = None,
    position_ids: torch.Tensor | None = None,
    attention_mask: Any = None,
    cache: Any = None,
    past_key_values: Any = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Signature and results of DeepseekV4Attention.forward; there are no attention weights.

    transformers before 5.24 calls the cache `past_key_values`.
    """
    runner: Runner = self._sparsemla
    runner.check_call(hidden_states, kwargs)
    if cache is None:
        cache = past_key_values
    elif past_key_values is not None and past_key_values is not cache:
        raise InvalidArgument("past_key_values: got another cache than in cache, expected one of the two")
    return runner.run(hidden_states, position_ids, attention_mask, cache), None
