"""Index scores and the exact choice with vLLM's metadata against float32 torch."""

from __future__ import annotations

import pytest
import torch
from sparsemla.vllm.indexer import IndexScorer
from sparsemla.vllm.kernels import Kernels
from world import World, get_index_rows

K, HEADS = 64, 8

BATCHES = {
    "decode": World([1, 130, 700, 1300], [1, 1, 1, 1], 4),
    "drafts": World([40, 131, 700], [2, 2, 2], 3),
    "uneven drafts": World([40, 431, 700], [3, 1, 2], 3),
    "prefill": World([3, 300, 600], [3, 90, 100], 0),
    "mixed": World([257, 900, 2, 70, 513], [1, 1, 2, 70, 120], 2),
}


def scores_of(world: World, q: torch.Tensor, weights: torch.Tensor, token: int) -> torch.Tensor:
    seen = (int(world.positions[token]) + 1) // 4
    keys = get_index_rows(world.index_cache, world.entry_slots(token, torch.arange(seen)))
    return (torch.relu(q[token].float() @ keys.T) * weights[token][:, None]).sum(0)


def check_choice(world: World, scores: torch.Tensor, chosen: torch.Tensor) -> None:
    """The set of the largest scores, up to what their own rounding leaves open; then -1."""
    count = min(K, len(scores))
    picked = chosen[:count].long()
    assert len(set(picked.tolist())) == count
    assert torch.equal(chosen[count:], torch.full_like(chosen[count:], -1))
    if count < len(scores):
        best = scores.topk(count).values
        assert torch.allclose(scores[picked].sort(descending=True).values, best, rtol=1e-3, atol=1e-4)
    else:
        assert sorted(picked.tolist()) == list(range(count))


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("chunk_tokens", [1 << 30, 37])
@pytest.mark.parametrize("name", BATCHES)
def test_the_choice_is_exact(name: str, chunk_tokens: int, native: bool) -> None:
    made = BATCHES[name]
    world = World(made.seq_lens, made.query_lens, made.decodes)
    q = world.randn(world.tokens, HEADS, 128).to(torch.float8_e4m3fn)
    weights = world.randn(world.tokens, HEADS)
    choice = torch.full((world.tokens + 3, K), 12345, dtype=torch.int32)
    scorer = IndexScorer(Kernels(), K, HEADS, 4, world.max_model_len // 4, world.tokens + 3, torch.device("cpu"))
    scorer.expect_drafts(3)
    step = world.index_step(native, chunk_tokens)
    chosen = scorer.score(q, weights, world.index_cache, step, world.swa(), world.main(), choice)
    assert chosen.lens.shape == (world.tokens,)
    for t in range(world.tokens):
        check_choice(world, scores_of(world, q, weights, t) if world.positions[t] >= 3 else torch.empty(0), choice[t])
        local = choice[t][choice[t] >= 0]
        assert chosen.lens[t] == len(local)
        assert chosen.slots[t, : len(local)].tolist() == world.entry_slots(t, local).tolist()
    assert torch.all(choice[world.tokens :] == 12345)


def test_rows_of_a_graphs_padding_choose_nothing() -> None:
    world = World([300, 700], [1, 1], 2, padding=2)
    step, swa = world.index_step(), world.swa()
    step.num_decode_tokens = 4
    lens = torch.zeros(4, 1, dtype=torch.int32)
    assert step.decode is not None
    lens[:2] = step.decode.seq_lens
    step.decode.seq_lens = lens
    owner = torch.tensor([0, 1, 2, 2, 2], dtype=torch.int32)
    swa.token_to_req_indices = owner[:2]
    scorer = IndexScorer(Kernels(), K, HEADS, 4, 512, 8, torch.device("cpu"))
    choice = torch.zeros(8, K, dtype=torch.int32)
    q = world.randn(4, HEADS, 128).to(torch.float8_e4m3fn)
    chosen = scorer.score(q, world.randn(4, HEADS), world.index_cache, step, swa, world.main(), choice)
    assert chosen.lens.tolist() == [64, 64, 0, 0]
    assert torch.all(choice[2:4] == -1)


def test_a_chunk_is_laid_out_once_for_all_layers() -> None:
    world = World([300, 700], [200, 90], 0)
    step, swa = world.index_step(), world.swa()
    scorer = IndexScorer(Kernels(), K, HEADS, 4, 512, 300, torch.device("cpu"))
    assert step.prefill is not None
    first = scorer._prefill_rows(step, swa)
    assert [r.row_to_req.tolist()[:1] for r in first] == [[0], [0]]
    assert all(a is b for a, b in zip(first, scorer._prefill_rows(step, swa)))
