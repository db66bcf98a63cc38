"""Each attention call of the running engine three ways on the same tensors: this library, FlashMLA, float32.

Statistics are device tensors that the call itself updates, so that calls inside CUDA graphs count at every replay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from cache_rows import row_bytes, row_values

KINDS = ("decode SWA", "decode C4A", "decode C128A", "prefill SWA", "prefill C4A", "prefill C128A")
LAYERS = {1: "SWA", 4: "C4A", 128: "C128A"}
SAMPLED = 4
"""Rows of a call, about, that are computed in float32 as well; the first and the last are among them."""

MOST_ERROR, MOST_DIFFERENCE = 4e-3, 1e-2
"""Largest relative l2 of a row: this library to float32, and to FlashMLA."""

NOT_WORSE, ROUNDING = 1.02, 2e-5
"""This library's errors may be FlashMLA's times NOT_WORSE plus ROUNDING."""

BROKEN = 9e9
"""The error of a row that holds NaN."""

READY_QUERIES = "checked_queries"
"""Attribute of a layer: in mode full, the queries of this call as vLLM's insert op makes them (step_check)."""


class Entries(NamedTuple):
    """Rows of a cache that a token attends to: slots [n], of which the first `count` and those >= 0 count."""

    cache: torch.Tensor
    slots: torch.Tensor
    count: torch.Tensor | int


def exact_attention(query: torch.Tensor, lists: list[Entries], sink: torch.Tensor, scale: float) -> torch.Tensor:
    """float32 [heads, 512] of a token: one softmax over all lists and a sink that has no value.

    @param query: [heads, 512]
    @param lists: rows of fp8_ds_mla caches
    @param sink: float32 [heads]
    """
    keys, scores = [], []
    for cache, slots, count in lists:
        seen = (torch.arange(slots.shape[0], device=query.device) < count) & (slots >= 0)
        rows = row_values(row_bytes(cache, torch.where(seen, slots, 0)))
        rows = torch.where(seen[:, None], rows, 0.0)
        keys.append(rows)
        scores.append(torch.where(seen[None, :], query.float() @ rows.T * scale, float("-inf")))
    score = torch.cat(scores, dim=1)
    largest = torch.maximum(score.amax(-1), sink)
    weight = torch.exp(score - largest[:, None])
    return (weight @ torch.cat(keys)) / (weight.sum(-1) + torch.exp(sink - largest))[:, None]


