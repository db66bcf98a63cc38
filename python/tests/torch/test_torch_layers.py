"""AttentionLayer and Step over tensors of torch: a whole prompt, parts of it and single tokens agree; what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", minversion="2.6")

import sparsemla as sm  # noqa: E402
from op_samples import cos_sin  # noqa: E402

HIDDEN, TOKENS = 64, 300
CONFIG = {
    "hidden_size": HIDDEN,
    "num_heads": 4,
    "q_lora_rank": 32,
    "o_lora_rank": 16,
    "o_groups": 2,
    "index_n_heads": 8,
    "index_topk": 16,
}


def weights(ratio: int) -> dict[str, Any]:
    torch.manual_seed(ratio)
    shapes: dict[str, tuple[int, ...]] = {
        "wq_a.weight": (32, HIDDEN),
        "q_norm.weight": (32,),
        "wq_b.weight": (4 * 512, 32),
        "wkv.weight": (512, HIDDEN),
        "kv_norm.weight": (512,),
        "wo_a.weight": (32, 1024),
        "wo_b.weight": (HIDDEN, 32),
        "attn_sink": (4,),
    }
    overlap = 2 if ratio == 4 else 1
    for prefix, dim in (("compressor.", 512), ("indexer.compressor.", 128)):
        if ratio == 1 or (ratio == 128 and dim == 128):
            continue
        shapes |= {
            f"{prefix}wkv.weight": (overlap * dim, HIDDEN),
            f"{prefix}wgate.weight": (overlap * dim, HIDDEN),
            f"{prefix}ape": (ratio, overlap * dim),
            f"{prefix}norm.weight": (dim,),
        }
    if ratio == 4:
        shapes |= {"indexer.wq_b.weight": (8 * 128, 32), "indexer.weights_proj.weight": (8, HIDDEN)}
    return {name: torch.randn(shape) / shape[-1] ** 0.5 for name, shape in shapes.items()}


def make(ratio: int, **options: Any) -> sm.AttentionLayer:
    return sm.AttentionLayer(CONFIG | {"compress_ratio": ratio}, weights(ratio), cos_sin(512), **options)


class Sequence:
    """One sequence of a layer: every block of its own, in order."""

    def __init__(self, layer: sm.AttentionLayer) -> None:
        self.layer, self.step = layer, sm.Step(layer)
        self.tables, blocks = [], []
        for group in layer.groups:
            count = -(-TOKENS // group["block_tokens"])
            blocks.append(count + 1)
            self.tables.append(torch.arange(1, count + 1, dtype=torch.int32)[None])
        self.caches = {
            role: sm.Cache(
                torch.zeros(blocks[need["group"]], need["page_bytes"], dtype=torch.uint8),
                need["format"],
                need["block_size"],
            )
            for role, need in layer.caches.items()
        }
        self.length = 0

    def feed(self, hidden: Any) -> Any:
        tokens = hidden.shape[0]
        self.length += tokens
        self.step.build(
            torch.tensor([0, tokens], dtype=torch.int32),
            torch.tensor([self.length], dtype=torch.int32),
            torch.arange(self.length - tokens, self.length),
            self.tables,
        )
        output = torch.empty_like(hidden)
        self.layer.forward(self.step, self.caches, hidden, output)
        return output


@pytest.mark.parametrize("ratio", [1, 4, 128])
def test_a_prompt_its_parts_and_single_tokens_agree(ratio: int) -> None:
    layer = make(ratio, precision="f32")
    torch.manual_seed(0)
    hidden = torch.randn(TOKENS, HIDDEN)
    whole = Sequence(layer).feed(hidden)
    parts = Sequence(layer)
    got = torch.cat([parts.feed(part) for part in (hidden[:97], hidden[97:290], *hidden[290:].split(1))])
    torch.testing.assert_close(got, whole, rtol=1e-4, atol=1e-5)
    assert whole.abs().min(dim=1).values.max() > 0


def test_what_a_layer_says_of_itself() -> None:
    layer = make(4)
    assert list(layer.caches) == ["window", "compressed", "index", "state", "index_state"]
    assert layer.caches["window"]["format"] == "fp8_ds_mla"
    assert [group["name"] for group in layer.groups] == ["full", "window", "state_c4"]
    assert [group["window"] for group in layer.groups] == [0, 128, 8]
    sequence = Sequence(layer)
    with pytest.raises(sm.InvalidArgument, match="Step: got one that was not built"):
        layer.workspace_bytes(sequence.step)
    sequence.feed(torch.randn(5, HIDDEN).bfloat16())
    assert layer.workspace_bytes(sequence.step) > 0
    assert "sparse_attention" in layer.describe(sequence.step)
    assert layer.device == "cpu"


def test_what_is_wrong_is_said() -> None:
    given = weights(1)
    with pytest.raises(sm.InvalidArgument, match="config: heads: got a value of that name, expected one of"):
        sm.AttentionLayer(CONFIG | {"heads": 3}, given, cos_sin(8))
    with pytest.raises(sm.InvalidArgument, match="config: num_heads: got 'four', expected an integer"):
        sm.AttentionLayer(CONFIG | {"num_heads": "four"}, given, cos_sin(8))
    with pytest.raises(sm.InvalidArgument, match=r"wkv\.weight: got no such tensor"):
        sm.AttentionLayer(CONFIG, given | {"wkv.weight": None}, cos_sin(8))
    with pytest.raises(sm.InvalidArgument, match="other: got a tensor, expected none of that name"):
        sm.AttentionLayer(CONFIG, given | {"other": torch.zeros(2)}, cos_sin(8))
    with pytest.raises(sm.InvalidArgument, match=r"wq_a.*\[32, 64\]"):
        sm.AttentionLayer(CONFIG, given | {"wq_a.weight": torch.zeros(3, 3)}, cos_sin(8))
    with pytest.raises(sm.InvalidArgument, match='precision: got "f16"'):
        sm.AttentionLayer(CONFIG, given, cos_sin(8), precision="f16")
    with pytest.raises(sm.InvalidArgument, match="cache_rows: got index_fp8"):
        sm.AttentionLayer(CONFIG, given, cos_sin(8), cache_rows="index_fp8")


def test_what_is_wrong_with_a_call_is_said() -> None:
    sequence = Sequence(make(1))
    layer, step, caches = sequence.layer, sequence.step, sequence.caches
    hidden = torch.randn(3, HIDDEN).bfloat16()
    sequence.feed(hidden)
    output = torch.empty_like(hidden)
    with pytest.raises(sm.InvalidArgument, match=r"hidden: got .3, 64. F32"):
        layer.forward(step, caches, hidden.float(), output)
    with pytest.raises(sm.InvalidArgument, match=r"hidden: got .2, 64. BF16"):
        layer.forward(step, caches, hidden[:2], output)
    with pytest.raises(sm.InvalidArgument, match=r'caches\["window"\]: got none'):
        layer.forward(step, {}, hidden, output)
    with pytest.raises(sm.InvalidArgument, match=r'caches\["index"\]: got one, expected none'):
        layer.forward(step, caches | {"index": caches["window"]}, hidden, output)
    with pytest.raises(sm.InvalidArgument, match="expected names of window, compressed"):
        layer.forward(step, caches | {"windows": caches["window"]}, hidden, output)
    wrong = sm.Cache(torch.zeros(4, 64, 1024, dtype=torch.uint8), "bf16", 64)
    with pytest.raises(sm.InvalidArgument, match="got blocks of 64 bf16 rows, expected 64 fp8_ds_mla rows"):
        layer.forward(step, {"window": wrong}, hidden, output)
    with pytest.raises(sm.InvalidArgument, match="Step: got one for compress_ratio 1"):
        make(4).forward(step, caches, hidden, output)
    with pytest.raises(sm.InvalidArgument, match="max_seq_len: got 2, expected at least 3"):
        step.build(
            torch.tensor([0, 3], dtype=torch.int32),
            torch.tensor([3], dtype=torch.int32),
            torch.arange(3),
            sequence.tables,
            2,
        )
    with pytest.raises(sm.InvalidArgument, match="Step: got one that was not built"):
        layer.forward(step, caches, hidden, output)
