"""Hyper-connections in parts of a few tokens beside transformers' own."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.17")

from small_models import relative_l2, small_model  # noqa: E402
from sparsemla.transformers import _hyper  # noqa: E402


def random_parameters(model: Any) -> None:
    torch.manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "hc" in name:
                parameter.copy_(torch.randn(parameter.shape) * (0.05 if parameter.dim() == 2 else 0.5))


class Halves(torch.nn.Module):
    """In place of attention and experts: a block that depends on its input alone."""

    def forward(self, x: torch.Tensor, *_: Any, **__: Any) -> Any:
        return (x / 2).flip(-1)


class HalvesOfTwo(Halves):
    def forward(self, x: torch.Tensor, *_: Any, **__: Any) -> Any:
        return super().forward(x), None


@pytest.mark.parametrize("batch, tokens", [(1, 1), (1, 32), (2, 33), (3, 31)])
@pytest.mark.parametrize("dtype, bound", [("float32", 2e-6), ("bfloat16", 4e-3)])
def test_streams_are_transformers_own(batch: int, tokens: int, dtype: str, bound: float) -> None:
    model = small_model(1, getattr(torch, dtype))
    random_parameters(model)
    inner = model.model
    layer = inner.layers[0]
    layer.self_attn, layer.mlp = HalvesOfTwo(), Halves()
    streams = torch.randn(batch, tokens, model.config.hc_mult, model.config.hidden_size).to(layer.attn_hc.fn.dtype)
    with torch.inference_mode():
        expected, expected_head = layer(streams), inner.hc_head(streams)
        _hyper.take(model)
        got, got_head = layer(streams), inner.hc_head(streams)
        assert layer.forward.__func__ is _hyper.layer_forward
        _hyper.give_back(model)
    assert "forward" not in layer.__dict__ and "forward" not in inner.hc_head.__dict__
    for ours, theirs in ((got, expected), (got_head, expected_head)):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        assert relative_l2(ours.float(), theirs.float()) < bound
        assert relative_l2(theirs.float(), 0.99 * theirs.float()) > bound


def test_a_forward_that_was_replaced_before_stays() -> None:
    model = small_model(1, torch.float32)
    layer = model.model.layers[0]
    mine = lambda streams, **_: streams  # noqa: E731
    layer.__dict__["forward"] = mine
    _hyper.take(model)
    assert layer.forward is mine
    assert model.model.layers[1].forward.__func__ is _hyper.layer_forward
    _hyper.give_back(model)
    assert layer.forward is mine
