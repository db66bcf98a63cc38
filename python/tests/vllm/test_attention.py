"""Attention of a step with vLLM's metadata against float32 torch: layer kinds, decode, prefill, mixed, padding."""

from __future__ import annotations

import pytest
import torch
from sparsemla.vllm.attention import PagedAttention, Rotation, slots_of_choice, useful_width
from sparsemla.vllm.kernels import Kernels
from world import World, exact_attention, get_rows, relative_l2, rope_table, rotate

HEADS, SCALE, TOPK = 16, 512**-0.5, 64

BATCHES = {
    "decode": World([1, 130, 700, 1300], [1, 1, 1, 1], 4),
    "drafts": World([40, 131, 700], [2, 2, 2], 3),
    "uneven drafts": World([40, 131, 700], [3, 1, 2], 3),
    "prefill": World([3, 200, 600], [3, 90, 100], 0),
    "mixed": World([257, 900, 5, 70, 513], [1, 1, 5, 70, 120], 2),
}


def with_ratio(world: World, ratio: int, padding: int = 0) -> World:
    return World(world.seq_lens, world.query_lens, world.decodes, ratio, padding)


def chosen_entries(world: World, k: int = TOPK) -> torch.Tensor:
    """A choice as the indexer makes it: at most k of what each token sees, in any order, then -1."""
    choice = torch.full((world.tokens + world.padding, k), -1, dtype=torch.int32)
    for t in range(world.tokens):
        seen = (int(world.positions[t]) + 1) // 4
        picked = torch.randperm(seen, generator=world.generator)[: min(k, seen)]
        choice[t, : len(picked)] = picked.int()
    if world.padding:
        choice[world.tokens :] = 3
    return choice


def expected_rows(world: World, q: torch.Tensor, sink: torch.Tensor, choice: torch.Tensor | None) -> list[torch.Tensor]:
    rows = []
    for t in range(world.tokens):
        keys = [get_rows(world.window_cache, world.window_slots(t))]
        seen = (int(world.positions[t]) + 1) // world.ratio if world.ratio > 1 else 0
        local = torch.arange(seen)
        if world.ratio == 4:
            assert choice is not None
            local = choice[t][choice[t] >= 0]
        if len(local):
            keys.append(get_rows(world.main_cache, world.entry_slots(t, local)))
        rows.append(exact_attention(q[t], torch.cat(keys), sink, SCALE))
    return rows


