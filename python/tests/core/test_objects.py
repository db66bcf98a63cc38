"""Models, checkpoints, layers, pools, snapshots and cases as objects of Python, over numpy."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sparsemla as sm

import cases


def test_models() -> None:
    model = sm.ModelConfig("v4-flash")
    assert model.num_layers == 43
    assert {model.layer(i)["compress_ratio"] for i in range(43)} == {1, 4, 128}
    with pytest.raises(sm.Error, match="v5"):
        sm.ModelConfig("v5")
    with pytest.raises(sm.InvalidArgument, match="layer"):
        model.layer(10**6)
    table = np.from_dlpack(model.rope_table(0, 16))
    assert table.shape == (16, 64)
    np.testing.assert_allclose(table[5, 0], np.cos(5), rtol=1e-6)
    np.testing.assert_allclose(table[5, 32], np.sin(5), rtol=1e-6)
    with pytest.raises(sm.InvalidArgument, match="rope_table: positions: got 0"):
        model.rope_table(0, 0)


def test_checkpoints(checkpoint: Path) -> None:
    opened = sm.Checkpoint(str(checkpoint))
    assert "layers.0.attn.wq_a.weight" in opened.names()
    assert opened.model.num_layers == 4
    loaded = opened.load_layer(0)
    del opened
    gc.collect()
    sink = np.from_dlpack(loaded["tensors"]["attn_sink"])
    assert sink.shape == (loaded["config"]["num_heads"],)
    half = sm.Checkpoint(str(checkpoint)).load_layer(0, tp_rank=1, tp_size=2)
    assert half["config"]["num_heads"] * 2 == loaded["config"]["num_heads"]
    np.testing.assert_array_equal(np.from_dlpack(half["tensors"]["attn_sink"]), sink[len(sink) // 2 :])
    with pytest.raises(sm.IoError, match="nowhere"):
        sm.Checkpoint("/nowhere")
    with pytest.raises(sm.InvalidArgument, match="3"):
        sm.Checkpoint(str(checkpoint)).load_layer(0, tp_rank=3, tp_size=2)


class Model:
    """The layers of a checkpoint over one pool."""

    def __init__(self, folder: Path, blocks: int = 700, extra: int = 0) -> None:
        opened = sm.Checkpoint(str(folder))
        model = opened.model
        loaded = [opened.load_layer(i) for i in range(model.num_layers)]
        self.hidden = model.hidden_size
        self.layers = [
            sm.AttentionLayer(one["config"], one["tensors"], model.rope_table(i, 2048), threads=1)
            for i, one in enumerate(loaded)
        ]
        self.pool = sm.KvPool([one["config"] for one in loaded], blocks)
        self.other = sm.RequestBlocks(self.pool)  # somebody else's blocks come first
        if extra:
            assert self.other.reserve(0, extra)
        self.caches = [{role: self.pool.cache(i, role) for role in layer.caches} for i, layer in enumerate(self.layers)]

    def tables(self, blocks: sm.RequestBlocks, index: int) -> list[np.ndarray]:
        """The block tables of a layer's own groups."""
        layer = self.layers[index]
        columns = {need["group"]: self.pool.group_of(index, role) for role, need in layer.caches.items()}
        return [np.array([blocks.table(columns[g])], np.int32) for g in range(len(layer.groups))]

    def feed(self, blocks: sm.RequestBlocks, begin: int, hidden: np.ndarray) -> list[np.ndarray]:
        end = begin + len(hidden)
        assert blocks.reserve(begin, end)
        outputs = []
        for i, layer in enumerate(self.layers):
            step = sm.Step(layer)
            step.build(
                np.array([0, len(hidden)], np.int32),
                np.array([end], np.int32),
                np.arange(begin, end),
                self.tables(blocks, i),
            )
            output = np.empty(hidden.shape, np.uint16)
            layer.forward(step, self.caches[i], hidden, output)
            outputs.append(output)
        return outputs


