"""The layer's class in all modes, on vLLM's metadata, with stand-ins of vLLM's modules around it."""

from __future__ import annotations

import importlib
import types
from typing import Any

import pytest
import torch
from sparsemla.vllm.settings import Mode, Settings
from stand_in import DeepseekCompressor, SparseAttnIndexer, Vllm
from test_attention import SCALE, chosen_entries, expected_rows
from world import StateMetadata, World, relative_l2, rope_table, rotate, strided_cache

HEADS, TOPK = 16, 64


class Step:
    """A mixed batch, a layer of it, and the metadata that its forward finds."""

    def __init__(
        self,
        vllm: Vllm,
        mode: Mode,
        ratio: int,
        fp4: bool = False,
        heads: int = HEADS,
        last: int = 120,
        own: bool = False,
    ) -> None:
        self.world = w = World([257, 900, 5, 70, 513], [1, 1, 5, 70, last], 2, ratio)
        self.swa, self.main = w.swa(), w.main()
        self.table = rope_table(w.max_model_len)
        self.choice = torch.full((w.tokens, TOPK), -1, dtype=torch.int32)
        window, index = torch.nn.Module(), torch.nn.Module()
        window.prefix, window.kv_cache = "window", w.window_cache
        index.prefix, index.kv_cache = "index", w.index_cache
        made = {
            "n_local_heads": heads,
            "n_local_groups": 2,
            "o_lora_rank": 256,
            "compress_ratio": ratio,
            "scale": SCALE,
            "eps": 1e-6,
            "window_size": 128,
            "attn_sink": torch.nn.Parameter(w.randn(heads), requires_grad=False),
            "rotary_emb": types.SimpleNamespace(cos_sin_cache=self.table),
            "topk_indices_buffer": self.choice,
            "swa_cache_layer": window,
            "kv_cache": w.main_cache,
        }
        config = types.SimpleNamespace(layer=made, index_cache=index, fp4=fp4, speculative_config=None)
        self.layer: Any = importlib.import_module("sparsemla.vllm.takeover").layer_class(Settings(mode, own=own))(
            config
        )
        vllm.metadata = {"window": self.swa, "m": self.main}
        if ratio == 4:
            vllm.metadata["index"] = w.index_step()

    def ready(self, q: torch.Tensor) -> torch.Tensor:
        x = q.float()
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        rows = [rotate(x[t], self.table[p]) for t, p in enumerate(self.world.positions.tolist())]
        return torch.stack(rows).to(torch.bfloat16)


