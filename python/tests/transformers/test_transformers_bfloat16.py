"""bfloat16 models, with FP8 and with bfloat16 rows, beside eager attention in float32 on the same weights.

Both experts of a layer are chosen for every token, so that rounding flips no choice of theirs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.17")

import sparsemla.transformers as room  # noqa: E402
import transformers  # noqa: E402
from small_models import FP8RowsCache, at_once, decode, equal_until_close, prompt, relative_l2, small_model  # noqa: E402

PROMPT, NEW = 300, 64


class Eager(NamedTuple):
    model: Any
    ids: Any
    logits: Any
    tokens: Any
    exact: Any  # float32, fed with the tokens of bfloat16
    exact_of: Any  # by rows: float32 over rows as they are stored
    error_of: Any  # by rows: how far bfloat16 is from that


@pytest.fixture(scope="module", params=[1, 2, 3], ids=lambda seed: f"seed{seed}")
def eager(request: pytest.FixtureRequest) -> Eager:
    model = small_model(request.param, torch.bfloat16, n_routed_experts=2)
    ids = prompt(request.param, PROMPT)
    logits, tokens = decode(model, ids, NEW)
    same = small_model(request.param, torch.bfloat16, n_routed_experts=2).float()
    exact = at_once(same, ids, tokens)
    fp8_exact = at_once(same, ids, tokens, FP8RowsCache(same.config))
    fp8 = at_once(model, ids, tokens, FP8RowsCache(model.config))
    errors = {"bf16": relative_l2(logits, exact), "fp8_ds_mla": relative_l2(fp8, fp8_exact)}
    return Eager(model, ids, logits, tokens, exact, {"bf16": exact, "fp8_ds_mla": fp8_exact}, errors)


@pytest.fixture(autouse=True)
def own_forward_again(eager: Eager) -> Any:
    yield
    room.disable(eager.model)


@pytest.mark.parametrize("rows", ["fp8_ds_mla", "bf16"])
def test_no_further_from_float32_than_eager_over_the_same_rows(eager: Eager, rows: str) -> None:
    room.enable(eager.model, cache_rows=rows)
    logits, _ = decode(eager.model, eager.ids, NEW, forced=eager.tokens)
    assert relative_l2(logits, eager.exact_of[rows]) <= 1.3 * eager.error_of[rows]


@pytest.mark.parametrize("rows", ["fp8_ds_mla", "bf16"])
def test_tokens_are_eagers_until_the_best_two_are_closer_than_the_error(eager: Eager, rows: str) -> None:
    room.enable(eager.model, cache_rows=rows)
    logits, _ = decode(eager.model, eager.ids, NEW, forced=eager.tokens)
    _, tokens = decode(eager.model, eager.ids, NEW)
    equal_until_close(logits, tokens, eager.logits, eager.tokens)
    assert 3 * 2**0.5 * float((logits - eager.logits).square().mean().sqrt()) < 0.45 * float(eager.logits.std())


def test_a_saved_model_that_is_loaded_in_bfloat16(eager: Eager, tmp_path: Any) -> None:
    """transformers loads some weights in float32 (from 5.24 on norms, sinks and position biases too)."""
    eager.model.save_pretrained(tmp_path)
    model = type(eager.model).from_pretrained(tmp_path, dtype=torch.bfloat16).eval()
    try:
        own = at_once(model, eager.ids, eager.tokens)
    except RuntimeError as error:
        pytest.skip(f"transformers {transformers.__version__}: its own attention cannot run the model: {error}")
    room.enable(model, cache_rows="bf16")
    ours = at_once(model, eager.ids, eager.tokens)
    assert relative_l2(ours, eager.exact) <= 1.3 * relative_l2(own, eager.exact)
