"""What python/bench/vllm makes of the attention layers of a profile; neither vLLM nor a GPU is needed."""

from __future__ import annotations

import pytest
from kernel_times import Launch
from layer_times import COLUMNS, LayerTime, attention_layers, busy_time, layer_rows, layer_table, times_by_kind

ATTENTION = "flash_fwd_splitkv_mla_fp8_sparse_kernel"


def step(begin: float, layer_us: tuple[float, ...]) -> list[Launch]:
    """A step: hyper-connections and a layer in turn; behind each attention layer one of experts."""
    launches = [Launch("metadata", 7, begin, begin + 3)]
    at = begin + 5

    def hyper() -> None:
        nonlocal at
        launches.extend([Launch("hc_prenorm_gemm", 7, at, at + 2), Launch("mhc_fused_post_pre", 7, at + 2, at + 5)])
        at += 5

    for us in layer_us:
        hyper()
        launches.extend(
            [
                Launch("sm90_fp8_gemm", 7, at + 1, at + 4),
                Launch("compressor", 8, at + 2, at + 6),
                *([Launch("get_mla_metadata_kernel", 7, at + 6, at + 8)] if us > 40 else []),
                Launch(ATTENTION, 7, at + us - 4, at + us),
            ]
        )
        at += us
        hyper()
        launches.append(Launch("moe", 7, at, at + 30))
        at += 30
    hyper()
    launches.append(Launch("sampler", 7, at, at + 9))
    return launches


def test_a_layer_is_what_lies_between_hyper_connections() -> None:
    launches = step(0, (20, 50)) + step(1000, (24, 54))
    layers = attention_layers(launches[::-1])
    assert layers == [LayerTime(us, 9, 0, 3) if us < 40 else LayerTime(us, 11, 2, 4) for us in (20, 50, 24, 54)]
    assert times_by_kind(layers, (0, 4)) == {"swa": LayerTime(22, 9, 0, 3), "c4a": LayerTime(52, 11, 2, 4)}


def test_layers_of_a_kind_share_a_median() -> None:
    layers = [LayerTime(us, us - 2, 0, 7) for us in (90, 30, 31, 29)]
    assert times_by_kind(layers, (128, 128, 128, 128)) == {"c128a": LayerTime(30.5, 28.5, 0, 7)}


@pytest.mark.parametrize("count", [0, 1, 3])
def test_parts_of_a_step_are_refused(count: int) -> None:
    with pytest.raises(ValueError, match=f"got {count} attention layers, expected a multiple of 2"):
        times_by_kind([LayerTime(9, 9, 0, 1)] * count, (0, 4))


def test_streams_that_overlap_count_once() -> None:
    launches = [Launch("a", 7, 0, 10), Launch("b", 8, 4, 6), Launch("c", 8, 8, 14), Launch("d", 7, 20, 40)]
    assert busy_time(launches, 2, 30) == 12 + 10


def test_rows_and_table() -> None:
    kinds = {"swa": LayerTime(22.04, 9.0, 0.0, 11.0)}
    rows = layer_rows(64, 16, 8000, "flashmla", kinds)
    assert rows == [("swa", "64", "16", "8000", "flashmla", "22.0", "9.0", "0.0", "11")]
    assert len(COLUMNS) == len(rows[0])
    assert "decode 16 x 8000 flashmla  swa    layer    22.0 us" in layer_table("flashmla", 16, 8000, kinds)
