"""The checks of python/bench/vllm on CPU tensors: their float32 against this library, and what they find wrong."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import sparsemla as sm
import torch
from attention_check import KINDS, AttentionCheck, Entries, exact_attention, relative_l2
from cache_rows import row_bytes, row_values
from sparsemla.vllm.attention import PagedAttention
from sparsemla.vllm.kernels import Kernels, paged_cache
from step_check import Notes, StepCheck, chosen_mask
from step_check import is_good as is_good_step
from test_attention import BATCHES, HEADS, SCALE, chosen_entries, with_ratio
from world import World, flat, get_index_rows, put_index_rows, strided_cache

TOKENS, BLOCKS, ROWS = 6, 5, 64


def random_pages(generator: torch.Generator) -> torch.Tensor:
    """fp8_ds_mla blocks [BLOCKS, ROWS, 584] of any codes but NaN, with scales from 2^-15 to 2^-8."""
    cache = strided_cache(BLOCKS, ROWS, 584, generator)
    memory = flat(cache)
    numbers = memory[:, : ROWS * 576].unflatten(1, (ROWS, 576))
    codes = numbers[:, :, :448]
    codes[(codes & 0x7F) == 0x7F] = 0
    rotated = torch.randn(BLOCKS, ROWS, 64, generator=generator).to(torch.bfloat16)
    numbers[:, :, 448:] = rotated.view(torch.uint8)
    scales = torch.randint(112, 120, (BLOCKS, ROWS * 8), dtype=torch.uint8, generator=generator)
    memory[:, ROWS * 576 :] = scales
    return cache


def random_slots(width: int, generator: torch.Generator) -> torch.Tensor:
    """int32 [TOKENS, width], one in eight of them -1"""
    slots = torch.randint(0, BLOCKS * ROWS, (TOKENS, width), generator=generator)
    return torch.where(torch.rand(TOKENS, width, generator=generator) < 0.125, -1, slots).int()


def test_float32_attention_is_that_of_the_library() -> None:
    generator = torch.Generator().manual_seed(3)
    caches = [random_pages(generator) for _ in range(2)]
    slots = [random_slots(width, generator) for width in (128, 90)]
    lens = [torch.tensor(n, dtype=torch.int32) for n in ([128, 1, 77, 0, 128, 5], [90, 0, 13, 90, 1, 64])]
    q = torch.randn(TOKENS, HEADS, 512, generator=generator).to(torch.bfloat16)
    sink = torch.randn(HEADS, generator=generator)
    output = torch.empty(TOKENS, HEADS, 512, dtype=torch.float32)
    sm.ops.sparse_attention(
        q=q,
        o=output,
        sink=sink,
        scale=SCALE,
        scopes=[
            {"cache": paged_cache(cache, "fp8_ds_mla"), "indices": slot, "lens": count}
            for cache, slot, count in zip(caches, slots, lens)
        ],
    )
    for token in range(TOKENS):
        lists = [Entries(cache, slot[token], count[token]) for cache, slot, count in zip(caches, slots, lens)]
        expected = exact_attention(q[token], lists, sink, SCALE)
        assert relative_l2(output[token][None], expected[None]) < 1e-5, f"token {token}"
        other = exact_attention(q[token], lists, sink + 1, SCALE)
        assert token == 3 or relative_l2(other[None], expected[None]) > 1e-3, "scores hide the sink"


def test_index_rows_as_bytes_and_numbers() -> None:
    generator = torch.Generator().manual_seed(4)
    cache, slots = strided_cache(3, 64, 132, generator), torch.tensor([190, 0, 63, 64, 100])
    put_index_rows(cache, slots, torch.randn(5, 128, generator=generator))
    assert torch.equal(row_values(row_bytes(cache, slots)), get_index_rows(cache, slots))


def layer_of(world: World, sink: torch.Tensor, choice: torch.Tensor | None) -> Any:
    """What the check reads of a layer."""
    return SimpleNamespace(
        swa_cache_layer=SimpleNamespace(prefix="window", kv_cache=world.window_cache),
        prefix="main",
        kv_cache=world.main_cache,
        compress_ratio=world.ratio,
        n_local_heads=HEADS,
        attn_sink=sink,
        topk_indices_buffer=choice,
        scale=SCALE,
    )


def checked(ratio: int, error: float = 0.0) -> tuple[list[dict[str, Any]], list[str]]:
    """The check's result for a mixed step of this library, whose outputs are off by a relative `error`.

    FlashMLA's place is taken by outputs with a relative error of 3e-3.
    """
    world = with_ratio(BATCHES["mixed"], ratio)
    q = world.randn(world.tokens, HEADS, 512).to(torch.bfloat16)
    sink = world.randn(HEADS)
    choice = chosen_entries(world) if ratio == 4 else None
    output = torch.empty_like(q)
    metadata = {"window": world.swa(), "main": world.main()}
    PagedAttention(Kernels(), HEADS, SCALE, ratio).forward(
        q,
        world.positions,
        output,
        window_cache=world.window_cache,
        compressed_cache=world.main_cache if ratio > 1 else None,
        sink=sink,
        swa=metadata["window"],
        compressed=metadata["main"] if ratio > 1 else None,
        choice=choice,
    )
    check = AttentionCheck()
    ours, flash = output.float() * (1 + error), output.float() * (1 + 3e-3)
    check.compare_call(layer_of(world, sink, choice), q, world.positions, ours, flash, metadata)
    return check.result()


@pytest.mark.parametrize("ratio", [1, 4, 128])
def test_a_step_of_the_library_passes(ratio: int) -> None:
    rows, failed = checked(ratio)
    assert not failed
    world = BATCHES["mixed"]
    assert {row["kind"]: row["rows"] for row in rows} == {
        kind: world.decode_tokens if kind.startswith("decode") else world.tokens - world.decode_tokens
        for kind in KINDS
        if kind.endswith({1: "SWA", 4: "C4A", 128: "C128A"}[ratio])
    }
    for row in rows:
        assert row["calls"] == 1
        assert 2 <= row["sampled"] <= 6
        assert 0 < row["ours_mean"] <= row["ours_max"] < row["flash_mean"]


@pytest.mark.parametrize("error", [5e-3, -5e-3, float("nan")])
def test_a_step_with_errors_fails(error: float) -> None:
    rows, failed = checked(4, error)
    assert failed == [row["kind"] for row in rows] == ["decode C4A", "prefill C4A"]


def choice_check(vllms: torch.Tensor, ours: torch.Tensor, world: World) -> list[dict[str, Any]]:
    check = StepCheck("indexer")
    check.notes = Notes("cpu")
    indexer = SimpleNamespace(
        k_cache=SimpleNamespace(prefix="index", kv_cache=world.index_cache),
        topk_indices_buffer=ours,
        vllms=SimpleNamespace(topk_indices_buffer=vllms),
        _window="window",
        _main="main",
    )
    metadata = {"index": world.index_step(), "window": world.swa(), "main": world.main()}
    q, weights = torch.ones(world.tokens, 8, 128), torch.ones(world.tokens, 8)
    check.compare_choice(indexer, q, weights, metadata)
    return check.result()[0]


def test_choices_are_compared_as_sets_and_by_scores() -> None:
    world = with_ratio(BATCHES["mixed"], 4)
    ours = chosen_entries(world)
    [same] = choice_check(ours.flip(1), ours, world)
    assert same["rows"] == world.tokens
    assert same["chosen"] == int((ours >= 0).sum())
    assert same["differ"] == same["counts_differ"] == 0
    assert is_good_step(same)

    token = 1  # of 900 tokens: its choice is full
    other = ours.clone()
    table = world.entry_slots(token, torch.arange(225))
    scores = torch.relu(get_index_rows(world.index_cache, table).sum(1)) * 8
    left_out = torch.tensor([i for i in range(225) if i not in ours[token].tolist()])
    best = left_out[scores[left_out].argmax()]
    worst_place = scores[ours[token].long()].argmin()
    other[token, worst_place] = best.int()
    [differs] = choice_check(other, ours, world)
    assert (differs["differ"], differs["most_of_a_row"], differs["counts_differ"]) == (1, 1, 0)
    chosen = torch.cat([ours[token].long(), best[None]])
    gap = (scores[best] - scores[ours[token, worst_place].long()]) / scores[chosen].abs().max()
    assert differs["largest_gap"] == pytest.approx(float(gap), rel=1e-5)
    assert not is_good_step(differs)
    assert not is_good_step({**differs, "largest_gap": float("nan")})

    other[token, worst_place] = -1
    [fewer] = choice_check(ours, other, world)
    assert fewer["counts_differ"] == 1
    assert not is_good_step(fewer)


def test_bounds_of_steps() -> None:
    assert is_good_step({"kind": "output projection", "l2": 1.9e-2})
    assert not is_good_step({"kind": "output projection", "l2": 2.1e-2})
    assert is_good_step({"kind": "insert", "l2": 4.9e-3, "bytes_differ": 7.0})
    for name, value in (("l2", 5.1e-3), ("codes_l2", 5.1e-3), ("largest", 1.1e-5)):
        assert not is_good_step({"kind": "any", name: value})


def test_a_mask_of_chosen_entries() -> None:
    mask = chosen_mask(torch.tensor([[2, 0, -1], [-1, -1, -1]]), 3)
    assert mask.tolist() == [[True, False, True], [False, False, False]]
