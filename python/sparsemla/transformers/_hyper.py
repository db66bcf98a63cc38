"""Hyper-connections on the CPU: a few tokens at a time, so that what one op leaves in the caches the next one finds.

transformers' own go through the residual streams of all tokens once for each op. Here they are read once where a block
begins and once where it ends. What transformers rounds to the model's dtype is rounded here.
"""

from __future__ import annotations

import types
from typing import Any

import torch
from torch.nn.functional import linear
from transformers.models.deepseek_v4.modeling_deepseek_v4 import (
    DeepseekV4DecoderLayer,
    DeepseekV4HyperConnection,
    DeepseekV4HyperHead,
)

from ._signature import check_signature

TOKENS = 32
"""Tokens at a time: their streams in float32 are 2 MB in V4-Flash."""


def _mixes(streams: torch.Tensor, fn: torch.Tensor, eps: float) -> torch.Tensor:
    """Logits [tokens, mixes] of streams [tokens, streams, hidden], which are normed together; all float32."""
    flat = streams.flatten(1)
    length = torch.linalg.vector_norm(flat, dim=-1, keepdim=True)
    return linear(flat, fn) * torch.rsqrt(length.square() / flat.shape[1] + eps)


def _doubly_stochastic(logits: torch.Tensor, iterations: int, eps: float) -> torch.Tensor:
    """Sinkhorn-Knopp of matrices [tokens, streams, streams]."""
    comb = torch.softmax(logits, dim=-1) + eps
    comb = comb / (comb.sum(dim=-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        comb = comb / (comb.sum(dim=-1, keepdim=True) + eps)
        comb = comb / (comb.sum(dim=-2, keepdim=True) + eps)
    return comb


def _collapse(streams: torch.Tensor, pre: torch.Tensor) -> torch.Tensor:
    """[tokens, hidden]: the streams [tokens, streams, hidden] times pre [tokens, streams]."""
    return torch.bmm(pre.unsqueeze(1), streams).squeeze(1)


class Mixer:
    """What one hyper-connection makes of the streams before its block, and needs behind it."""

    def __init__(self, own: DeepseekV4HyperConnection, tokens: int) -> None:
        self._own = own
        self._fn = own.fn.float()
        self._logits = torch.empty(tokens, self._fn.shape[0])
        self.post: torch.Tensor
        self.comb: torch.Tensor

    def collapse(self, streams: torch.Tensor, begin: int) -> torch.Tensor:
        """The block's input [tokens, hidden] out of the float32 streams of the tokens from `begin` on."""
        own, count = self._own, self._own.hc_mult
        logits = _mixes(streams, self._fn, own.input_norm.eps)
        self._logits[begin : begin + len(logits)] = logits
        pre = torch.sigmoid(logits[:, :count] * own.scale[0] + own.base[:count]) + own.hc_eps
        return _collapse(streams, pre.float())

    def finish(self, dtype: torch.dtype) -> None:
        """When all tokens have been through collapse(): `post` [tokens, streams] in the streams' dtype, and `comb`."""
        own, count = self._own, self._own.hc_mult
        post, comb = self._logits[:, count:].split([count, count * count], dim=-1)
        scale, base = own.scale.float(), own.base.float()
        self.post = (2 * torch.sigmoid(post * scale[1] + base[count : 2 * count])).to(dtype)
        logits = comb * scale[2] + base[2 * count :]
        comb = _doubly_stochastic(logits.view(-1, count, count), own.hc_sinkhorn_iters, own.hc_eps)
        self.comb = comb.mT.to(dtype).float()

    def expand(self, streams: torch.Tensor, block: torch.Tensor, begin: int) -> torch.Tensor:
        """The next streams of the tokens from `begin` on, out of theirs, in float32, and of the block's output."""
        rows = slice(begin, begin + len(streams))
        return torch.bmm(self.comb[rows], streams).to(block.dtype) + self.post[rows].unsqueeze(2) * block.unsqueeze(1)


def layer_forward(
    self: DeepseekV4DecoderLayer, hidden_states: torch.Tensor, input_ids: torch.Tensor | None = None, **kwargs: Any
) -> torch.Tensor:
    """Signature and result of DeepseekV4DecoderLayer.forward; streams are [batch, tokens, streams, hidden]."""
    if hidden_states.device.type != "cpu":
        own: torch.Tensor = type(self).forward(self, hidden_states, input_ids, **kwargs)
        return own
    batch, tokens, _, width = hidden_states.shape
    streams = hidden_states.reshape(batch * tokens, *hidden_states.shape[2:])
    places = range(0, len(streams), TOKENS)
    collapsed = streams.new_empty(len(streams), width)
    around_attention, around_experts = Mixer(self.attn_hc, len(streams)), Mixer(self.ffn_hc, len(streams))
    for i in places:
        collapsed[i : i + TOKENS] = around_attention.collapse(streams[i : i + TOKENS].float(), i)
    around_attention.finish(streams.dtype)
    block, _ = self.self_attn(self.input_layernorm(collapsed.view(batch, tokens, width)), **kwargs)
    block = block.reshape(collapsed.shape)
    between = torch.empty_like(streams)
    for i in places:
        rows = slice(i, i + TOKENS)
        between[rows] = around_attention.expand(streams[rows].float(), block[rows], i)
        collapsed[rows] = around_experts.collapse(between[rows].float(), i)
    around_experts.finish(streams.dtype)
    block = self.mlp(self.post_attention_layernorm(collapsed.view(batch, tokens, width)), input_ids=input_ids)
    block = block.reshape(collapsed.shape)
    made = torch.empty_like(streams)
    for i in places:
        rows = slice(i, i + TOKENS)
        made[rows] = around_experts.expand(between[rows].float(), block[rows], i)
    return made.view(hidden_states.shape)


def head_forward(self: DeepseekV4HyperHead, x: torch.Tensor) -> torch.Tensor:
    """Signature and result of DeepseekV4HyperHead.forward: x [batch, tokens, streams, hidden] to one stream."""
    if x.device.type != "cpu":
        own: torch.Tensor = type(self).forward(self, x)
        return own
    streams = x.flatten(0, 1)
    fn, scale, base = self.hc_fn.float(), self.hc_scale.float(), self.hc_base.float()
    made = x.new_empty(len(streams), x.shape[-1])
    for i in range(0, len(streams), TOKENS):
        part = streams[i : i + TOKENS].float()
        pre = torch.sigmoid(_mixes(part, fn, self.input_norm.eps) * scale + base) + self.eps
        made[i : i + TOKENS] = _collapse(part, pre)
    return made.view(*x.shape[:2], x.shape[-1])


FORWARDS: dict[type[torch.nn.Module], Any] = {DeepseekV4DecoderLayer: layer_forward, DeepseekV4HyperHead: head_forward}


def check_signatures() -> None:
    """Raises Unsupported for a release of transformers whose layers or heads are called otherwise."""
    for module, forward in FORWARDS.items():
        check_signature(module, forward)


def take(model: torch.nn.Module) -> None:
    """Replaces the forward of all layers and heads of a model that have their own."""
    for module in model.modules():
        forward = FORWARDS.get(type(module))
        if forward is not None and "forward" not in module.__dict__:
            module.__dict__["forward"] = types.MethodType(forward, module)


def give_back(model: torch.nn.Module) -> None:
    """Undoes take()."""
    for module in model.modules():
        forward = FORWARDS.get(type(module))
        if forward is not None and getattr(module.__dict__.get("forward"), "__func__", None) is forward:
            del module.__dict__["forward"]
