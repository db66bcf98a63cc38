"""What a profile says of whole attention layers: the time between the hyper-connections ahead of one and behind it."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kernel_times import Launch, is_attention

HYPER_CONNECTIONS = ("mhc_", "hc_head", "hc_prenorm")
"""Parts of the names of the kernels between which a layer lies."""

KINDS = {0: "swa", 4: "c4a", 128: "c128a"}
"""Compress ratio -> the layer's kind."""

PLANNER = "get_mla_metadata"
"""Part of the name of FlashMLA's planner, which runs in the first layer of each cache group and kind alone."""

COLUMNS = ("layer", "heads", "requests", "context", "mode", "span_us", "busy_us", "planner_us", "launches")


class LayerTime(NamedTuple):
    """An attention layer in a decode step: microseconds, and kernels.

    `span` is from the end of the hyper-connections ahead to the beginning of those behind, `busy` what of it any kernel
    ran, `planner` what of it FlashMLA's planner ran.
    """

    span: float
    busy: float
    planner: float
    launches: float


def is_hyper_connection(name: str) -> bool:
    return any(part in name for part in HYPER_CONNECTIONS)


def busy_time(launches: Iterable[Launch], begin: float, end: float) -> float:
    """How much of the time from `begin` to `end` at least one of `launches` ran; streams may overlap."""
    busy, until = 0.0, begin
    for launch in sorted(launches, key=lambda launch: launch.begin):
        first, last = max(launch.begin, until), min(launch.end, end)
        if last > first:
            busy, until = busy + last - first, last
    return busy


def attention_layers(launches: Sequence[Launch]) -> list[LayerTime]:
    """The attention layers of the steps that were profiled, in the order in which they ran.

    They are the runs of kernels between hyper-connections that contain a kernel of attention.
    """
    found: list[LayerTime] = []
    inside: list[Launch] = []
    begin: float | None = None
    for launch in sorted(launches, key=lambda launch: (launch.begin, launch.end)):
        if not is_hyper_connection(launch.name):
            inside.append(launch)
            continue
        if begin is not None and any(is_attention(each.name) for each in inside):
            end = max(launch.begin, begin)
            planner = [each for each in inside if PLANNER in each.name]
            busy, planned = busy_time(inside, begin, end), busy_time(planner, begin, end)
            found.append(LayerTime(end - begin, busy, planned, len(inside)))
        begin = launch.end if begin is None or inside else max(begin, launch.end)
        inside = []
    return found


def times_by_kind(layers: Sequence[LayerTime], ratios: Sequence[int]) -> dict[str, LayerTime]:
    """Medians over the steps' layers of each kind.

    @param ratios: compress ratio of each of the model's layers
    @raises ValueError: the layers that were found are not those of whole steps
    """
    if not layers or len(layers) % len(ratios):
        raise ValueError(f"profile: got {len(layers)} attention layers, expected a multiple of {len(ratios)}")
    kinds: dict[str, list[LayerTime]] = {}
    for index, layer in enumerate(layers):
        kinds.setdefault(KINDS[ratios[index % len(ratios)]], []).append(layer)
    return {kind: LayerTime(*(statistics.median(numbers) for numbers in zip(*found))) for kind, found in kinds.items()}


def layer_rows(
    heads: int, requests: int, context: int, mode: str, kinds: dict[str, LayerTime]
) -> list[tuple[str, ...]]:
    """Rows of COLUMNS."""
    return [
        (
            *(kind, str(heads), str(requests), str(context), mode),
            *(f"{us:.1f}" for us in (time.span, time.busy, time.planner)),
            f"{time.launches:.0f}",
        )
        for kind, time in kinds.items()
    ]


def layer_table(mode: str, requests: int, context: int, kinds: dict[str, LayerTime]) -> str:
    """A line for each kind."""
    return "\n".join(
        f"decode {requests} x {context} {mode:9s} {kind:6s} layer {time.span:7.1f} us, kernels run in "
        f"{time.busy:7.1f} of them, FlashMLA's planner in {time.planner:.1f}, {time.launches:.0f} launches"
        for kind, time in kinds.items()
    )