def run(
    world: World, q: torch.Tensor, sink: torch.Tensor, choice: torch.Tensor | None, output: torch.Tensor, **more: object
) -> None:
    attention = PagedAttention(Kernels(), HEADS, SCALE, world.ratio)
    positions = torch.cat([world.positions, torch.zeros(world.padding, dtype=torch.int64)])
    attention.forward(
        q,
        positions,
        output,
        window_cache=world.window_cache,
        compressed_cache=world.main_cache if world.ratio > 1 else None,
        sink=sink,
        swa=world.swa(),
        compressed=world.main() if world.ratio > 1 else None,
        choice=choice,
        **more,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("ratio", [1, 4, 128])
@pytest.mark.parametrize("name", BATCHES)
def test_attention_is_that_of_float32_torch(name: str, ratio: int) -> None:
    world = with_ratio(BATCHES[name], ratio)
    q = world.randn(world.tokens, HEADS, 512).to(torch.bfloat16)
    sink = world.randn(HEADS)
    choice = chosen_entries(world) if ratio == 4 else None
    output = torch.full((world.tokens, HEADS, 512), float("nan"), dtype=torch.bfloat16)
    run(world, q, sink, choice, output)
    for t, expected in enumerate(expected_rows(world, q, sink, choice)):
        assert relative_l2(output[t], expected) < 4e-3, f"token {t}"


@pytest.mark.parametrize("ratio", [1, 4, 128])
def test_padding_of_a_graph_changes_nothing_and_is_zero(ratio: int) -> None:
    world = with_ratio(BATCHES["decode"], ratio, padding=4)
    q = world.randn(world.tokens + 4, HEADS, 512).to(torch.bfloat16)
    sink = world.randn(HEADS)
    choice = chosen_entries(world) if ratio == 4 else None
    output = torch.full((world.tokens + 4, HEADS, 512), float("nan"), dtype=torch.bfloat16)
    swa = world.swa()
    owner = torch.full((16,), 2, dtype=torch.int32)  # vLLM's buffer goes on behind the real tokens
    owner[: world.tokens] = world.request_of
    swa.token_to_req_indices = owner[: world.tokens]
    attention = PagedAttention(Kernels(), HEADS, SCALE, ratio)
    attention.forward(
        q,
        torch.zeros(world.tokens + 4, dtype=torch.int64),
        output,
        world.window_cache,
        world.main_cache if ratio > 1 else None,
        sink,
        swa,
        world.main() if ratio > 1 else None,
        choice,
    )
    for t, expected in enumerate(expected_rows(world, q, sink, choice)):
        assert relative_l2(output[t], expected) < 4e-3, f"token {t}"
    assert torch.equal(output[world.tokens :], torch.zeros_like(output[world.tokens :]))


def test_heads_of_padding_are_written_as_zero_and_not_read() -> None:
    world = with_ratio(BATCHES["mixed"], 1)
    q = world.randn(world.tokens, 32, 512).to(torch.bfloat16)
    q[:, HEADS:] = float("nan")
    sink = torch.cat([world.randn(HEADS), torch.full((16,), float("-inf"))])
    output = torch.full((world.tokens, 32, 512), float("nan"), dtype=torch.bfloat16)
    run(world, q, sink, None, output)
    for t, expected in enumerate(expected_rows(world, q[:, :HEADS], sink[:HEADS], None)):
        assert relative_l2(output[t, :HEADS], expected) < 4e-3
    assert torch.equal(output[:, HEADS:], torch.zeros_like(output[:, HEADS:]))


@pytest.mark.parametrize("name", ["decode", "mixed"])
def test_queries_are_normed_and_rotated_inside(name: str) -> None:
    world = with_ratio(BATCHES[name], 1)
    raw = (3 * world.randn(world.tokens, HEADS, 512)).to(torch.bfloat16)
    table = rope_table(world.max_model_len)
    ready = torch.empty_like(raw)
    for t in range(world.tokens):
        x = raw[t].float()
        ready[t] = rotate(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6), table[world.positions[t]]).to(
            torch.bfloat16
        )
    sink = world.randn(HEADS)
    output = torch.empty_like(raw)
    run(world, raw, sink, None, output, rotation=Rotation(table, 1e-6))
    for t, expected in enumerate(expected_rows(world, ready, sink, None)):
        assert relative_l2(output[t], expected) < 6e-3, f"token {t}"


def test_all_entries_of_prefills_are_made_once_a_step() -> None:
    world = with_ratio(BATCHES["mixed"], 128)
    kernels, swa, main = Kernels(), world.swa(), world.main()
    attention = PagedAttention(kernels, HEADS, SCALE, 128)
    q = world.randn(world.tokens, HEADS, 512).to(torch.bfloat16)
    outputs = [torch.empty_like(q) for _ in range(2)]
    calls = []
    run_op = kernels.run
    kernels.run = lambda op, *rest: (calls.append(op), run_op(op, *rest))[1]  # type: ignore[method-assign]
    for output in outputs:
        attention.forward(
            q, world.positions, output, world.window_cache, world.main_cache, world.randn(HEADS) * 0, swa, main, None
        )
    assert calls.count("dense_compressed_indices") == 1
    assert calls.count("sparse_attention") == 4
    assert torch.equal(outputs[0], outputs[1])


def test_slots_of_a_choice() -> None:
    world = with_ratio(BATCHES["mixed"], 4)
    choice = chosen_entries(world)
    swa = world.swa()
    swa.is_valid_token[1] = False
    got = slots_of_choice(Kernels(), choice, swa, world.main_table, 64)
    for t in range(world.tokens):
        local = choice[t][choice[t] >= 0]
        assert got.lens[t] == (0 if t == 1 else len(local))
        assert got.slots[t, : len(local)].tolist() == world.entry_slots(t, local).tolist()


def test_columns_that_no_token_needs_are_left_out() -> None:
    assert [useful_width(512, n) for n in (0, 1, 64, 65, 511, 512, 4000)] == [64, 64, 64, 128, 512, 512, 512]
    assert useful_width(40, 1000) == 40


def test_another_ratio_is_refused() -> None:
    with pytest.raises(ValueError, match="compress ratio: got 2, expected 1, 4 or 128"):
        PagedAttention(Kernels(), HEADS, SCALE, 2)


def test_a_profile_run_takes_memory_and_computes_nothing() -> None:
    for ratio in (1, 4, 128):
        PagedAttention(Kernels(), HEADS, SCALE, ratio).reserve(32, 512, 128, torch.empty(1))
