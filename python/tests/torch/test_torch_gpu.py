"""torch.ops.sparsemla on a GPU: every op beside its CPU result, CUDA graphs, torch.compile with inductor."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", minversion="2.6")

import sparsemla  # noqa: E402
import sparsemla.torch as room  # noqa: E402
from op_samples import Sample, bf16_cache, samples  # noqa: E402

pytestmark = pytest.mark.skipif(
    not (torch.cuda.is_available() and sparsemla.built_with_cuda()), reason="needs a GPU and a build with CUDA"
)

SAMPLES = samples()
BOTH = [op for op in SAMPLES if f"{op}.out" in room.names()]
# Sums in another order than on the CPU: relative l2 of what is written; everything else is equal to the bit.
ROUNDED = {
    "projection": 1e-2,
    "rms_norm": 1e-2,
    "latent_norms": 1e-2,
    "qnorm_rope_insert": 1e-2,
    "inverse_rope": 1e-2,
    "compress_store": 1e-2,
    "indexer_q": 5e-2,
    "indexer_logits": 1e-2,
    "ragged_indexer_logits": 1e-2,
    "sparse_attention": 1e-2,
    "merge_partials": 1e-2,
    "inverse_rope_quant": 5e-2,
    "quantize_rows": 5e-2,
}


def placed(value: Any, device: str) -> Any:
    """A copy on a device with the same strides; anything but a tensor as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device).copy_(value)


def run(op: str, sample: Sample, device: str) -> dict[str, Any]:
    """All tensors of a call of the writing form, on the CPU."""
    copies = {name: placed(value, device) for name, value in (sample.read | sample.written).items()}
    packet = getattr(torch.ops.sparsemla, op)
    (packet.out if op in BOTH else packet.default)(**copies)
    return {name: value.cpu() for name, value in copies.items() if isinstance(value, torch.Tensor)}


def numbers(tensor: Any) -> Any:
    return tensor.double().nan_to_num(0, 0, 0)


def same_bytes(a: Any, b: Any) -> bool:
    return bool(torch.equal(a.contiguous().flatten().view(torch.uint8), b.contiguous().flatten().view(torch.uint8)))


@pytest.mark.parametrize("op", SAMPLES)
def test_results_are_those_of_the_cpu(op: str) -> None:
    expected, got = run(op, SAMPLES[op], "cpu"), run(op, SAMPLES[op], "cuda")
    for name, tensor in expected.items():
        if op not in ROUNDED:
            assert same_bytes(got[name], tensor), name
        elif tensor.dtype == torch.uint8:
            # Bytes of rows: a rounding apart in few of them.
            assert float((got[name] != tensor).double().mean()) < 0.05, name
        else:
            error = (numbers(got[name]) - numbers(tensor)).norm()
            assert float(error) <= ROUNDED[op] * max(float(numbers(tensor).norm()), 1e-30), name


@pytest.mark.parametrize("name", ["sparse_attention", "sparse_attention.out", "topk", "insert_rows", "projection"])
def test_opcheck(name: str) -> None:
    op, _, form = name.partition(".")
    read, written = SAMPLES[op]
    keywords = read if form == "" and op in BOTH else read | written
    arguments = {key: placed(value, "cuda") for key, value in keywords.items()}
    overload = getattr(getattr(torch.ops.sparsemla, op), form or "default")
    first = arguments.pop(overload._schema.arguments[0].name)
    torch.library.opcheck(overload, (first,), arguments)


def choose_and_attend(q: Any, sink: Any, cache: Any, scores: Any, lens: Any) -> Any:
    """Top-k, attention over what it chose, and again with its result for queries."""
    chosen = torch.ops.sparsemla.topk(scores * 2, lens, k=16)
    rows = {"scopes_0_cache": cache, "scopes_0_indices": chosen, "scopes_0_cache_format": "bf16"}
    first, _ = torch.ops.sparsemla.sparse_attention(q + 0, sink, **rows)
    second, lse = torch.ops.sparsemla.sparse_attention(first * 0.5, sink, **rows)
    return second + 1, lse


def attend_arguments(seed: int, tokens: int = 4) -> tuple[Any, ...]:
    torch.manual_seed(seed)
    made = (
        torch.randn(tokens, 4, 512).bfloat16(),
        torch.randn(4),
        bf16_cache(),
        torch.randn(tokens, 256),
        torch.full((tokens,), 256, dtype=torch.int32),
    )
    return tuple(placed(tensor, "cuda") for tensor in made)


def test_cuda_graph_replays_with_new_contents() -> None:
    arguments = attend_arguments(1)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        choose_and_attend(*arguments)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = choose_and_attend(*arguments)
    for seed in (2, 3):
        fresh = attend_arguments(seed)
        for to, value in zip(arguments, fresh, strict=True):
            to.copy_(value)
        graph.replay()
        for got, expected in zip(recorded, choose_and_attend(*fresh), strict=True):
            assert torch.equal(got, expected)


def test_cuda_graph_writes_into_a_cache() -> None:
    rows = torch.randn(6, 512, device="cuda").bfloat16()
    slots = torch.tensor([3, 70, 128, 5, 200, 199], device="cuda")
    cache = torch.zeros(4, 64, 1024, dtype=torch.uint8, device="cuda")
    insert = torch.ops.sparsemla.insert_rows
    insert(rows, slots, cache, cache_format="bf16")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        insert(rows, slots, cache, cache_format="bf16")
    rows.normal_()
    cache.zero_()
    graph.replay()
    written = cache.view(torch.bfloat16).reshape(-1, 512)
    assert torch.equal(written[slots], rows)
    assert int((cache != 0).any(dim=2).sum()) == 6


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiled_in_one_graph(mode: str) -> None:
    compiled = torch.compile(choose_and_attend, fullgraph=True, mode=mode)
    for seed in (4, 5, 6):
        expected = choose_and_attend(*attend_arguments(seed))
        got = compiled(*attend_arguments(seed))
        torch.testing.assert_close(got, expected)


def test_current_stream_is_used() -> None:
    logits = torch.zeros(8, 4096, device="cuda")
    lens = torch.full((8,), 4096, dtype=torch.int32, device="cuda")
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # the op must wait behind this and the copy
        logits.copy_(torch.randn(8, 4096, device="cuda"))
        chosen = torch.ops.sparsemla.topk(logits, lens, k=16)
    stream.synchronize()
    assert torch.equal(chosen.sort(dim=1).values, logits.topk(16).indices.int().sort(dim=1).values)
