"""What is not supported is refused with a sentence that names the argument."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.17")

import sparsemla  # noqa: E402
import sparsemla.transformers as room  # noqa: E402
from small_models import CACHE, prompt, small_config, small_model  # noqa: E402
from transformers import DynamicCache, StaticCache  # noqa: E402


@pytest.fixture(scope="module")
def model() -> Any:
    return room.enable(small_model(20))


@pytest.fixture
def ids() -> Any:
    return prompt(20, 12, batch=2)


def test_training(model: Any, ids: Any) -> None:
    model.train()
    try:
        with pytest.raises(sparsemla.Unsupported, match="training mode"):
            model(ids)
    finally:
        model.eval()


def test_gradients(model: Any, ids: Any) -> None:
    with pytest.raises(sparsemla.Unsupported, match=r"torch\.no_grad"):
        model(ids)


@torch.inference_mode()
def test_padding(model: Any, ids: Any) -> None:
    mask = torch.ones_like(ids)
    for column in (0, 11):
        padded = mask.clone()
        padded[1, column] = 0
        with pytest.raises(sparsemla.Unsupported, match="attention_mask: got one that hides tokens"):
            model(ids, attention_mask=padded)
    model(ids, attention_mask=mask)


@torch.inference_mode()
def test_positions(model: Any, ids: Any) -> None:
    with pytest.raises(sparsemla.Unsupported, match="position_ids: expected 0 to 11"):
        model(ids, position_ids=torch.arange(1, 13)[None])


@torch.inference_mode()
def test_attention_weights(model: Any, ids: Any) -> None:
    with pytest.raises(sparsemla.Unsupported, match="output_attentions"):
        model(ids, output_attentions=True)


@torch.inference_mode()
def test_caches_of_others(model: Any, ids: Any) -> None:
    cache = DynamicCache(config=model.config)
    room.disable(model)
    try:
        model(ids, **{CACHE: cache})
    finally:
        room.enable(model)
    with pytest.raises(sparsemla.Unsupported, match="12 tokens of transformers' own attention"):
        model(ids, **{CACHE: cache})
    static = StaticCache(config=small_config(layer_types=["sliding_attention"] * 4), max_cache_len=64)
    with pytest.raises(sparsemla.Unsupported, match="got StaticCache, expected a DynamicCache"):
        model(ids, **{CACHE: static})
    with pytest.raises(sparsemla.InvalidArgument, match=r"DynamicCache\(config=model.config\)"):
        model(ids, **{CACHE: DynamicCache()})


@torch.inference_mode()
def test_our_cache_in_eager_attention(model: Any, ids: Any) -> None:
    cache = getattr(model(ids, use_cache=True), CACHE)
    room.disable(model)
    try:
        with pytest.raises(sparsemla.InvalidArgument, match=r"a cache that sparsemla\.transformers filled"):
            model(ids[:, :1], **{CACHE: cache})
    finally:
        room.enable(model)


@torch.inference_mode()
def test_two_caches(model: Any, ids: Any) -> None:
    attention, hidden = model.model.layers[0].self_attn, torch.zeros(2, 12, 128)
    cache = DynamicCache(config=model.config)
    for name in ("cache", "past_key_values"):
        attention(hidden, **{name: cache})
        assert cache.get_seq_length() == (12 if name == "cache" else 24)
    attention(hidden, cache=cache, past_key_values=cache)
    with pytest.raises(sparsemla.InvalidArgument, match="past_key_values: got another cache"):
        attention(hidden, cache=cache, past_key_values=DynamicCache(config=model.config))


def test_a_release_of_transformers_with_another_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model(25)
    layer = type(model.model.layers[0])
    for module in (type(model.model.layers[0].self_attn), layer):
        with monkeypatch.context() as patched:
            patched.setattr(module, "forward", lambda self, hidden_states, memory=None, **kwargs: None)
            with pytest.raises(sparsemla.Unsupported, match=rf"{module.__name__}\.forward: got an argument 'memory'"):
                room.enable(model)
        assert not room.enabled(model)


@torch.inference_mode()
def test_another_batch(model: Any, ids: Any) -> None:
    cache = getattr(model(ids, use_cache=True), CACHE)
    with pytest.raises(sparsemla.InvalidArgument, match="batch: got 1 sequences, expected 2"):
        model(ids[:1], **{CACHE: cache})


@torch.inference_mode()
def test_crop_of_more_than_is_kept(ids: Any) -> None:
    cache = getattr(room.enable(small_model(21), chunk=4)(ids, use_cache=True), CACHE)
    with pytest.raises(sparsemla.Unsupported, match="crop: got 5 tokens of 12, expected at most 4"):
        cache.crop(-5)
    with pytest.raises(sparsemla.InvalidArgument, match="crop: got 3"):
        cache.crop(3)


def test_models_that_are_not_computed() -> None:
    with pytest.raises(sparsemla.InvalidArgument, match="model: got Linear without an attention layer"):
        room.enable(torch.nn.Linear(2, 2))
    with pytest.raises(sparsemla.Unsupported, match=r"got weights in torch\.float16"):
        room.enable(small_model(22, torch.float16))
    with pytest.raises(sparsemla.Unsupported, match="head_dim: got 256, expected 512"):
        room.enable(small_model(22, head_dim=256))
    rates = {"compressed_sparse_attention": 8, "heavily_compressed_attention": 128}
    with pytest.raises(sparsemla.Unsupported, match=r"compress_rates.*got 8, expected 4"):
        room.enable(small_model(22, compress_rates=rates))


def test_a_layer_that_was_replaced_leaves_all_as_they_were() -> None:
    model = small_model(23)
    last = model.model.layers[3].self_attn
    last.q_b_proj = torch.nn.Sequential(last.q_b_proj)
    with pytest.raises(sparsemla.Unsupported, match=r"layers\.3\.self_attn\.q_b_proj: got Sequential"):
        room.enable(model)
    assert not room.enabled(model)
    other = small_model(23)
    other.model.layers[1].self_attn.forward = lambda *a, **k: None
    with pytest.raises(sparsemla.Unsupported, match="forward was replaced before"):
        room.enable(other)


def test_options() -> None:
    model = small_model(24, torch.bfloat16)
    with pytest.raises(sparsemla.InvalidArgument, match="chunk: got 0"):
        room.enable(model, chunk=0)
    with pytest.raises(sparsemla.InvalidArgument, match="cache_rows: got 'fp4'"):
        room.enable(model, cache_rows="fp4")
    with pytest.raises(sparsemla.InvalidArgument, match="index_rows: got 'bf16'"):
        room.enable(model, index_rows="bf16")


def test_copies(model: Any) -> None:
    with pytest.raises(sparsemla.Unsupported, match=r"disable\(model\)"):
        copy.deepcopy(model)
    with pytest.raises(sparsemla.Unsupported, match=r"disable\(model\)"):
        pickle.dumps(model.model.layers[0].self_attn._sparsemla)
