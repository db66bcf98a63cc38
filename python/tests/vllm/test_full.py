"""Inserted rows, compressed entries, index queries and the output projection against float32 torch."""

from __future__ import annotations

import pytest
import torch
from sparsemla.vllm.full import OutputProjection, compress, index_queries, insert_window_rows
from sparsemla.vllm.kernels import Kernels
from world import (
    StateMetadata,
    World,
    flat,
    get_index_rows,
    get_rows,
    places,
    relative_l2,
    rope_table,
    rotate,
    strided_cache,
)

TABLE = rope_table(2048)


def test_window_rows_are_rotated_and_inserted_at_their_slots() -> None:
    world = World([300, 70], [5, 70], 0, padding=2)
    swa = world.swa()
    kv = world.randn(world.tokens + 2, 512).to(torch.bfloat16)
    before = flat(world.window_cache).clone()
    positions = torch.cat([world.positions, torch.zeros(2, dtype=torch.int64)])
    insert_window_rows(Kernels(), kv, positions, TABLE, swa.slot_mapping, world.window_cache)
    slots = swa.slot_mapping[: world.tokens]
    expected = torch.stack([rotate(kv[t].float(), TABLE[world.positions[t]]) for t in range(world.tokens)])
    got = get_rows(world.window_cache, slots)
    assert relative_l2(got[:, :448], expected[:, :448]) < 0.03
    assert relative_l2(got[:, 448:], expected[:, 448:]) < 3e-3
    untouched = torch.ones_like(before, dtype=torch.bool)
    untouched[places(world.window_cache, slots, 576, 0, 576)] = False
    untouched[places(world.window_cache, slots, 8, 64 * 576, 8)] = False
    assert torch.equal(flat(world.window_cache)[untouched], before[untouched])


def pooled(kv: torch.Tensor, score: torch.Tensor, ratio: int, entry: int, d: int) -> torch.Tensor:
    """fp32 [d]: the entry that tokens of its group, and where groups overlap of the one before, are pooled to"""
    own = slice(entry * ratio, (entry + 1) * ratio)
    values, logits = kv[own, -d:], score[own, -d:]
    if kv.shape[1] > d and entry > 0:
        before = slice((entry - 1) * ratio, entry * ratio)
        values, logits = torch.cat([kv[before, :d], values]), torch.cat([score[before, :d], logits])
    return (torch.softmax(logits, 0) * values).sum(0)


@pytest.mark.parametrize("d, ratio", [(512, 4), (512, 128), (128, 4)])
@pytest.mark.parametrize("cut", [0, 203])
def test_entries_are_pooled_normed_rotated_and_stored(d: int, ratio: int, cut: int) -> None:
    """One request's prefill, whole or in two chunks; the second reads state rows that the first left in the cache."""
    world = World([390], [390], 0, ratio=ratio)
    halves = 2 if ratio == 4 else 1
    kv, score = world.randn(390, halves * d), world.randn(390, halves * d)
    ape, weight = 0.5 * world.randn(ratio, halves * d), 1 + 0.1 * world.randn(d)
    block = 4 if ratio == 4 else 8
    blocks = (390 + block - 1) // block
    table = (torch.randperm(blocks, generator=world.generator) + 1).int()[None]
    state = strided_cache(blocks + 1, block, 8 * halves * d, world.generator).view(torch.float32)
    cache = world.main_cache if d == 512 else world.index_cache
    for first, last in [(0, cut), (cut, 390)] if cut else [(0, 390)]:
        positions = torch.arange(first, last)
        entry = torch.where((positions + 1) % ratio == 0, world.entry_slots(0, positions // ratio), -1)
        slots = table[0, positions // block].long() * block + positions % block
        step = StateMetadata(table, slots, torch.zeros(last - first, dtype=torch.int32))
        rows = torch.cat([kv, score], 1)[first:last]
        compress(
            Kernels(), rows, ape, weight.to(torch.bfloat16), 1e-6, positions, TABLE, ratio, step, state, entry, cache
        )
    whole = score + ape[torch.arange(390) % ratio]
    expected = []
    for e in range(390 // ratio):
        x = pooled(kv, whole, ratio, e, d)
        y = x * torch.rsqrt(x.square().mean() + 1e-6) * weight.to(torch.bfloat16).float()
        expected.append(rotate(y, TABLE[e * ratio]))
    slots = world.entry_slots(0, torch.arange(390 // ratio))
    got = get_rows(cache, slots) if d == 512 else get_index_rows(cache, slots)
    assert relative_l2(got, torch.stack(expected)) < 0.03


def test_index_queries_carry_their_scales_in_the_weights() -> None:
    world = World([50], [50], 0)
    q, weights = world.randn(50, 8, 128).to(torch.bfloat16), world.randn(50, 8).to(torch.bfloat16)
    values, folded = index_queries(Kernels(), q, weights, world.positions, TABLE)
    expected = torch.stack([rotate(q[t].float(), TABLE[t]) for t in range(50)]) * weights.float()[..., None]
    got = values.float() * folded[..., None] * 128**0.5 * 8**0.5
    assert values.dtype == torch.float8_e4m3fn
    assert relative_l2(got, expected) < 0.04


@pytest.mark.parametrize("kind", ["bf16", "fp8", "fp8 in groups"])
def test_output_is_rotated_back_and_projected_by_groups(kind: str) -> None:
    world = World([70], [70], 0)
    heads, groups, rank = 8, 2, 256
    inputs = heads // groups * 512
    o = world.randn(70, heads + 4, 512).to(torch.bfloat16)[:, :heads]
    weight, scale = world.randn(groups * rank, inputs) / inputs**0.5, None
    exact = weight
    if kind == "bf16":
        weight = exact = weight.to(torch.bfloat16)
    else:
        scale = torch.exp2(
            torch.randint(-12, -8, (groups * rank // 128, inputs // 128), generator=world.generator).float()
        )
        weight = (32 * world.randn(groups * rank, inputs)).to(torch.float8_e4m3fn)
        exact = weight.float() * scale.repeat_interleave(128, 0).repeat_interleave(128, 1)
        if kind == "fp8 in groups":
            weight, scale = weight.view(groups, rank, inputs), scale.view(groups, rank // 128, inputs // 128)
    projection = OutputProjection(Kernels(), heads, groups, rank)
    assert projection.refusal(weight, scale) == ""
    z = projection.forward(o, world.positions, TABLE, weight, scale)
    back = torch.stack([rotate(o[t].float(), TABLE[t], back=True) for t in range(70)]).view(70, groups, inputs)
    expected = torch.einsum("tgk,gnk->tgn", back, exact.float().view(groups, rank, inputs))
    assert relative_l2(z, expected) < (5e-3 if kind == "bf16" else 0.03)


def test_weights_that_stay_vllms() -> None:
    projection = OutputProjection(Kernels(), 8, 2, 256)
    assert "float16" in projection.refusal(torch.empty(512, 2048, dtype=torch.float16), None)
    weight = torch.empty(512, 2048, dtype=torch.float8_e4m3fn)
    assert "int32" in projection.refusal(weight, torch.empty(4, 16, dtype=torch.int32))
    assert "has 4 scales, and 64 are expected" in projection.refusal(weight, torch.empty(4))
    odd = OutputProjection(Kernels(), 8, 2, 100)
    assert "multiples of 128" in odd.refusal(torch.empty(200, 2048, dtype=torch.float8_e4m3fn), torch.empty(32))