def test_a_layer_out_of_a_checkpoint_in_one_call(checkpoint: Path) -> None:
    opened = sm.Checkpoint(str(checkpoint))
    loaded = opened.load_layer(2, tp_rank=1, tp_size=2)
    by_hand = sm.AttentionLayer(loaded["config"], loaded["tensors"], opened.model.rope_table(2, 512), threads=1)
    moved: list[Any] = []

    def move(tensor: Any) -> Any:
        try:
            moved.append(np.array(np.from_dlpack(tensor)))
        except (BufferError, RuntimeError):  # numpy has no bfloat16, and before 2.1 says so by RuntimeError
            moved.append(tensor)
        return moved[-1]

    at_once = [
        sm.AttentionLayer.from_checkpoint(given, 2, 512, tp_rank=1, tp_size=2, threads=1, **more)
        for given, more in ((opened, {}), (str(checkpoint), {"move": move}), (str(checkpoint), {"cache_rows": "bf16"}))
    ]
    assert moved[-1].shape == (512, 64) and len(moved) == len(loaded["tensors"]) + 1
    assert at_once[0].caches == at_once[1].caches == by_hand.caches
    assert at_once[2].caches["window"]["format"] == "bf16"
    del opened, loaded
    gc.collect()
    x = inputs(20, sm.Checkpoint(str(checkpoint)).model.hidden_size)
    outputs = [attend_alone(layer, x) for layer in (by_hand, *at_once[:2])]
    assert outputs[0].any()
    np.testing.assert_array_equal(outputs[0], outputs[1])
    np.testing.assert_array_equal(outputs[0], outputs[2])


