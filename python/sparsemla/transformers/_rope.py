"""Rope tables made of the model's own frequencies."""

from __future__ import annotations

from typing import Any

import torch
from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4RotaryEmbedding

from sparsemla import Unsupported

from ._weights import STATIC_ROPES

_LEAST_ROWS = 4096


class RopeTables:
    """Tables of cosines and sines of both kinds of layer, as long as the longest sequence so far.

    A table is [positions, 64] float32: the cosines of the 32 angles of a position, then their sines. The angles are
    products in float32, as in transformers; their cosines are computed in float64 and rounded once.
    """

    def __init__(self, config: Any, device: torch.device) -> None:
        self._device = device
        self._frequencies: dict[str, torch.Tensor] = {}
        self._tables: dict[str, torch.Tensor] = {}
        rotary = DeepseekV4RotaryEmbedding(config)
        for kind in ("main", "compress"):
            rope_type = rotary.rope_type[kind]
            if rope_type not in STATIC_ROPES:
                raise Unsupported(f"rope_type of {kind}: got {rope_type!r}, expected one of {', '.join(STATIC_ROPES)}")
            scaling = getattr(rotary, f"{kind}_attention_scaling")
            if scaling != 1.0:
                raise Unsupported(f"attention_factor of the {kind} rope: got {scaling}, expected 1.0")
            self._frequencies[kind] = getattr(rotary, f"{kind}_inv_freq").float().cpu()

    def table(self, kind: str, positions: int) -> torch.Tensor:
        """The table of "main" or "compress" with at least so many rows; the same tensor until it must grow."""
        table = self._tables.get(kind)
        if table is None or table.shape[0] < positions:
            rows = max(_LEAST_ROWS, 1 << (positions - 1).bit_length())
            angles = torch.arange(rows, dtype=torch.float32)[:, None] * self._frequencies[kind]
            angles = angles.double()
            table = torch.cat([angles.cos(), angles.sin()], dim=1).float().to(self._device)
            self._tables[kind] = table
        return table