def relative_l2(got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """float64 [rows], of each row's numbers together; NaN is BROKEN."""
    distance = torch.linalg.vector_norm((got - expected).flatten(1), dim=1)
    length = torch.linalg.vector_norm(expected.flatten(1), dim=1).clamp_min(1e-20)
    return torch.nan_to_num((distance / length).double(), nan=BROKEN)


class Statistics:
    """Sums and largest values of one kind of call, each a float64 number on the device."""

    NAMES = ("calls", "rows", "sampled", "ours_flash_max", "ours_max", "ours_sum", "flash_max", "flash_sum")

    def __init__(self, device: torch.device) -> None:
        self._numbers = torch.zeros(len(self.NAMES), dtype=torch.float64, device=device)

    def add(self, name: str, value: torch.Tensor | int) -> None:
        self._numbers[self.NAMES.index(name)].add_(value)

    def raise_to(self, name: str, value: torch.Tensor) -> None:
        number = self._numbers[self.NAMES.index(name)]
        number.copy_(torch.maximum(number, value))

    def row(self, kind: str) -> dict[str, Any]:
        """Calls, rows and errors as relative l2: largest and mean."""
        found = dict(zip(self.NAMES, self._numbers.tolist()))
        sampled = max(found["sampled"], 1)
        return {
            "kind": kind,
            "calls": int(found["calls"]),
            "rows": int(found["rows"]),
            "sampled": int(found["sampled"]),
            "ours_flash_max": found["ours_flash_max"],
            "ours_max": found["ours_max"],
            "ours_mean": found["ours_sum"] / sampled,
            "flash_max": found["flash_max"],
            "flash_mean": found["flash_sum"] / sampled,
        }


def is_good(row: dict[str, Any]) -> bool:
    """Whether this library is within its bounds and no further from float32 than FlashMLA is."""
    return bool(
        row["sampled"] > 0
        and row["ours_max"] < MOST_ERROR
        and row["ours_max"] <= row["flash_max"] * NOT_WORSE + ROUNDING
        and row["ours_mean"] <= row["flash_mean"] * NOT_WORSE + ROUNDING
        and row["ours_flash_max"] < MOST_DIFFERENCE
    )


class AttentionCheck:
    """Stands beside the attention layers of a process from install() on.

    @param with_flash: FlashMLA is there to compare with, else this library's output takes its place
    """

    def __init__(self, with_flash: bool = True) -> None:
        self.with_flash = with_flash
        self._statistics: dict[str, Statistics] = {}

    def install(self) -> None:
        """To be called before a layer is built."""
        from sparsemla.vllm.layer import SparseMlaAttention
        from vllm.forward_context import get_forward_context
        from vllm.models.deepseek_v4.nvidia.flashmla import DeepseekV4FlashMLAAttention as Flash

        own_attend, own_forward = SparseMlaAttention.attend, SparseMlaAttention.forward_mqa
        check = self

        def attend(self: Any, q: Any, positions: Any, output: Any, metadata: dict[str, Any]) -> None:
            own_attend(self, q, positions, output, metadata)
            queries = self.__dict__.pop(READY_QUERIES, q)
            flash = flash_beside(Flash, self, queries, positions, output) if check.with_flash else output
            check.compare_call(self, queries, positions, output, flash, metadata)

        def forward_mqa(self: Any, q: Any, kv: Any, positions: Any, output: Any) -> None:
            if check.with_flash and not isinstance(get_forward_context().attn_metadata, dict):
                Flash.forward_mqa(self, q, kv, positions, output)  # a profile run: FlashMLA's workspace is reserved
            own_forward(self, q, kv, positions, output)

        SparseMlaAttention.attend, SparseMlaAttention.forward_mqa = attend, forward_mqa

    def compare_call(
        self, layer: Any, q: torch.Tensor, positions: torch.Tensor, ours: Any, flash: Any, metadata: dict[str, Any]
    ) -> None:
        """A layer's outputs [tokens, heads, 512] for a step; what tokens see is taken from vLLM's metadata."""
        swa, heads = metadata[layer.swa_cache_layer.prefix], layer.n_local_heads
        window, name = layer.swa_cache_layer.kv_cache, LAYERS[layer.compress_ratio]
        sink = layer.attn_sink[:heads]
        first = 0
        for stage, count in (("decode", swa.num_decode_tokens), ("prefill", swa.num_prefill_tokens)):
            if not count:
                continue
            indices, lens = getattr(swa, f"{stage}_swa_indices"), getattr(swa, f"{stage}_swa_lens")

            def lists(row: int, first: int = first, indices: Any = indices, lens: Any = lens) -> list[Entries]:
                near = Entries(window, indices[row].flatten(), lens[row])
                return [near, *compressed_entries(layer, first + row, positions, metadata)]

            rows = slice(first, first + count)
            self.compare(
                f"{stage} {name}",
                q[rows, :heads],
                ours[rows, :heads],
                flash[rows, :heads],
                lens[:count] > 0,
                lists,
                sink,
                layer.scale,
            )
            first += count

    def compare(
        self,
        kind: str,
        q: torch.Tensor,
        ours: torch.Tensor,
        flash: torch.Tensor,
        valid: torch.Tensor,
        lists: Callable[[int], list[Entries]],
        sink: torch.Tensor,
        scale: float,
    ) -> None:
        """Adds a call: q, ours, flash [tokens, heads, 512]; rows that are not valid [tokens] do not count.

        @param lists: what a token of these rows attends to
        """
        tokens = q.shape[0]
        if kind not in self._statistics:
            self._statistics[kind] = Statistics(q.device)
        statistics = self._statistics[kind]
        ours, flash = ours.float(), flash.float()
        statistics.add("calls", 1)
        statistics.add("rows", valid.sum())
        statistics.raise_to("ours_flash_max", torch.where(valid, relative_l2(ours, flash), 0.0).max())
        for row in sorted({0, tokens - 1, *range(0, tokens, max(1, tokens // SAMPLED))}):
            expected = exact_attention(q[row], lists(row), sink, scale)[None]
            statistics.add("sampled", valid[row])
            for name, output in (("ours", ours), ("flash", flash)):
                error = torch.where(valid[row], relative_l2(output[row : row + 1], expected)[0], 0.0)
                statistics.add(f"{name}_sum", error)
                statistics.raise_to(f"{name}_max", error)

    def result(self) -> tuple[list[dict[str, Any]], list[str]]:
        """A row for each kind of call, and the kinds that failed."""
        rows = [self._statistics[kind].row(kind) for kind in sorted(self._statistics)]
        return rows, [row["kind"] for row in rows if not is_good(row)]


def compressed_entries(layer: Any, token: int, positions: torch.Tensor, metadata: dict[str, Any]) -> list[Entries]:
    """What a token of the step sees of the layer's compressed cache; nothing is read back from the device."""
    ratio = layer.compress_ratio
    if ratio == 1:
        return []
    swa, main = metadata[layer.swa_cache_layer.prefix], metadata[layer.prefix]
    request = swa.token_to_req_indices[token : token + 1].long()
    table = main.block_table.index_select(0, request)[0].long()
    block = main.block_size // ratio
    if ratio == 4:
        chosen = layer.topk_indices_buffer[token]
    else:
        chosen = torch.arange(table.shape[0] * block, device=positions.device, dtype=torch.int32)
    seen = (chosen >= 0) & (chosen < (positions[token] + 1) // ratio)
    entry = torch.where(seen, chosen, 0).long()
    slots = torch.where(seen, table[entry // block] * block + entry % block, -1)
    return [Entries(layer.kv_cache, slots, slots.shape[0])]


def flash_beside(flash: Any, layer: Any, q: torch.Tensor, positions: Any, output: torch.Tensor) -> torch.Tensor:
    """FlashMLA's output [tokens, heads, 512] for the same call, on queries padded to the 64 or 128 heads it takes."""
    heads = q.shape[1]
    taken = 64 if heads <= 64 else 128
    if heads == taken:
        made = torch.zeros_like(output)
        flash.forward_mqa(layer, q, None, positions, made)
        return made
    padded = torch.zeros(q.shape[0], taken, q.shape[2], dtype=q.dtype, device=q.device)
    padded[:, :heads] = q
    sink = torch.full((taken,), float("-inf"), dtype=torch.float32, device=q.device)
    sink[:heads] = layer.attn_sink.data
    made = torch.zeros_like(padded)
    own = layer._parameters["attn_sink"]
    layer._parameters["attn_sink"] = torch.nn.Parameter(sink, requires_grad=False)
    try:
        flash.forward_mqa(layer, padded, None, positions, made)
    finally:
        layer._parameters["attn_sink"] = own
    return made[:, :heads]
