"""torch.ops.sparsemla: every op beside sparsemla.ops, torch's own checks of custom ops, torch.compile."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", minversion="2.6")

import sparsemla  # noqa: E402
import sparsemla.torch as room  # noqa: E402
from op_samples import Sample, bf16_cache, samples  # noqa: E402

SAMPLES = samples()
BOTH = [op for op in SAMPLES if f"{op}.out" in room.names()]


def copied(value: Any) -> Any:
    """A tensor with the same numbers and strides; anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).copy_(value)


def bits(tensor: Any) -> Any:
    """Its bytes, so that NaN is NaN."""
    return tensor.contiguous().flatten().view(torch.uint8)


def write(op: str, sample: Sample) -> tuple[Any, dict[str, Any]]:
    """The writing form on copies: what it returned, and the copies."""
    copies = {name: copied(value) for name, value in (sample.read | sample.written).items()}
    packet = getattr(torch.ops.sparsemla, op)
    return (packet.out if op in BOTH else packet.default)(**copies), copies


def test_every_op_has_a_sample() -> None:
    assert sorted(SAMPLES) == sorted(sparsemla.ops.names())
    assert sorted({name.partition(".")[0] for name in room.names()}) == sorted(sparsemla.ops.names())
    # Those that at least have a form which returns new tensors.
    assert {"sparse_attention", "merge_partials", "topk", "indexer_logits", "inverse_rope", "projection"} <= set(BOTH)


@pytest.mark.parametrize("op", SAMPLES)
def test_results_are_those_of_sparsemla_ops(op: str) -> None:
    back, written = write(op, SAMPLES[op])
    assert back is None
    copies = {name: copied(value) for name, value in (SAMPLES[op].read | SAMPLES[op].written).items()}
    plain: dict[str, Any] = {}
    for member in sparsemla.ops.members(op):
        argument = member["name"].replace("[", "_").replace("]", "").replace(".", "_")
        if argument not in copies:
            continue
        given = copies[argument]
        if member["kind"] == "cache":
            given = sparsemla.Cache(given, copies[f"{argument}_format"], given.shape[1])
        plain[member["name"]] = given
    getattr(sparsemla.ops, op)(**plain)
    changed = 0
    for name, before in (SAMPLES[op].read | SAMPLES[op].written).items():
        if isinstance(before, torch.Tensor):
            assert torch.equal(bits(written[name]), bits(copies[name])), name
            changed += not torch.equal(bits(before), bits(written[name]))
    assert changed >= 1


@pytest.mark.parametrize("op", BOTH)
def test_new_results_are_those_that_are_written(op: str) -> None:
    _, written = write(op, SAMPLES[op])
    back = getattr(torch.ops.sparsemla, op)(**SAMPLES[op].read)
    for name, got in zip(SAMPLES[op].written, back if isinstance(back, (tuple, list)) else (back,), strict=True):
        assert got.shape == written[name].shape
        assert torch.equal(bits(got), bits(written[name])), name


@pytest.mark.parametrize("name", room.names())
def test_opcheck(name: str) -> None:
    op, _, form = name.partition(".")
    read, written = SAMPLES[op]
    keywords = read if form == "" and op in BOTH else read | written
    overload = getattr(getattr(torch.ops.sparsemla, op), form or "default")
    arguments = {key: copied(value) for key, value in keywords.items()}
    first = arguments.pop(overload._schema.arguments[0].name)
    # torch's check of schemas compares numbers in a way that E4M3 does not have; the tests above compare bytes.
    of_fp8 = any(isinstance(x, torch.Tensor) and x.dtype == torch.float8_e4m3fn for x in (first, *arguments.values()))
    checks = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(overload, (first,), arguments, test_utils=checks if of_fp8 else ("test_schema", *checks))


def choose_and_attend(q: Any, sink: Any, cache: Any, scores: Any, lens: Any) -> Any:
    """Top-k, attention over what it chose, and again with its result for queries."""
    chosen = torch.ops.sparsemla.topk(scores * 2, lens, k=16)
    rows = {"scopes_0_cache": cache, "scopes_0_indices": chosen, "scopes_0_cache_format": "bf16"}
    first, _ = torch.ops.sparsemla.sparse_attention(q + 0, sink, **rows)
    second, lse = torch.ops.sparsemla.sparse_attention(first * 0.5, sink, **rows)
    return second + 1, lse