def test_nvfp4_weights_as_they_are_stored(tmp_path: Path) -> None:
    folder = tmp_path / "nvfp4"
    command = [sys.executable, "-m", "sparsemla", "make-checkpoint", str(folder)]
    command += ["--dtype", "nvfp4", "--compressor-dtype", "nvfp4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    opened = sm.Checkpoint(str(folder))
    kept = opened.load_layer(1, keep_nvfp4=True)["tensors"]
    codes, scale = np.from_dlpack(kept["wq_a.weight"]), np.from_dlpack(kept["wq_a.weight_scale_2"])
    assert codes.dtype == np.uint8 and scale.dtype == np.float32 and scale.shape == (1,)
    assert "wq_a.weight_scale" not in opened.load_layer(1, keep_fp8=True)["tensors"]

    make = sm.AttentionLayer.from_checkpoint
    x = inputs(40, opened.model.hidden_size)
    stored = make(opened, 1, 512, keep_nvfp4=True, threads=1)
    by_hand = sm.AttentionLayer(opened.load_layer(1)["config"], kept, opened.model.rope_table(1, 512), threads=1)
    dequantised = make(opened, 1, 512, threads=1)
    outputs = [attend_alone(layer, x) for layer in (stored, by_hand, dequantised)]
    np.testing.assert_array_equal(outputs[0], outputs[1])
    got, want = ((bits.astype(np.uint32) << 16).view(np.float32) for bits in outputs[1:])
    difference = np.linalg.norm(got - want) / np.linalg.norm(want)
    assert 0 < difference < 0.02  # dequantised weights are rounded to bfloat16
    del kept["wq_a.weight_scale_2"]
    with pytest.raises(sm.InvalidArgument, match=r"wq_a\.weight_scale_2: got no such tensor"):
        sm.AttentionLayer(opened.load_layer(1)["config"], kept, opened.model.rope_table(1, 512))


def test_a_layer_that_a_checkpoint_does_not_have(checkpoint: Path) -> None:
    make = sm.AttentionLayer.from_checkpoint
    with pytest.raises(sm.IoError, match="nowhere"):
        make("/nowhere", 0, 64)
    with pytest.raises(sm.InvalidArgument, match="layer"):
        make(str(checkpoint), 99, 64)
    with pytest.raises(sm.InvalidArgument, match="rope_table: positions: got 0"):
        make(str(checkpoint), 0, 0)
    with pytest.raises(sm.InvalidArgument, match=r"without a config\.json"):
        make(str(next(checkpoint.glob("*.safetensors"))), 0, 64)
    with pytest.raises(sm.InvalidArgument, match="colour"):
        make(str(checkpoint), 0, 64, colour="red")
    with pytest.raises(ZeroDivisionError):
        make(str(checkpoint), 0, 64, move=lambda tensor: 1 // 0)
    with pytest.raises(TypeError):
        make(str(checkpoint), "two", 64)


def attend_alone(layer: sm.AttentionLayer, x: np.ndarray) -> np.ndarray:
    """Outputs of one request, whose blocks are those of the table, over caches of its own."""
    tokens = len(x)
    tables = [np.arange(-(-tokens // group["block_tokens"]), dtype=np.int32)[None] for group in layer.groups]
    caches = {
        role: sm.Cache(
            np.zeros((tables[need["group"]].shape[1], need["page_bytes"]), np.uint8), need["format"], need["block_size"]
        )
        for role, need in layer.caches.items()
    }
    step = sm.Step(layer)
    step.build(np.array([0, tokens], np.int32), np.array([tokens], np.int32), np.arange(tokens), tables)
    output = np.zeros(x.shape, np.uint16)
    layer.forward(step, caches, x, output)
    return output


def inputs(tokens: int, hidden: int, seed: int = 7) -> np.ndarray:
    x = np.random.default_rng(seed).normal(size=(tokens, hidden)).astype(np.float32)
    return (x.view(np.uint32) >> 16).astype(np.uint16)


class Drafts:
    """The window-only layer of a checkpoint, over blocks that a pool keeps for draft blocks."""

    def __init__(self, checkpoint: Path) -> None:
        opened = sm.Checkpoint(str(checkpoint))
        loaded = opened.load_layer(0)
        cos_sin = opened.model.rope_table(0, 512)
        self.layer = sm.AttentionLayer(loaded["config"], loaded["tensors"], cos_sin, threads=1, deterministic=True)
        self.pool = sm.KvPool([loaded["config"]], 20, draft_blocks=True)
        self.hidden = opened.model.hidden_size
        self.cache = self.pool.cache(0, "window")
        self.blocks = sm.RequestBlocks(self.pool)
        assert self.blocks.reserve(0, 200)
        self.step = sm.Step(self.layer)

    def build(self, begin: int, end: int, **more: Any) -> None:
        table = np.array([self.blocks.table(0)], np.int32)
        self.step.build(
            np.array([0, end - begin], np.int32), np.array([end], np.int32), np.arange(begin, end), [table], **more
        )

    def forward(self, x: np.ndarray) -> np.ndarray:
        output = np.empty(x.shape, np.uint16)
        self.layer.forward(self.step, {"window": self.cache}, x, output)
        return output


def test_a_draft_block_sees_itself_whole_and_context_that_was_inserted(checkpoint: Path) -> None:
    computed, inserted = Drafts(checkpoint), Drafts(checkpoint)
    x = inputs(195, computed.hidden)
    computed.build(0, 191)
    causal = computed.forward(x[:191])
    table = np.array(inserted.blocks.table(0), np.int64)
    slots = table[np.arange(191) // 64] * 64 + np.arange(191) % 64
    inserted.layer.insert_context(x[:191], np.arange(191), slots, inserted.cache)
    blocks = []
    for one in (computed, inserted):
        assert one.pool.groups[0]["window"] == 129
        one.blocks.slide(191)
        assert one.blocks.table(0)[0] > 0, "the block sees position 63, which no later token does"
        one.build(191, 195, decode_threshold=4, dspark_tokens=4)
        blocks.append(one.forward(x[191:]))
    np.testing.assert_array_equal(blocks[0], blocks[1])
    computed.build(191, 195)
    ahead = computed.forward(x[191:])
    assert (ahead[0] != blocks[0][0]).any(), "a causal token does not see those behind it"
    assert causal.any()
    with pytest.raises(sm.InvalidArgument, match="slots"):
        inserted.layer.insert_context(x[:191], np.arange(191), slots[:5], inserted.cache)
    with pytest.raises(sm.InvalidArgument, match="window"):
        inserted.layer.insert_context(x[:191], np.arange(191), slots, np.zeros(3))


def test_a_draft_loop_advances_in_place(checkpoint: Path) -> None:
    one = Drafts(checkpoint)
    x = inputs(46, one.hidden)
    one.build(0, 46)
    whole = one.forward(x)
    one.build(0, 41)
    one.forward(x[:41])
    with pytest.raises(sm.InvalidArgument, match="one token for each request"):
        one.step.advance()
    one.build(40, 41)
    np.testing.assert_array_equal(one.forward(x[40:41])[0], whole[40])
    with pytest.raises(sm.InvalidArgument, match="max_seq_len"):
        one.step.advance()
    with pytest.raises(sm.InvalidArgument, match="expected both or neither"):
        one.step.advance(max_seq_len=50)
    with pytest.raises(sm.InvalidArgument, match="max_seq_len: got 41, expected at least 42"):
        one.step.advance(np.array([42], np.int32))
    one.step.advance(np.array([42], np.int32), 46)
    np.testing.assert_array_equal(one.forward(x[41:42])[0], whole[41])
    for position in range(42, 46):
        one.step.advance()
        np.testing.assert_array_equal(one.forward(x[position : position + 1])[0], whole[position])


def test_a_layer_that_reuses_a_choice_runs_with_the_choosers_step(checkpoint: Path) -> None:
    opened = sm.Checkpoint(str(checkpoint))
    index = next(i for i in range(opened.model.num_layers) if opened.model.layer(i)["compress_ratio"] == 4)
    loaded = opened.load_layer(index)
    cos_sin = opened.model.rope_table(index, 1024)
    chooser = sm.AttentionLayer(loaded["config"], loaded["tensors"], cos_sin, threads=1)
    config = loaded["config"] | {"reuses_topk": True}
    fewer = {name: t for name, t in loaded["tensors"].items() if not name.startswith("indexer.")}
    x = inputs(300, opened.model.hidden_size)
    outputs = []
    for weights in (loaded["tensors"], fewer):
        follower = sm.AttentionLayer(config, weights, cos_sin, threads=1)
        assert "index" not in follower.caches
        pool = sm.KvPool([loaded["config"], config], 400)
        blocks = sm.RequestBlocks(pool)
        assert blocks.reserve(0, 300)
        step = sm.Step(chooser)
        columns = {need["group"]: pool.group_of(0, role) for role, need in chooser.caches.items()}
        tables = [np.array([blocks.table(columns[g])], np.int32) for g in range(len(chooser.groups))]
        step.build(np.array([0, 300], np.int32), np.array([300], np.int32), np.arange(300), tables)
        for i, layer in enumerate((chooser, follower)):
            outputs.append(np.empty(x.shape, np.uint16))
            layer.forward(step, {role: pool.cache(i, role) for role in layer.caches}, x, outputs[-1])
    for other in outputs[1:]:
        np.testing.assert_array_equal(outputs[0], other)


def test_a_request_moves_to_another_pool_by_a_snapshot(checkpoint: Path, tmp_path: Path) -> None:
    here, there = Model(checkpoint), Model(checkpoint, blocks=900, extra=300)
    x = inputs(330, here.hidden)
    stays = sm.RequestBlocks(here.pool)
    here.feed(stays, 0, x[:300])
    saved = sm.snapshot.save(stays, 300, b"note")
    sm.snapshot.write(tmp_path / "request", saved)
    assert sm.snapshot.read(tmp_path / "request") == saved
    info = sm.snapshot.inspect(saved)
    assert (info["tokens"], info["num_layers"], info["note"]) == (300, 4, b"note")
    moved = sm.RequestBlocks(there.pool)
    assert sm.snapshot.load(saved, moved)["tokens"] == 300
    for at in range(300, 330, 10):
        want = here.feed(stays, at, x[at : at + 10])
        got = there.feed(moved, at, x[at : at + 10])
        for a, b in zip(want, got, strict=True):
            np.testing.assert_array_equal(a, b)
    with pytest.raises(sm.IoError):
        sm.snapshot.inspect(saved[:-1])
    with pytest.raises(sm.InvalidArgument):
        sm.snapshot.load(saved, moved)  # it holds blocks


def test_blocks_come_and_go(checkpoint: Path) -> None:
    pool = Model(checkpoint).pool
    assert pool.free_blocks == pool.num_blocks == 700
    request = sm.RequestBlocks(pool)
    assert request.empty
    assert request.reserve(0, 1000)
    held = pool.num_blocks - pool.free_blocks
    assert held == sum(pool.held(g) for g in range(len(pool.groups)))
    assert not request.reserve(1000, 10**6)
    assert pool.num_blocks - pool.free_blocks == held
    request.slide(1000)
    assert pool.num_blocks - pool.free_blocks < held
    window = next(i for i, g in enumerate(pool.groups) if g["window"] == 128)
    assert request.table(window)[0] == -1
    with pytest.raises(sm.InvalidArgument, match="group: got 99"):
        request.table(99)
    with pytest.raises(sm.InvalidArgument, match="positions: got 5 to 3"):
        request.reserve(5, 3)
    del request
    gc.collect()
    assert pool.free_blocks == 700


def test_a_cache_outlives_its_pool(checkpoint: Path) -> None:
    model = Model(checkpoint, blocks=4)
    cache = model.caches[0]["window"]
    assert (cache.format, cache.block_size, cache.num_blocks) == ("fp8_ds_mla", 64, 5)
    del model
    gc.collect()
    rows = np.from_dlpack(cache.tensor)
    rows[:] = 3
    assert rows.sum() == 3 * rows.size
    with pytest.raises(sm.InvalidArgument, match="role"):
        sm.KvPool([sm.ModelConfig("tiny").layer(0)], 4).cache(0, "rows")
    with pytest.raises(sm.InvalidArgument, match="block"):
        sm.KvPool([sm.ModelConfig("tiny").layer(0)], -1)
    with pytest.raises(sm.InvalidArgument, match="KvPool: layers"):
        sm.KvPool([3], 4)


def verify(*files: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sparsemla.verify", *map(str, files)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_cases_are_written_and_verified(tmp_path: Path) -> None:
    logits = np.asfortranarray(np.random.default_rng(1).normal(size=(4, 50)).astype(np.float32))
    lens = np.array([50, 4, 20, 0], np.int32)
    indices = np.empty((4, 8), np.int32)
    sm.ops.topk(logits=np.ascontiguousarray(logits), lens=lens, indices=indices)
    good, bad = tmp_path / "good.safetensors", tmp_path / "bad.safetensors"
    params = {"rows": 4, "width": 50, "k": 8}
    sm.case.write(good, "topk", params, {"logits": logits, "lens": lens}, {"indices": indices})
    done = verify(good)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS  good.safetensors  indices" in done.stdout
    indices[0, 0] = 49 if indices[0, 0] != 49 else 48
    sm.case.write(bad, "topk", params, {"logits": logits, "lens": lens}, {"indices": indices})
    assert verify(bad).returncode == 1
    sm.case.write(
        good,
        "add_rows",
        {"rows": 1, "dim": 8, "dtype": "F32"},
        {"y": np.ones((1, 8), np.float32), "x_before": np.ones((1, 8), np.float32)},
        {"x": np.full((1, 8), 2.001, np.float32)},
        tolerance={"x": {"l2": 1e-2}},
    )
    assert verify(good).returncode == 0
    with pytest.raises(sm.InvalidArgument, match=r"case: in.logits: got dtype complex128"):
        sm.case.write(bad, "topk", params, {"logits": np.zeros(3, complex)}, {})
    with pytest.raises(sm.IoError):
        sm.case.write(tmp_path / "no" / "x", "topk", params, {"lens": lens}, {})


def test_calls_are_recorded(tmp_path: Path) -> None:
    x = np.ones((2, 8), np.float32)
    with sm.case.record(tmp_path) as recorded:
        sm.ops.add_rows(y=x, x=x.copy())
        sm.ops.rms_norm(x=x, y=np.empty_like(x))
    sm.ops.add_rows(y=x, x=x.copy())
    files = list(recorded)
    assert len(files) == 2
    assert {cases.read_case(Path(f)).op for f in files} == {"add_rows", "rms_norm"}
    assert verify(*files).returncode == 0