@pytest.mark.parametrize("ratio", [1, 4, 128])
@pytest.mark.parametrize("mode", [Mode.ATTENTION, Mode.INDEXER, Mode.FULL])
def test_a_layers_attention(vllm_stand_in: Vllm, mode: Mode, ratio: int) -> None:
    step = Step(vllm_stand_in, mode, ratio)
    w, layer = step.world, step.layer
    if ratio == 4 and mode is Mode.ATTENTION:
        step.choice.copy_(chosen_entries(w))
        assert type(layer.indexer.indexer_op) is SparseAttnIndexer
    elif ratio == 4:
        q_index = w.randn(w.tokens, 64, 128).to(torch.float8_e4m3fn)
        layer.indexer.indexer_op(torch.empty(w.tokens, 8), q_index, None, w.randn(w.tokens, 64))
        assert (step.choice >= 0).sum(1).tolist() == [min((p + 1) // 4, TOPK) for p in w.positions.tolist()]
    q = w.randn(w.tokens, HEADS, 512).to(torch.bfloat16)
    kv = w.randn(w.tokens, 512).to(torch.bfloat16)
    inserted = layer._fused_qnorm_rope_kv_insert(q, kv, w.positions, vllm_stand_in.metadata)
    if mode is not Mode.FULL:
        assert torch.equal(inserted, q + 1)  # vLLM's own
        inserted = q
    output = torch.full_like(q, float("nan"))
    layer.forward_mqa(inserted, kv, w.positions, output)
    queries = step.ready(q) if mode is Mode.FULL else q
    for t, expected in enumerate(expected_rows(w, queries, layer.attn_sink.data, step.choice)):
        assert relative_l2(output[t], expected) < 6e-3, f"token {t}"


@pytest.mark.parametrize("ratio", [1, 4, 128])
@pytest.mark.parametrize("mode", [Mode.ATTENTION, Mode.FULL])
@pytest.mark.parametrize("case", ["large", "small", "own", "32 heads", "without FlashMLA"])
def test_large_prompts_are_left_to_flashmla(vllm_stand_in: Vllm, mode: Mode, ratio: int, case: str) -> None:
    vllm_stand_in.flashmla_available = case != "without FlashMLA"
    heads = 32 if case == "32 heads" else 64
    step = Step(vllm_stand_in, mode, ratio, heads=heads, last=120 if case == "small" else 200, own=case == "own")
    w, layer = step.world, step.layer
    assert (step.swa.num_prefill_tokens >= 256) == (case != "small")
    if ratio == 4:
        step.choice.copy_(chosen_entries(w))
    q = w.randn(w.tokens, heads, 512).to(torch.bfloat16)
    output = torch.full_like(q, float("nan"))
    layer.forward_mqa(q, None, w.positions, output)
    queries = step.ready(q) if mode is Mode.FULL else q
    for t, expected in enumerate(expected_rows(w, queries, layer.attn_sink.data, step.choice)):
        if case == "large" and t >= step.swa.num_decode_tokens:
            expected = queries[t].float()
        assert relative_l2(output[t], expected) < 6e-3, f"token {t}"


def test_slots_of_a_choice_are_used_once(vllm_stand_in: Vllm) -> None:
    """After a choice that was made without scores (short contexts) attention looks the entries up itself."""
    step = Step(vllm_stand_in, Mode.INDEXER, 4)
    w, scores = step.world, step.layer.indexer.indexer_op
    scores(torch.empty(w.tokens, 8), w.randn(w.tokens, 64, 128).to(torch.float8_e4m3fn), None, w.randn(w.tokens, 64))
    assert scores.take() is not None
    assert scores.take() is None
    step.choice.copy_(chosen_entries(w))
    q = w.randn(w.tokens, HEADS, 512).to(torch.bfloat16)
    output = torch.empty_like(q)
    step.layer.forward_mqa(q, None, w.positions, output)
    for t, expected in enumerate(expected_rows(w, q, step.layer.attn_sink.data, step.choice)):
        assert relative_l2(output[t], expected) < 6e-3, f"token {t}"


@pytest.mark.parametrize("mode", [Mode.ATTENTION, Mode.INDEXER, Mode.FULL])
def test_a_profile_run_computes_nothing(vllm_stand_in: Vllm, mode: Mode) -> None:
    step = Step(vllm_stand_in, mode, 4)
    vllm_stand_in.metadata = None
    q = torch.ones(step.world.tokens, HEADS, 512, dtype=torch.bfloat16)
    if mode is not Mode.ATTENTION:
        given = step.layer.indexer.indexer_op(torch.empty(3, 8), None, None, None)
        assert given is step.choice
        assert step.layer.indexer.indexer_op.take() is None
    if mode is Mode.FULL:
        assert step.layer._fused_qnorm_rope_kv_insert(q, None, step.world.positions, None) is q
        step.layer.compressor(None, step.world.positions, None)
    step.layer.forward_mqa(q, None, step.world.positions, q)
    assert torch.equal(q, torch.zeros_like(q))


def test_an_index_cache_of_other_rows_stays_vllms(vllm_stand_in: Vllm, caplog: pytest.LogCaptureFixture) -> None:
    step = Step(vllm_stand_in, Mode.FULL, 4, fp4=True)
    assert type(step.layer.indexer.indexer_op) is SparseAttnIndexer
    assert "scores and top-k stay vLLM's" in caplog.text
    assert vllm_stand_in.attention.SparseAttnIndexer is SparseAttnIndexer


@pytest.mark.parametrize("mode", [Mode.INDEXER, Mode.FULL])
def test_compressors_are_ours_in_mode_full(vllm_stand_in: Vllm, mode: Mode) -> None:
    step = Step(vllm_stand_in, mode, 4)
    w, compressor = step.world, step.layer.compressor
    assert (type(compressor) is DeepseekCompressor) == (mode is not Mode.FULL)
    assert type(step.layer.indexer.compressor) is type(compressor)
    if mode is not Mode.FULL:
        return
    state = strided_cache(w.tokens // 4 + 3, 4, 8 * 1024, w.generator).view(torch.float32)
    compressor.ape = torch.nn.Parameter(w.randn(4, 1024), requires_grad=False)
    compressor.norm = types.SimpleNamespace(weight=torch.nn.Parameter(torch.ones(512), requires_grad=False))
    compressor.rms_norm_eps, compressor.compress_ratio = 1e-6, 4
    compressor.state_cache = types.SimpleNamespace(prefix="state", kv_cache=state)
    compressor.k_cache_prefix, compressor._static_forward_context = "m", {"m": step.layer}
    step.main.slot_mapping = torch.full((w.tokens,), -1)
    tables = torch.arange(1, state.shape[0], dtype=torch.int32)[None].repeat(w.requests, 1)
    slots = 4 + torch.arange(w.tokens)
    vllm_stand_in.metadata["state"] = StateMetadata(tables, slots, w.request_of)
    rows = w.randn(w.tokens, 2048)
    compressor(rows, w.positions, step.layer.rotary_emb)
    t = w.tokens - 1
    saved = state[int(slots[t]) // 4, int(slots[t]) % 4]
    assert torch.equal(saved[:1024], rows[t, :1024])
    assert torch.allclose(saved[1024:], rows[t, 1024:] + compressor.ape[int(w.positions[t]) % 4])


def test_output_projection(vllm_stand_in: Vllm, caplog: pytest.LogCaptureFixture) -> None:
    o = torch.randn(195 + 2, HEADS, 512).to(torch.bfloat16)[:197]
    for mode, own in ((Mode.ATTENTION, False), (Mode.FULL, False), (Mode.FULL, True)):
        step = Step(vllm_stand_in, mode, 1, own=own)
        w = step.layer.wo_a
        w.weight = torch.nn.Parameter(torch.randn(512, 4096).to(torch.float8_e4m3fn), requires_grad=False)
        w.weight_scale_inv = torch.full((4, 32), 120, dtype=torch.uint8)  # UE8M0, 2^-7
        positions = torch.zeros(197, dtype=torch.int64)
        made = step.layer._o_proj(o, positions)
        if mode is Mode.ATTENTION:
            assert made.tolist() == [42.0]
            continue
        x = torch.stack([rotate(h, step.table[0], back=True) for h in o.float()]).view(197, 2, 4096)
        exact = torch.einsum("tgk,gnk->tgn", x, w.weight.float().view(2, 256, 4096) * 2.0**-7).flatten(1)
        assert relative_l2(made, exact) < 0.03
    step = Step(vllm_stand_in, Mode.FULL, 1)
    step.layer.wo_a.weight = torch.nn.Parameter(torch.empty(4, 4, dtype=torch.int32), requires_grad=False)
    assert step.layer._o_proj(o, positions).tolist() == [42.0]
    assert "the output projection stays vLLM's: wo_a is torch.int32" in caplog.text


@pytest.mark.parametrize("deep_gemm", [True, False])
def test_wo_a_stays_as_loaded_where_deepgemm_is_absent(vllm_stand_in: Vllm, deep_gemm: bool) -> None:
    vllm_stand_in.deep_gemm = deep_gemm
    wo_a = Step(vllm_stand_in, Mode.FULL, 1).layer.wo_a
    wo_a.quant_method.process_weights_after_loading(wo_a)
    assert hasattr(wo_a, "laid") == deep_gemm
