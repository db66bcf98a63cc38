"""How python/bench/vllm stands beside the plugin's layers, with stand-ins of vLLM's modules around them."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import worker_checks
from attention_check import READY_QUERIES, AttentionCheck
from mode_switch import ModeSwitch
from options import arguments
from sparsemla.vllm.settings import Mode, Settings
from stand_in import DeepseekCompressor, DeepseekV4FlashMLAAttention, SparseAttnIndexer, Vllm
from step_check import Notes, StepCheck
from test_attention import chosen_entries
from test_layer import Step
from world import StateMetadata, flat, strided_cache

import engine


def step_check(mode: str, with_peers: bool = True) -> StepCheck:
    check = StepCheck(mode, with_peers)
    check.notes = Notes("cpu")
    check.install()
    return check


@pytest.mark.parametrize("ratio", [1, 4, 128])
@pytest.mark.parametrize("heads", [16, 64])
def test_attention_is_checked_beside_flashmla(
    vllm_stand_in: Vllm, monkeypatch: pytest.MonkeyPatch, heads: int, ratio: int
) -> None:
    attend = importlib.import_module("sparsemla.vllm.layer").SparseMlaAttention.attend
    seen: list[tuple[int, int]] = []

    def flash(self: Any, q: torch.Tensor, kv: Any, positions: torch.Tensor, output: torch.Tensor) -> None:
        seen.append((q.shape[1], self.attn_sink.shape[0]))
        attend(self, q, positions, output, vllm_stand_in.metadata)
        output.mul_(1.003)

    monkeypatch.setattr(DeepseekV4FlashMLAAttention, "forward_mqa", flash)
    check = AttentionCheck()
    check.install()
    step = Step(vllm_stand_in, Mode.ATTENTION, ratio, heads=heads, own=True)
    w = step.world
    if ratio == 4:
        step.choice.copy_(chosen_entries(w))
    q = w.randn(w.tokens, heads, 512).to(torch.bfloat16)
    step.layer.forward_mqa(q, None, w.positions, torch.empty_like(q))
    assert seen == [(64, 64)]
    assert step.layer.attn_sink.shape == (heads,)
    rows, failed = check.result()
    assert not failed
    assert [row["rows"] for row in rows] == [w.decode_tokens, w.tokens - w.decode_tokens]
    assert all(0 < row["ours_max"] < 2e-3 < row["flash_max"] for row in rows)
    assert all(row["ours_flash_max"] > 2e-3 for row in rows)


def test_without_flashmla_float32_alone_is_compared_with(vllm_stand_in: Vllm) -> None:
    check = AttentionCheck(with_flash=False)
    check.install()
    step = Step(vllm_stand_in, Mode.ATTENTION, 1)
    q = step.world.randn(step.world.tokens, 16, 512).to(torch.bfloat16)
    step.layer.forward_mqa(q, None, step.world.positions, torch.empty_like(q))  # the stand-in of FlashMLA would fail
    rows, failed = check.result()
    assert not failed
    assert all(row["ours_max"] == row["flash_max"] > 0 and row["ours_flash_max"] == 0 for row in rows)


def test_inserted_rows_are_compared(vllm_stand_in: Vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    check = step_check("full", with_peers=False)
    step = Step(vllm_stand_in, Mode.FULL, 1)
    w, layer = step.world, step.layer
    q, kv = w.randn(w.tokens, 16, 512).to(torch.bfloat16), w.randn(w.tokens, 512).to(torch.bfloat16)
    layer._fused_qnorm_rope_kv_insert(q, kv, w.positions, vllm_stand_in.metadata)
    assert torch.equal(layer.__dict__[READY_QUERIES], q + 1)  # vLLM's own
    assert check.result() == (
        [{"kind": "insert", "calls": 1.0, "rows": w.tokens, "bytes_differ": 0.0, "l2": 0.0}],
        [],
    )

    def other(self: Any, q: torch.Tensor, *_: Any) -> torch.Tensor:
        flat(w.window_cache)[:, :448] ^= 0x80
        return q

    monkeypatch.setattr(DeepseekV4FlashMLAAttention, "_fused_qnorm_rope_kv_insert", other)
    layer._fused_qnorm_rope_kv_insert(q, kv, w.positions, vllm_stand_in.metadata)
    [row], failed = check.result()
    assert failed == ["insert"]
    assert row["bytes_differ"] > 0


def test_scores_and_choice_are_compared(vllm_stand_in: Vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    def theirs(self: Any, hidden_states: Any, q_quant: Any, k: Any, weights: Any) -> None:
        self.arguments[0][7].copy_(step.choice.flip(1))

    monkeypatch.setattr(SparseAttnIndexer, "forward", theirs, raising=False)
    monkeypatch.setattr(SparseAttnIndexer, "topk_indices_buffer", property(lambda self: self.arguments[0][7]), False)
    check = step_check("indexer")
    step = Step(vllm_stand_in, Mode.INDEXER, 4)
    w = step.world
    scores = step.layer.indexer.indexer_op
    scores(torch.empty(w.tokens, 8), w.randn(w.tokens, 64, 128).to(torch.float8_e4m3fn), None, w.randn(w.tokens, 64))
    [row], failed = check.result()
    assert not failed
    assert (row["rows"], row["differ"]) == (w.tokens, 0)
    assert row["chosen"] == int((step.choice >= 0).sum()) > 0


def test_compressors_are_compared(vllm_stand_in: Vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    change = 0.0
    monkeypatch.setattr(DeepseekCompressor, "forward", lambda self, *_: self.state_cache.kv_cache.add_(change))
    check = step_check("full")
    step = Step(vllm_stand_in, Mode.FULL, 4)
    w, compressor = step.world, step.layer.compressor
    state = torch.zeros(w.tokens // 4 + 3, 4, 2048)
    compressor.ape = torch.nn.Parameter(w.randn(4, 1024), requires_grad=False)
    compressor.norm = SimpleNamespace(weight=torch.nn.Parameter(torch.ones(512), requires_grad=False))
    compressor.rms_norm_eps, compressor.compress_ratio, compressor.head_dim = 1e-6, 4, 512
    compressor.state_cache = SimpleNamespace(prefix="state", kv_cache=state)
    compressor.k_cache_prefix, compressor._static_forward_context = "m", {"m": step.layer}
    entries = w.positions // 4
    ends = w.positions % 4 == 3
    slots = [w.entry_slots(t, entries[t : t + 1]) if ends[t] else torch.tensor([-1]) for t in range(w.tokens)]
    step.main.slot_mapping = torch.cat(slots)
    tables = torch.arange(1, state.shape[0], dtype=torch.int32)[None].repeat(w.requests, 1)
    vllm_stand_in.metadata["state"] = StateMetadata(tables, 4 + torch.arange(w.tokens), w.request_of)
    rows = w.randn(w.tokens, 2048)
    compressor(rows, w.positions, step.layer.rotary_emb)
    found, failed = check.result()
    assert not failed
    assert [(row["kind"], row.get("rows"), row.get("bytes_differ")) for row in found] == [
        ("entries 512 ratio 4", int(ends.sum()), 0),
        ("state 512 ratio 4", None, None),
    ]
    assert state.abs().max() > 0
    change = 1.0
    compressor(rows, w.positions, step.layer.rotary_emb)
    assert check.result()[1] == ["state 512 ratio 4"]


def test_index_queries_and_projections_are_compared(vllm_stand_in: Vllm) -> None:
    takeover = importlib.import_module("sparsemla.vllm.takeover")
    own = takeover.index_queries_or_vllms
    check = step_check("full")
    step = Step(vllm_stand_in, Mode.FULL, 1)
    w, kernels = step.world, step.layer.kernels
    vllms = own(lambda *args: None, kernels)
    quantise = takeover.index_queries_or_vllms(vllms, kernels)
    assert hasattr(quantise, "sparsemla")
    given = w.randn(w.tokens, 64, 128).to(torch.bfloat16), step.table, w.randn(w.tokens, 64).to(torch.bfloat16)
    codes, weights = quantise(w.positions, *given, 0.1, 0.2)
    assert (codes.shape, weights.shape) == ((w.tokens, 64, 128), (w.tokens, 64))
    scale = torch.full((4, 32), 120, dtype=torch.uint8)
    step.layer.wo_a.weight = torch.nn.Parameter(torch.randn(512, 4096).to(torch.float8_e4m3fn), requires_grad=False)
    step.layer.wo_a.weight_scale_inv = scale
    output = w.randn(w.tokens, 16, 512).to(torch.bfloat16)
    made = step.layer._o_proj(output, w.positions)
    assert made.shape == (w.tokens, 512)  # what is handed on is not the 42 of vLLM's stand-in
    rows, failed = check.result()
    assert failed == ["output projection"]
    assert rows[0] == {
        "kind": "index queries",
        "calls": 1.0,
        "rows": w.tokens,
        "codes_l2": 0.0,
        "weights_l2": 0.0,
    }


def test_a_profile_run_is_not_compared(vllm_stand_in: Vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    attention, steps = AttentionCheck(), step_check("full")
    attention.install()
    monkeypatch.setattr(SparseAttnIndexer, "forward", lambda self, *_: None, raising=False)
    step = Step(vllm_stand_in, Mode.FULL, 4)
    vllm_stand_in.metadata = None
    q = torch.ones(step.world.tokens, 16, 512, dtype=torch.bfloat16)
    step.layer._fused_qnorm_rope_kv_insert(q, None, step.world.positions, None)
    step.layer.indexer.indexer_op(torch.empty(3, 8), None, None, None)
    step.layer.compressor(None, step.world.positions, None)
    step.layer.forward_mqa(q, None, step.world.positions, q)
    assert step.layer.reserved  # FlashMLA's workspace
    assert attention.result() == steps.result() == ([], [])


@pytest.mark.parametrize("mode", ["flashmla", "attention", "indexer", "full", "own"])
def test_a_mode_has_vllms_own_where_it_takes_nothing(
    vllm_stand_in: Vllm, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    flash = DeepseekV4FlashMLAAttention
    monkeypatch.setattr(flash, "get_padded_num_q_heads", classmethod(lambda cls, heads: 64), raising=False)
    monkeypatch.setenv("SPARSEMLA_VLLM_OWN", "1")
    switch, vllms_queries = ModeSwitch(), vllm_stand_in.attention.fused_indexer_q_rope_quant
    switch.install()
    layer = Step(vllm_stand_in, Mode.FULL, 4, own=True).layer
    importlib.import_module("sparsemla.vllm.takeover").take_surroundings(Settings(Mode.FULL))
    cores = SimpleNamespace(
        model_executor=SimpleNamespace(
            driver_worker=SimpleNamespace(
                worker=SimpleNamespace(
                    model_runner=SimpleNamespace(
                        get_model=lambda: SimpleNamespace(model=SimpleNamespace(layers=[SimpleNamespace(attn=layer)]))
                    )
                )
            )
        )
    )
    llm = SimpleNamespace(llm_engine=SimpleNamespace(engine_core=SimpleNamespace(engine_core=cores)))
    switch.attach(llm)
    ours = type(layer).__mro__[1]
    for each in ("full", mode, "flashmla", mode):
        switch.use(each)
    full = mode == "full"
    assert (type(layer).forward_mqa is flash.forward_mqa) == (mode == "flashmla")
    assert (type(layer)._o_proj is ours._o_proj) == full
    assert (type(layer)._fused_qnorm_rope_kv_insert is ours._fused_qnorm_rope_kv_insert) == full
    assert (type(layer.compressor) is DeepseekCompressor) == (not full)
    assert type(layer.indexer.compressor) is type(layer.compressor)
    assert (type(layer.indexer.indexer_op) is SparseAttnIndexer) == (mode in ("flashmla", "attention", "own"))
    assert (vllm_stand_in.attention.fused_indexer_q_rope_quant is vllms_queries) == (not full)
    assert type(layer).settings == Settings(Mode.ATTENTION if mode in ("flashmla", "own") else Mode(mode), own=True)
    assert not layer._may_leave_prefill
    assert type(layer).get_padded_num_q_heads(32) == 64


def test_workers_take_their_checks_once(vllm_stand_in: Vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[str] = []
    monkeypatch.setattr(worker_checks, "install", installed.append)
    monkeypatch.setattr("small_model.replace_dummy_weights", lambda: installed.append("weights"))
    takeover = importlib.import_module("sparsemla.vllm.takeover")
    own = takeover.layer_class
    for _ in range(2):
        worker_checks.register()
    assert not installed
    for _ in range(2):
        assert takeover.layer_class(Settings(Mode.FULL)) is own(Settings(Mode.FULL))
    assert installed == ["weights", "full"]


def test_a_server_takes_the_small_models_weights(vllm_stand_in: Vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced: list[str] = []
    monkeypatch.setattr("small_model.replace_dummy_weights", lambda: replaced.append("weights"))
    takeover = importlib.import_module("sparsemla.vllm.takeover")
    own = takeover.layer_class
    for _ in range(2):
        worker_checks.register_weights()
    assert not replaced
    assert takeover.layer_class(Settings(Mode.FULL)) is own(Settings(Mode.FULL))
    assert replaced == ["weights"]


def test_the_last_step_of_a_prefill_is_timed(vllm_stand_in: Vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    times = importlib.import_module("times")
    left: list[int] = []
    seen: list[tuple[str, int]] = []

    class Engine:
        def add_request(self, name: str, prompt: dict[str, list[int]], sampling: Any) -> None:
            left.append(len(prompt["prompt_token_ids"]))

        def has_unfinished_requests(self) -> bool:
            return bool(left)

        def step(self) -> list[Any]:
            left[0] -= min(left[0], 512)
            if not left[0]:
                left.pop()
            return []

    def profiled(run: Any) -> dict[str, Any]:
        seen.append((used[-1], left[0]))
        run()
        return {}

    used: list[str] = []
    monkeypatch.setattr(times, "profiled", profiled)
    monkeypatch.setattr(times, "greedy", lambda tokens: None)
    args = arguments(["times", "--modes", "own,full", "--budget", "512", "--max-len", "40000"])
    for tokens, past in ((100, 1024), (700, 0)):
        found = times.time_prefill(Engine(), SimpleNamespace(use=used.append), args, tokens, past)
        assert found == {"kernels": {"own": {}, "full": {}}}
    assert seen == [("own", 100), ("full", 100), ("own", 700), ("full", 700)]
    assert not left


def test_launches_are_those_of_the_gpu(vllm_stand_in: Vllm) -> None:
    times = importlib.import_module("times")

    def event(name: str, device: str) -> SimpleNamespace:
        return SimpleNamespace(
            name=name, device_type=device, device_resource_id=7, time_range=SimpleNamespace(start=1.0, end=4.0)
        )

    profiler = SimpleNamespace(events=lambda: [event("kernel", "DeviceType.CUDA"), event("call", "DeviceType.CPU")])
    assert times.launches_of(profiler) == [("kernel", 7, 1.0, 4.0)]


def test_an_entry_point_is_made_where_none_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def targets() -> list[str]:
        return [entry.value for entry in importlib.metadata.entry_points(group=engine.PLUGINS)]

    monkeypatch.setattr(os, "environ", {"PYTHONPATH": "before"})
    monkeypatch.setattr(sys, "path", [path for path in sys.path if "site-packages" not in path])
    assert engine.SPARSEMLA not in targets()
    args = arguments(["check", "--mode", "full"])
    engine.prepare_environment(args, tmp_path)
    assert targets().count(engine.SPARSEMLA) == 1
    assert os.environ["PYTHONPATH"] == f"{tmp_path}{os.pathsep}before"
    assert os.environ["SPARSEMLA_VLLM"] == "full"
    engine.prepare_environment(args, tmp_path)
    assert targets().count(engine.SPARSEMLA) == 1


def test_strides_of_blocks_are_followed() -> None:
    from cache_rows import row_bytes

    cache = strided_cache(3, 64, 584, torch.Generator().manual_seed(1))
    assert cache.stride(0) > 64 * 584
    [row] = row_bytes(cache, torch.tensor([64 + 5]))
    block = cache[1].flatten()
    assert torch.equal(row, torch.cat([block[5 * 576 : 6 * 576], block[64 * 576 + 5 * 8 :][:8]]))
