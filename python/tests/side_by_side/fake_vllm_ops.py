"""vLLM's CuTe DSL kernels over torch on a CPU, strict about what they are given."""

from __future__ import annotations

from typing import Any

import torch
from side_by_side.ops.inputs import rotated
from side_by_side.ops.peer import OpPeer, VllmOps
from side_by_side.ops.vllm import Kernels


def narrow(x: torch.Tensor, least: float) -> tuple[torch.Tensor, torch.Tensor]:
    """e4m3 codes of `x` [..., n] and the powers of two that they are multiples of."""
    scale = torch.exp2(torch.ceil(torch.log2(x.abs().amax(-1, keepdim=True).clamp(min=least) / 448)))
    return (x / scale).to(torch.float8_e4m3fn), scale


def store(pages: torch.Tensor, slot: int, row: torch.Tensor) -> None:
    """Writes 512 numbers into a block of 576 bytes a row and 8 scales behind them all."""
    page = pages.shape[1]
    codes, scales = narrow(row[:448].float().view(7, 64), 1e-4)
    block = torch.as_strided(pages, (page * 584,), (1,), (slot // page) * pages.stride(0))
    data, at = block[: page * 576].view(page, 576)[slot % page], page * 576 + slot % page * 8
    data[:448] = codes.view(torch.uint8).flatten()
    data[448:] = row[448:].bfloat16().view(torch.uint8)
    block[at : at + 7] = (torch.log2(scales.flatten()) + 127).to(torch.uint8)


class FakeKernels:
    """What a wheel's modules hold; `factor` makes every result wrong by it."""

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor
        self.called: list[str] = []

    def compress(self, **given: Any) -> None:
        ratio, state, cache = given["compress_ratio"], given["state_cache"], given["kv_cache"]
        self.called.append(f"compress {ratio}")
        halves = 2 if ratio == 4 else 1
        assert given["overlap"] is (halves == 2) and given["state_width"] == 512 * halves
        assert state.dtype == torch.float32 and state.shape[1:] == (given["block_size"], 1024 * halves)
        assert state.stride(0) % 16 == 0 and given["block_size"] == (4 if ratio == 4 else 8)
        assert cache.dtype == torch.uint8 and cache.shape[1:] == (64 if ratio == 4 else 2, 584)
        assert cache.stride() == (-(-584 * cache.shape[1] // 576) * 576, 584, 1)
        assert given["positions"].dtype == given["slot_mapping"].dtype == torch.int64
        assert given["block_table"].dtype == given["token_to_req_indices"].dtype == torch.int32
        assert given["num_actual"] == given["positions"].numel()
        for token, position in enumerate(given["positions"].tolist()):
            slot = int(given["k_cache_metadata"].slot_mapping[token])
            if slot < 0 or (position + 1) % ratio:
                continue
            numbers, logits = [], []
            for back in range(ratio * halves - 1, -1, -1):
                block, at = divmod(position - back, given["block_size"])
                half = 512 * (halves - 1) * (back < ratio)
                row = state[given["block_table"][given["token_to_req_indices"][token], block], at]
                numbers.append(row[half : half + 512])
                logits.append(row[512 * halves + half : 512 * halves + half + 512])
            pooled = (torch.softmax(torch.stack(logits), 0) * torch.stack(numbers)).sum(0)
            normed = pooled * torch.rsqrt(pooled.square().mean() + given["rms_norm_eps"])
            turned = rotated(normed * given["rms_norm_weight"], given["cos_sin_cache"][position + 1 - ratio])
            store(cache, slot, turned * self.factor)

    def index_queries(self, **given: Any) -> None:
        self.called.append("queries")
        assert given["q"].dtype == given["weights"].dtype == torch.bfloat16 and given["positions"].dtype == torch.int64
        turns = given["cos_sin_cache"][given["positions"]][:, None]
        codes, scales = narrow(rotated(given["q"].float(), turns).float(), 1e-4)
        given["q_fp8"].copy_(codes)
        factor = given["weights_softmax_scale"] * given["weights_head_scale"] * self.factor
        given["weights_out"].copy_(given["weights"].float() * scales[..., 0] * factor)

    def gather(self, **given: Any) -> None:
        self.called.append("gather")
        cache, page, count = given["k_cache"], given["block_size"], int(given["seq_lens"][0])
        assert given["gather_lens"] is None and given["offset"] == 0 and cache.shape[1:] == (64, 584)
        assert given["out"].shape == (1, count, 512) and given["out"].dtype == torch.bfloat16
        for i in range(count):
            block, at = int(given["block_table"][0, i // page]), i % page
            bytes_ = torch.as_strided(cache, (page * 584,), (1,), block * cache.stride(0))
            data, scales = bytes_[at * 576 : at * 576 + 576], bytes_[page * 576 + at * 8 :][:7]
            codes = data[:448].clone().view(torch.float8_e4m3fn).float().view(7, 64)
            numbers = (codes * torch.exp2(scales.float() - 127)[:, None]).flatten()
            row = torch.cat([numbers, data[448:].clone().view(torch.bfloat16).float()])
            given["out"][0, i] = row * self.factor


class Broken(OpPeer):
    """Takes no call."""

    name = "broken"

    def prepare(self, call: Any, output: Any) -> Any:
        raise ValueError("no kernel\nfor this card")


def peer(factor: float = 1.0) -> tuple[VllmOps, FakeKernels]:
    """The adapter over the fakes, and these."""
    fakes = FakeKernels(factor)
    return VllmOps(Kernels(fakes.compress, fakes.index_queries, fakes.gather, "4.8.0")), fakes


def load(path: str) -> OpPeer:
    return Broken() if path.endswith("broken") else peer()[0]
