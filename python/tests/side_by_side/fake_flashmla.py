"""FlashMLA's two calls over torch on a CPU, strict about what they are given; also an adapter of its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from side_by_side.attention.inputs import Call, RowCache
from side_by_side.attention.peer import FlashMla, Peer, Prepared

DECODE = ("q", "kv", "indices", "topk_length", "sink", "sched", "splits", "ekv", "eidx", "elen", "dv", "scale", "out")


def attend(q: torch.Tensor, rows: torch.Tensor, sink: torch.Tensor, scale: float) -> torch.Tensor:
    """[H, 512] of one query over rows [K, 512]."""
    scores = q.double() @ rows.double().T * scale
    top = scores.max(-1, keepdim=True).values
    weights = torch.exp(scores - top)
    return weights @ rows.double() / (weights.sum(-1, keepdim=True) + torch.exp(sink.double()[:, None] - top))


class FakeOps:
    """`torch.ops._flashmla_C` of a wheel; `new` has the flag and the prefill for few heads."""

    def __init__(self, new: bool) -> None:
        names = [*DECODE, "enable_batch_invariant"] if new else DECODE
        schema = SimpleNamespace(arguments=[SimpleNamespace(name=name) for name in names])
        self.sparse_decode_fwd = _Decode(self, schema)
        self.new, self.schedules, self.decodes, self.prefills = new, 0, [], []

    def decode(self, *args: Any) -> Any:
        q, kv, indices, lens, sink, sched, splits, ekv, eidx, elen, dv, scale, out = args[:13]
        assert args[13:] == ((False,) if self.new else ())
        assert q.shape[1] == 1 and q.shape[2] in (64, 128) and sink.shape[0] == q.shape[2] and dv == 512
        assert (sched is None) == (splits is None)
        if sched is None:
            self.schedules += 1
        self.decodes.append(q.shape)
        for t in range(q.shape[0]):
            rows = []
            for pages, slots, counts in ((kv, indices, lens), (ekv, eidx, elen)):
                if pages is None:
                    continue
                assert slots.shape[1] == 1 and slots.shape[2] % 64 == 0 and slots.is_contiguous()
                rows.append(cache_of(pages).decode(slots[t, 0, : counts[t]]))
            out[t, 0] = attend(q[t, 0], torch.cat(rows), sink, scale)
        return out, None, sched or "schedule", splits or "splits"

    def sparse_prefill_fwd(
        self, q: Any, kv: Any, indices: Any, scale: Any, dv: Any, sink: Any, lens: Any, out: Any
    ) -> Any:
        assert q.shape[1] in ((8, 16, 32, 64, 128) if self.new else (64, 128)) and kv.dtype == torch.bfloat16
        assert indices.shape[2] % 128 == 0 and indices.dtype == torch.int32 and dv == 512
        self.prefills.append(q.shape)
        for t in range(q.shape[0]):
            chosen = indices[t, 0, : lens[t]].long()
            assert bool((chosen >= 0).all())
            out[t] = attend(q[t], kv[chosen, 0], sink, scale)
        return out


class _Decode:
    def __init__(self, ops: FakeOps, schema: Any) -> None:
        self.default, self._ops = SimpleNamespace(_schema=schema), ops

    def __call__(self, *args: Any) -> Any:
        return self._ops.decode(*args)


def cache_of(pages: torch.Tensor) -> RowCache:
    """The cache behind a view [blocks, rows, 1, 584]."""
    assert pages.dtype == torch.float8_e4m3fn and pages.shape[2:] == (1, 584) and pages.stride(1) == 584
    blocks, page, stride = pages.shape[0], pages.shape[1], pages.stride(0)
    bytes_ = torch.as_strided(pages.view(torch.uint8), (blocks, stride), (stride, 1))
    return RowCache("fp8_ds_mla", page, blocks, stride, bytes_, 1.0)


class Slow(Peer):
    """Takes all cells but prefills; what it computes is right."""

    name = "slow"

    def prepare(self, call: Call) -> Prepared | None:
        if call.cell.prefill:
            return None
        out = torch.empty(call.q.shape, dtype=torch.bfloat16)

        def run() -> None:
            for token in range(out.shape[0]):
                out[token] = call.expected(token)[0]

        return Prepared(run, out)


def load(path: str) -> Peer:
    return FlashMla(FakeOps(new=True)) if path.endswith("flashmla.so") else Slow()