def attend_arguments(tokens: int) -> tuple[Any, ...]:
    torch.manual_seed(tokens)
    q = torch.randn(tokens, 4, 512).bfloat16()
    lens = torch.full((tokens,), 256, dtype=torch.int32)
    return q, torch.randn(4), bf16_cache(), torch.randn(tokens, 256), lens


def test_compiled_in_one_graph() -> None:
    compiled = torch.compile(choose_and_attend, fullgraph=True, backend="aot_eager", dynamic=True)
    for tokens in (3, 5):
        expected, got = choose_and_attend(*attend_arguments(tokens)), compiled(*attend_arguments(tokens))
        torch.testing.assert_close(got, expected)


def test_compiled_writes_into_a_cache_and_a_given_tensor() -> None:
    def insert_then_attend(rows: Any, slots: Any, cache: Any, q: Any, o: Any) -> Any:
        torch.ops.sparsemla.insert_rows(rows, slots, cache, cache_format="bf16")
        indices = slots.to(torch.int32).expand(q.shape[0], -1).contiguous()
        torch.ops.sparsemla.sparse_attention.out(
            q, scopes_0_cache=cache, scopes_0_indices=indices, scopes_0_cache_format="bf16", o=o
        )
        return o * 2

    torch.manual_seed(0)
    rows, q = torch.randn(6, 512).bfloat16(), torch.randn(2, 4, 512).bfloat16()
    slots = torch.tensor([3, 70, 128, 5, 200, 199])
    results = []
    for function in (insert_then_attend, torch.compile(insert_then_attend, fullgraph=True, backend="aot_eager")):
        cache, o = torch.zeros(4, 64, 1024, dtype=torch.uint8), torch.zeros(2, 4, 512, dtype=torch.bfloat16)
        results.append((function(rows, slots, cache, q, o), cache, o))
    for got, expected in zip(results[1], results[0], strict=True):
        assert torch.equal(got, expected)
    assert results[0][1].any()
    assert results[0][2].any()


def test_fakes_follow_shapes() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        q = torch.empty(7, 64, 512, dtype=torch.bfloat16, device="cuda")
        rows = torch.empty(9, 64, 584, dtype=torch.uint8, device="cuda")
        slots = torch.empty(7, 128, dtype=torch.int32, device="cuda")
        o, lse = torch.ops.sparsemla.sparse_attention(
            q, scopes_0_cache=rows, scopes_0_indices=slots, scopes_0_cache_format="fp8_ds_mla", o_dtype=torch.float32
        )
        assert (tuple(o.shape), o.dtype, o.device.type) == ((7, 64, 512), torch.float32, "cuda")
        assert (tuple(lse.shape), lse.dtype) == ((7, 64), torch.float32)


def test_what_is_wrong_is_said() -> None:
    read = SAMPLES["sparse_attention"].read
    op = torch.ops.sparsemla.sparse_attention
    with pytest.raises(sparsemla.InvalidArgument, match="scopes_0_cache_format: got none"):
        op(**(read | {"scopes_0_cache_format": None}))
    flat = torch.zeros(4, 64 * 1024, dtype=torch.uint8).copy_(read["scopes_0_cache"].flatten(1))
    with pytest.raises(sparsemla.InvalidArgument, match="scopes_0_cache_block_size: got none"):
        op(**(read | {"scopes_0_cache": flat}))
    torch.testing.assert_close(op(**(read | {"scopes_0_cache": flat, "scopes_0_cache_block_size": 64})), op(**read))
    with pytest.raises(sparsemla.InvalidArgument, match="k: got none"):
        torch.ops.sparsemla.topk(torch.zeros(2, 8), torch.zeros(2, dtype=torch.int32))
    with pytest.raises(sparsemla.InvalidArgument, match="op: got 'no_op'"):
        room.schema("no_op")


def test_schemas_declare_what_is_written() -> None:
    assert "Tensor(a!)? indices" in room.schema("topk.out")
    assert "(a!)" not in room.schema("topk")
    assert "Tensor(a!)? cache" in room.schema("insert_rows")
    assert "Tensor? scopes_0_cache" in room.schema("sparse_attention")
