"""What transformers does with a cache: beams, batches that change, reset, crop, growth."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.17")

import sparsemla.transformers as room  # noqa: E402
from small_models import CACHE, decode, prompt, relative_l2, small_model  # noqa: E402
from transformers import DynamicCache  # noqa: E402

BOUND = 1e-4


@pytest.fixture(scope="module")
def models() -> tuple[Any, Any]:
    """The same model twice: eager, and with this library's attention in chunks of 64."""
    return small_model(4), room.enable(small_model(4), chunk=64)


@torch.inference_mode()
def fed(model: Any, *parts: Any, cache: Any = None) -> tuple[Any, Any]:
    """Logits after the last part, and the cache."""
    cache = cache or DynamicCache(config=model.config)
    for part in parts:
        logits = model(part, **{CACHE: cache}).logits
    return logits, cache


def test_beam_search(models: tuple[Any, Any]) -> None:
    """Beside eager attention without a cache: before 5.23 its own does not reorder the compressors' states."""
    ids = prompt(5, 140)
    options = {"max_new_tokens": 8, "num_beams": 3, "do_sample": False, "eos_token_id": None}
    options["attention_mask"] = torch.ones_like(ids)
    expected = models[0].generate(ids, use_cache=False, **options)
    assert torch.equal(models[1].generate(ids, **options), expected)


def test_sequences_of_a_batch_are_kept_repeated_and_reordered(models: tuple[Any, Any]) -> None:
    ids, more = prompt(6, 202, batch=3), prompt(7, 5, batch=4)
    _, cache = fed(models[1], ids)
    cache.batch_select_indices(torch.tensor([2, 0]))
    cache.batch_repeat_interleave(2)
    cache.reorder_cache(torch.tensor([3, 1, 0, 2]))
    assert cache.batch_size == 4
    changed, _ = fed(models[1], more, cache=cache)
    plain, _ = fed(models[0], ids[[0, 2, 2, 0]], more)
    assert relative_l2(changed, plain) <= BOUND


def test_reset_takes_another_batch(models: tuple[Any, Any]) -> None:
    first, second = prompt(8, 140, batch=2), prompt(9, 170)
    _, cache = fed(models[1], first)
    cache.reset()
    assert cache.get_seq_length() == 0
    again, _ = fed(models[1], second, cache=cache)
    fresh, _ = fed(models[1], second)
    assert torch.equal(again, fresh)


def test_crop_goes_back(models: tuple[Any, Any]) -> None:
    ids, wrong, right = prompt(10, 301), prompt(11, 40), prompt(12, 3)
    _, cache = fed(models[1], ids, wrong)
    cache.crop(-40)
    assert cache.get_seq_length() == 301
    cropped, _ = fed(models[1], right, cache=cache)
    plain, _ = fed(models[1], ids, right)
    assert torch.equal(cropped, plain)


def test_pages_grow(models: tuple[Any, Any]) -> None:
    ids = prompt(13, 1010)
    eager, _ = decode(models[0], ids, 30)
    ours, _ = decode(models[1], ids, 30, forced=eager[:, 1009:-1].argmax(-1))
    assert relative_l2(ours, eager) <= BOUND


def test_weights_that_move_or_change_are_followed() -> None:
    eager, ours = small_model(14), room.enable(small_model(15))
    ids = prompt(14, 140)
    fed(ours, ids)
    ours.load_state_dict(eager.state_dict())
    assert relative_l2(fed(ours, ids)[0], fed(eager, ids)[0]) <= BOUND
    for attention in (m for m in ours.modules() if hasattr(m, "q_a_proj")):
        attention.q_a_proj.weight = torch.nn.Parameter(attention.q_a_proj.weight.detach().clone())
    assert relative_l2(fed(ours, ids)[0], fed(eager, ids)[0]) <= BOUND
    ours.to(torch.bfloat16)
    assert relative_l2(fed(ours, ids)[0], fed(eager, ids)[0]) <= 0.3
