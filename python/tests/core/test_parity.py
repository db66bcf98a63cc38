"""The project's case files through Python: the same bytes as the library writes by itself."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import sparsemla as sm

import cases

# Ops that no case file calls are below.
OTHERS = {
    "add_rows",
    "draft_positions",
    "indexer_topk",
    "joint_projection",
    "output_projection",
    "merge_partials",
    "merge_topk",
    "pack_sequences",
    "quantize_rows",
    "rms_norm",
    "short_context_topk",
    "unpack_sequences",
}


def test_recorded_calls_give_the_same_bytes(recorded: list[Path]) -> None:
    seen: Counter[str] = Counter()
    for path in recorded:
        call = cases.read_call(cases.read_case(path))
        getattr(sm.ops, call.op)(**call.tensors, **call.scalars)
        assert call.expected, path
        for name, want in call.expected.items():
            assert call.written[name].tobytes() == want.tobytes(), f"{path.name}: {name}"
        seen[call.op] += 1
    assert set(seen) == set(sm.ops.names()) - OTHERS


def test_scalars_that_tensors_determine_are_the_recorded_ones(recorded: list[Path]) -> None:
    left_out = 0
    for path in recorded:
        case = cases.read_case(path)
        call = cases.read_call(case)
        found = sm.ops.scalars(call.op, **call.tensors)
        for name, value in found.items():
            # 0 stands for what the tensors say; q may have more heads than are read.
            if name in ("value_dim", "out_heads", "heads") and case.op == "sparse_attention":
                continue
            if name in case.params:
                assert value == case.params[name], f"{path.name}: {name}"
                left_out += 1
    assert left_out > 2000


def test_a_plan_of_the_scalars_runs_the_call(recorded: list[Path]) -> None:
    done = set()
    for path in recorded:
        call = cases.read_call(cases.read_case(path))
        if call.op in done:
            continue
        done.add(call.op)
        plan = sm.Plan(call.op, sm.ops.scalars(call.op, **call.tensors, **call.scalars))
        plan.run(call.tensors, workspace=aligned_bytes(plan.workspace_bytes))
        for name, want in call.expected.items():
            assert call.written[name].tobytes() == want.tobytes(), f"{path.name}: {name}"


def aligned_bytes(count: int) -> np.ndarray:
    """Bytes at an address that is a multiple of 64."""
    memory = np.zeros(count + 64, np.uint8)
    begin = -memory.ctypes.data % 64
    return memory[begin : begin + count]


def bits(x: np.ndarray) -> np.ndarray:
    """bfloat16 bits, rounded to nearest even."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def numbers(x: np.ndarray) -> np.ndarray:
    return (x.astype(np.uint32) << 16).view(np.float32)


def test_rms_norm_and_add_rows() -> None:
    x = np.random.default_rng(1).normal(size=(5, 96)).astype(np.float32)
    w = np.linspace(0.5, 2, 96, dtype=np.float32)
    y = np.empty_like(x)
    sm.ops.rms_norm(x=x, weight=w, y=y, eps=1e-3)
    want = x / np.sqrt((x.astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-3) * w
    np.testing.assert_allclose(y, want, rtol=1e-6)
    plain = np.empty_like(x)
    sm.ops.rms_norm(x=x, y=plain, eps=1e-3)
    np.testing.assert_allclose(plain * w, want, rtol=1e-6)
    total = x.copy()
    sm.ops.add_rows(y=y, x=total)
    np.testing.assert_array_equal(total, x + y)
    total = x.copy()
    sm.ops.add_rows(y=x, x=total, normed=True, eps=1e-3)
    np.testing.assert_allclose(total, x + plain, rtol=1e-6)


def test_bfloat16_as_its_bits() -> None:
    x = np.random.default_rng(2).normal(size=(3, 64)).astype(np.float32)
    y, z = bits(x), bits(2 * x)
    sm.ops.add_rows(y=y, x=z)
    np.testing.assert_allclose(numbers(z), numbers(y) + numbers(bits(2 * x)), rtol=2**-8)


def test_joint_projection_is_a_projection_of_each_weight() -> None:
    rng = np.random.default_rng(4)
    x = rng.normal(size=(3, 1, 40)).astype(np.float32)
    weights = [rng.normal(size=(1, n, 40)).astype(np.float32) for n in (5, 1, 16)]
    parts = [{"w": w, "y": np.empty((3, 1, w.shape[1]), np.float32)} for w in weights]
    sm.ops.joint_projection(x=x, parts=parts)
    for w, part in zip(weights, parts, strict=True):
        alone = np.empty_like(part["y"])
        sm.ops.projection(x=x, w=w, y=alone)
        np.testing.assert_array_equal(part["y"], alone)
        np.testing.assert_allclose(alone[:, 0], x[:, 0] @ w[0].T, rtol=1e-4, atol=1e-5)


def test_indexer_topk_is_scores_and_their_choice() -> None:
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(2, 64, 128)).astype(np.float32)
    cache = sm.Cache(rows.view(np.uint8).reshape(2, -1), format="index_f32", block_size=64)
    inputs = {
        "q": rng.normal(size=(3, 2, 128)).astype(np.float32),
        "weights": rng.normal(size=(3, 2)).astype(np.float32),
        "row_to_req": np.zeros(3, np.int32),
        "lens": np.array([100, 3, 64], np.int32),
        "block_table": np.array([[1, 0]], np.int32),
        "cache": cache,
    }
    scores, want, chosen = np.zeros((3, 100), np.float32), np.empty((3, 8), np.int32), np.empty((3, 8), np.int32)
    sm.ops.indexer_logits(**inputs, logits=scores)
    sm.ops.topk(logits=scores, lens=inputs["lens"], indices=want)
    sm.ops.indexer_topk(**inputs, indices=chosen, width=100)
    np.testing.assert_array_equal(chosen, want)
    assert (chosen[1] == [0, 1, 2, -1, -1, -1, -1, -1]).all()


