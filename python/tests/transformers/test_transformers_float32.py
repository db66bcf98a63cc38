"""float32 models: logits and tokens of transformers' eager attention."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.17")

import sparsemla.transformers as room  # noqa: E402
from small_models import CACHE, decode, prompt, relative_l2, small_model  # noqa: E402

PROMPT, NEW = 430, 64
BOUND = 1e-4


class Eager(NamedTuple):
    model: Any
    ids: Any
    logits: Any
    tokens: Any


@pytest.fixture(scope="module", params=[1, 2, 3], ids=lambda seed: f"seed{seed}")
def eager(request: pytest.FixtureRequest) -> Eager:
    model = small_model(request.param)
    ids = prompt(request.param, PROMPT, batch=2)
    return Eager(model, ids, *decode(model, ids, NEW))


@pytest.fixture(autouse=True)
def own_forward_again(eager: Eager) -> Any:
    yield
    room.disable(eager.model)


@pytest.mark.parametrize("chunk", [512, 96], ids=lambda chunk: f"chunk{chunk}")
def test_prefill_and_64_greedy_tokens(eager: Eager, chunk: int) -> None:
    logits, tokens = decode(room.enable(eager.model, chunk=chunk), eager.ids, NEW)
    assert relative_l2(logits, eager.logits) <= BOUND
    assert torch.equal(tokens, eager.tokens)


def test_prompt_in_parts(eager: Eager) -> None:
    logits, tokens = decode(room.enable(eager.model), eager.ids, NEW, chunk=101)
    assert relative_l2(logits, eager.logits) <= BOUND
    assert torch.equal(tokens, eager.tokens)


def test_generate(eager: Eager) -> None:
    generated = room.enable(eager.model).generate(
        eager.ids, attention_mask=torch.ones_like(eager.ids), max_new_tokens=16, do_sample=False, eos_token_id=None
    )
    assert torch.equal(generated[:, PROMPT:], eager.tokens[:, :16])


def test_without_a_cache(eager: Eager) -> None:
    with torch.inference_mode():
        out = room.enable(eager.model)(eager.ids, use_cache=False)
    assert getattr(out, CACHE) is None
    assert relative_l2(out.logits, eager.logits[:, :PROMPT]) <= BOUND


def test_disable_gives_the_own_forward_back(eager: Eager) -> None:
    room.enable(eager.model)
    assert room.enabled(eager.model)
    room.disable(eager.model)
    assert not room.enabled(eager.model)
    with torch.inference_mode():
        logits = eager.model(eager.ids).logits
    assert torch.equal(logits, eager.logits[:, :PROMPT])
