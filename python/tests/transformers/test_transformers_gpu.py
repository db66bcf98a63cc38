"""transformers on a GPU: logits and tokens of eager attention, in float32 and in bfloat16 with FP8 rows."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.17")

import sparsemla  # noqa: E402
import sparsemla.transformers as room  # noqa: E402
from small_models import FP8RowsCache, at_once, decode, equal_until_close, prompt, relative_l2, small_model  # noqa: E402

pytestmark = pytest.mark.skipif(
    not (torch.cuda.is_available() and sparsemla.built_with_cuda()), reason="needs a GPU and a build with CUDA"
)

PROMPT, NEW = 430, 64


def on_gpu(seed: int, dtype: Any, **changes: object) -> Any:
    """A small model on the GPU, its experts computed one by one."""
    torch.backends.cuda.matmul.allow_tf32 = False
    model = small_model(seed, dtype, **changes)
    model.config._experts_implementation = "eager"
    return model.cuda()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_float32(seed: int) -> None:
    model, ids = on_gpu(seed, torch.float32), prompt(seed, PROMPT, batch=2).cuda()
    expected, tokens = decode(model, ids, NEW)
    room.enable(model, chunk=512)
    for name, chunk in (("whole", None), ("in parts", 101)):
        logits, got = decode(model, ids, NEW, chunk=chunk)
        error = relative_l2(logits, expected)
        print(f"float32 seed {seed} {name}: relative l2 {error:.2e}, tokens equal {torch.equal(got, tokens)}")
        assert error <= 1e-4
        assert torch.equal(got, tokens)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("rows", ["fp8_ds_mla", "bf16"])
def test_bfloat16(seed: int, rows: str) -> None:
    model, ids = on_gpu(seed, torch.bfloat16, n_routed_experts=2), prompt(seed, PROMPT).cuda()
    eager, tokens = decode(model, ids, NEW)
    same = on_gpu(seed, torch.bfloat16, n_routed_experts=2).float()
    stored = FP8RowsCache if rows == "fp8_ds_mla" else None
    exact = at_once(same, ids, tokens, stored(same.config) if stored else None)
    rounded = at_once(model, ids, tokens, stored(model.config) if stored else None)
    room.enable(model, cache_rows=rows)
    logits, _ = decode(model, ids, NEW, forced=tokens)
    _, got = decode(model, ids, NEW)
    ours, theirs = relative_l2(logits, exact), relative_l2(rounded, exact)
    until = equal_until_close(logits, got, eager, tokens)
    print(f"bfloat16 {rows} seed {seed}: to float32 {ours:.2e}, eager {theirs:.2e}, equal tokens {until} of {NEW}")
    assert ours <= 1.3 * theirs


def test_generate_on_another_stream() -> None:
    model, ids = on_gpu(4, torch.float32), prompt(4, 150).cuda()
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 16, "do_sample": False, "eos_token_id": None}
    expected = model.generate(ids, **options)
    room.enable(model)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        got = model.generate(ids, **options)
    stream.synchronize()
    assert torch.equal(got, expected)