def test_quantize_rows_gives_e4m3_as_bytes() -> None:
    x = np.full((2, 256), 448.0, np.float32)
    values, scales = np.empty((2, 256), np.uint8), np.empty((1, 2, 4), np.float32)
    sm.ops.quantize_rows(x=x, values=values, scales=scales)
    assert (values == 0x7E).all()  # 448
    np.testing.assert_array_equal(scales[0, :, :2], 1)


def test_projection_quantises_its_outputs_as_quantize_rows_does() -> None:
    rng = np.random.default_rng(6)
    x = rng.normal(size=(3, 2, 40)).astype(np.float32)
    w = rng.normal(size=(2, 128, 40)).astype(np.float32)
    y = np.empty((3, 2, 128), np.float32)
    got = {"y_values": np.empty((3, 256), np.uint8), "y_scales": np.empty((1, 2, 4), np.float32)}
    sm.ops.projection(x=x, w=w, y=y, quantises_y=True, **got)
    values, scales = np.empty((3, 256), np.uint8), np.empty((1, 2, 4), np.float32)
    sm.ops.quantize_rows(x=y.reshape(3, 256), values=values, scales=scales)
    np.testing.assert_array_equal(got["y_values"], values)
    np.testing.assert_array_equal(got["y_scales"], scales)
    with pytest.raises(sm.InvalidArgument, match=r"projection: y_values: got .* expected none without quantises_y"):
        sm.ops.projection(x=x, w=w, y=y, quantises_y=False, **got)


def test_merge_partials_is_one_softmax() -> None:
    rng = np.random.default_rng(3)
    o = rng.normal(size=(3, 2, 4, 64)).astype(np.float32)
    lse = rng.normal(size=(3, 2, 4)).astype(np.float32)
    out, total = np.empty((2, 4, 64), np.float32), np.empty((2, 4), np.float32)
    sm.ops.merge_partials(partial_o=o, partial_lse=lse, o=out, lse=total)
    weights = np.exp(lse - np.log(np.exp(lse).sum(0)))
    np.testing.assert_allclose(out, (weights[..., None] * o).sum(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(total, np.log(np.exp(lse).sum(0)), rtol=1e-6)


def test_merge_topk_is_one_choice() -> None:
    # Entry e is local entry e // 2 of rank e % 2; of equal scores the lower entry is better.
    scores = np.random.default_rng(4).integers(0, 5, size=(3, 16)).astype(np.float32)
    of_rank = [scores[:, rank::2] for rank in range(2)]
    best = [np.argsort(-s, axis=1, kind="stable")[:, :4].astype(np.int32) for s in of_rank]
    chosen, own = np.empty((3, 4), np.int32), np.empty((3, 4), np.int32)
    sm.ops.merge_topk(
        scores=np.stack([np.take_along_axis(s, b, 1) for s, b in zip(of_rank, best, strict=True)]),
        indices=np.stack(best),
        chosen=chosen,
        own=own,
        share={"rank": 1, "ranks": 2, "interleave": 1},
    )
    want = np.sort(np.argsort(-scores, axis=1, kind="stable")[:, :4], axis=1)
    np.testing.assert_array_equal(chosen, want)
    for row, entries in zip(own, want, strict=True):
        mine = entries[entries % 2 == 1] // 2
        np.testing.assert_array_equal(row, [*mine, *[-1] * (4 - len(mine))])


def test_sequences_there_and_back() -> None:
    rows = np.arange(5 * 8, dtype=np.int32).reshape(5, 8)
    loc = np.array([0, 2, 5], np.int32)
    packed = np.empty((2, 3, 8), np.int32)
    sm.ops.pack_sequences(rows=rows, query_start_loc=loc, packed=packed)
    np.testing.assert_array_equal(packed[0, :2], rows[:2])
    assert (packed[0, 2] == 0).all()
    back = np.zeros_like(rows)
    sm.ops.unpack_sequences(packed=packed, query_start_loc=loc, rows=back)
    np.testing.assert_array_equal(back, rows)


def test_positions_and_short_contexts() -> None:
    positions = np.empty(3, np.int64)
    sm.ops.draft_positions(seq_lens=np.array([4, 1, 9], np.int32), positions=positions)
    np.testing.assert_array_equal(positions, [3, 0, 8])
    indices = np.empty((3, 4), np.int32)
    sm.ops.short_context_topk(positions=positions, indices=indices)
    np.testing.assert_array_equal(indices, [[0, -1, -1, -1], [-1, -1, -1, -1], [0, 1, -1, -1]])


def test_attention_of_the_readme_over_two_frameworks_of_strides() -> None:
    rows = np.zeros((2, 512), np.float32)
    rows[0, 0] = rows[1, 1] = 1
    q = np.zeros((1, 1, 512), np.float32)
    q[0, 0, 0] = 16
    wide = np.empty((1, 3, 512), np.uint16)
    o = wide[:, 1:2]  # strided
    slots = np.array([[0, 1, -1]], np.int32)
    sm.ops.sparse_attention(
        q=bits(q), o=o, scopes=[{"cache": sm.Cache(bits(rows), "bf16", 1), "indices": slots, "lens": None}]
    )
    np.testing.assert_allclose(numbers(o)[0, 0, :3], [0.668, 0.330, 0], atol=1e-3)


@pytest.mark.parametrize("op", sm.ops.names())
def test_every_op_documents_its_members(op: str) -> None:
    text = getattr(sm.ops, op).__doc__
    for member in sm.ops.members(op):
        assert f"    {member['name']}" in text
