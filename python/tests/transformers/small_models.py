"""Small random models of transformers' deepseek_v4 with all three kinds of attention layer."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM, DynamicCache

CACHE = "cache" if "cache" in inspect.signature(DeepseekV4ForCausalLM.forward).parameters else "past_key_values"
"""What transformers calls a cache: `past_key_values` before 5.24."""

VOCABULARY = 256
LAYERS = [
    "sliding_attention",
    "compressed_sparse_attention",
    "heavily_compressed_attention",
    "compressed_sparse_attention",
]


def small_config(**changes: object) -> DeepseekV4Config:
    """V4's widths of a head, narrow elsewhere. The indexer chooses 32 entries: from 132 tokens on it has a choice."""
    numbers: dict[str, object] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 128,
        "moe_intermediate_size": 64,
        "num_hidden_layers": len(LAYERS),
        "num_attention_heads": 8,
        "q_lora_rank": 64,
        "o_groups": 2,
        "o_lora_rank": 64,
        "index_n_heads": 16,
        "index_topk": 32,
        "num_experts_per_tok": 2,
        "n_routed_experts": 4,
        "hc_mult": 2,
        "layer_types": LAYERS,
        "mlp_layer_types": ["hash_moe", "moe", "moe", "moe"],
        "max_position_embeddings": 65536,
        "rope_parameters": {
            "rope_type": "yarn",
            "factor": 16.0,
            "original_max_position_embeddings": 4096,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
        },
    }
    config = DeepseekV4Config(**(numbers | changes))
    config._attn_implementation = "eager"
    return config


def small_model(seed: int, dtype: torch.dtype = torch.float32, **changes: object) -> DeepseekV4ForCausalLM:
    """A model in evaluation mode whose every weight comes from the seed: rows of norm about 1, and no sink, position
    bias or norm at its neutral value."""
    model = DeepseekV4ForCausalLM(small_config(**changes)).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() >= 2 and "position_bias" not in name:
                weight.uniform_(-1, 1, generator=generator).mul_((3.0 / weight.shape[-1]) ** 0.5)
            elif name.endswith("norm.weight"):
                weight.uniform_(0.8, 1.2, generator=generator)
            elif not name.endswith("scale"):
                weight.uniform_(-0.3, 0.3, generator=generator)
        for name, table in model.named_buffers():
            if name.endswith("tid2eid"):
                table.random_(0, model.config.n_routed_experts, generator=generator)
    return model.to(dtype)


def prompt(seed: int, tokens: int, batch: int = 1) -> torch.Tensor:
    """Token numbers [batch, tokens] of a seed."""
    return torch.randint(0, VOCABULARY, (batch, tokens), generator=torch.Generator().manual_seed(1000 + seed))


def relative_l2(got: torch.Tensor, expected: torch.Tensor) -> float:
    """|got - expected| / |expected| over all numbers, in float64."""
    return float((got.double() - expected.double()).norm() / expected.double().norm())


def equal_until_close(
    logits: torch.Tensor, tokens: torch.Tensor, expected: torch.Tensor, expected_tokens: torch.Tensor
) -> int:
    """How many of the first tokens [1, N] are the expected ones. Where they part, the best two of the expected logits
    [1, P + N, V] (the first token from row P - 1) have to be closer than four times the error of their difference.

    Logits are those of the expected tokens. Rows differ in how far they are rounded, so the error is that of one row.
    """
    differ = (tokens != expected_tokens)[0].nonzero()
    if not len(differ):
        return tokens.shape[1]
    until = int(differ[0])
    row = expected.shape[1] - tokens.shape[1] - 1 + until
    error = 2**0.5 * float((logits - expected)[0, row].square().mean().sqrt())
    best = expected[0, row].topk(2).values
    assert float(best[0] - best[1]) < 4 * error
    return until


def fp8_rows(rows: torch.Tensor) -> torch.Tensor:
    """Rows [..., 512] as fp8_ds_mla stores them: E4M3 with a power of two for each 64 of the first 448 numbers,
    bfloat16 for the other 64."""
    nope = rows[..., :448].unflatten(-1, (7, 64)).float()
    scale = torch.exp2(torch.ceil(torch.log2(nope.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448)))
    stored = ((nope / scale).to(torch.float8_e4m3fn).float() * scale).flatten(-2)
    return torch.cat([stored, rows[..., 448:].bfloat16().float()], -1).to(rows.dtype)


class FP8RowsCache(DynamicCache):
    """transformers' cache whose rows and entries are rounded to what fp8_ds_mla stores; index keys are not."""

    def __init__(self, config: DeepseekV4Config) -> None:
        super().__init__(config=config)
        for layer in self.layers:
            if hasattr(layer, "update_compressor_states"):
                layer.update_compressor_states = self._rounding(layer.update_compressor_states)

    @staticmethod
    def _rounding(own: Callable[[str, torch.Tensor], torch.Tensor]) -> Callable[[str, torch.Tensor], torch.Tensor]:
        return lambda name, entries: own(name, fp8_rows(entries) if name == "compressor" else entries)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rounds the new rows and appends them."""
        rows = fp8_rows(key_states)
        return super().update(rows, rows, layer_idx, *args, **kwargs)


@torch.inference_mode()
def decode(
    model: DeepseekV4ForCausalLM,
    ids: torch.Tensor,
    new_tokens: int,
    chunk: int | None = None,
    forced: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [batch, tokens + new_tokens, vocabulary] in float32 and the greedy tokens [batch, new_tokens], the prompt
    fed in chunks; with `forced` those tokens are fed in place of the greedy ones."""
    cache = DynamicCache(config=model.config)
    logits = [model(part, **{CACHE: cache}).logits for part in ids.split(chunk or ids.shape[1], dim=1)]
    chosen = []
    for i in range(new_tokens):
        chosen.append(logits[-1][:, -1:].argmax(-1))
        fed = chosen[-1] if forced is None else forced[:, i : i + 1]
        logits.append(model(fed, **{CACHE: cache}).logits)
    return torch.cat(logits, dim=1).float(), torch.cat(chosen, dim=1)


@torch.inference_mode()
def at_once(
    model: DeepseekV4ForCausalLM, ids: torch.Tensor, tokens: torch.Tensor, cache: DynamicCache | None = None
) -> torch.Tensor:
    """The logits of `decode` with `tokens` for greedy ones, from one forward over prompt and tokens."""
    cache = cache or DynamicCache(config=model.config)
    return model(torch.cat([ids, tokens], dim=1), **{CACHE: cache}).logits.float()
