"""Rows of paged caches as bytes and as numbers: fp8_ds_mla (584 bytes) and index_fp8 (132 bytes)."""

from __future__ import annotations

import torch

PARTS = {584: (576, 8), 132: (128, 4)}
"""Bytes of a row -> bytes of its numbers, and of its scales, which lie behind the numbers of all rows of a block."""


def row_bytes(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """uint8 [n, bytes of a row] at slots [n]: numbers, then scales.

    @param cache: uint8 [blocks, rows of a block, bytes of a row], of any block stride
    """
    blocks, size, width = cache.shape
    numbers, scales = PARTS[width]
    flat = cache.as_strided((blocks, size * width), (cache.stride(0), 1))
    block, row = (slots // size)[:, None].long(), (slots % size)[:, None].long()
    return torch.cat(
        [
            flat[block, row * numbers + torch.arange(numbers, device=cache.device)],
            flat[block, size * numbers + row * scales + torch.arange(scales, device=cache.device)],
        ],
        dim=1,
    )


def row_values(rows: torch.Tensor) -> torch.Tensor:
    """float32 [n, 512] or [n, 128] of rows as row_bytes() gives them."""
    if rows.shape[1] == 132:
        return _fp8(rows[:, :128]) * rows[:, 128:].contiguous().view(torch.float32)
    scales = torch.exp2(rows[:, 576:583].float() - 127)
    latent = _fp8(rows[:, :448]).unflatten(1, (7, 64)) * scales[:, :, None]
    rotated = rows[:, 448:576].contiguous().view(torch.bfloat16).float()
    return torch.cat([latent.flatten(1), rotated], dim=1)


def _fp8(codes: torch.Tensor) -> torch.Tensor:
    return codes.contiguous().view(torch.float8_e4m3fn).float()
