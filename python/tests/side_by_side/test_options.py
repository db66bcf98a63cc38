"""The command line, and the grids that it chooses from."""

from __future__ import annotations

import pytest
from side_by_side.attention.cells import GRIDS, LAYERS, Cell, Choice, cells_of
from side_by_side.options import arguments, choice_of, chosen_cells


def names(*words: str) -> list[str]:
    return [cell.name for cell in chosen_cells(arguments(["run", *words]))]


def test_the_decode_grid_is_what_is_compared() -> None:
    found = names("--lib", "x.so")
    assert len(found) == len(set(found)) == 2 * 5 * 5
    assert found[0] == "decode/64/swa/1" and found[-1] == "decode/128/c128_1M/128"


@pytest.mark.parametrize(
    ("grid", "count"),
    [
        ("decode", 50),
        ("small", 1),
        ("few", 4 * 5 * 2),
        ("unequal", 2),
        ("prefill", 2 * 3 * 2 * 3),
        ("prefill_few", 3 * 2),
        ("rows", 2 * 5 * 4 * 3),
        ("queries", 4 * 3 * 2 * 3 * 2),
    ],
)
def test_grids(grid: str, count: int) -> None:
    found = names("--grid", grid)
    assert len(found) == len(set(found)) == count


def test_all_grids_have_names_of_their_own() -> None:
    found = names("--grid", "all")
    assert len(found) == len(set(found)) == sum(len(cells_of((grid,), Choice())) for grid in GRIDS)


def test_options_choose_cells() -> None:
    words = ("--grid", "decode,prefill", "--heads", "8", "--layers", "swa,c128_1M", "--batches", "2,3")
    assert names(*words, "--pools", "1024", "--keys", "256", "--tokens", "7") == [
        "decode/8/swa/2",
        "decode/8/swa/3",
        "decode/8/c128_1M/2",
        "decode/8/c128_1M/3",
        "prefill/8/1024/256/7",
    ]


def test_a_number_twice_is_one() -> None:
    assert choice_of(arguments(["run", "--batches", "4,1,4"])).batches == (4, 1)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["run", "--grid", "decodes"], "got 'decodes', expected some of decode, small"),
        (["run", "--batches", "1,x"], "got 'x', expected whole numbers from 1 on"),
        (["run", "--batches", "0"], "got '0', expected whole numbers from 1 on"),
        (["run", "--layers", "c4a"], "got 'c4a', expected some of swa, c4a_32k"),
        (["run", "--rows", "f32"], "got 'f32', expected some of fp8_ds_mla"),
        (["run", "--queries", "1"], "got '1', expected whole numbers from 2 on"),
        (["run", "--heads", "129"], "--heads: got 129, expected 1 to 128"),
        (
            ["run", "--grid", "prefill", "--pools", "500", "--keys", "640"],
            "--keys: got 640 of a pool of 500, expected 128 to 628",
        ),
        (["run", "--impl", "cuda", "--impl2", "cuda"], "--impl2: got 'cuda' as in --impl"),
        (["run", "--adapter", "x.py"], "--adapter: got one without --peer"),
        (["table"], "required: FILE"),
        ([], "required: command"),
    ],
)
def test_wrong_words_are_named(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        arguments(words)
    assert end.value.code == 2
    assert text in " ".join(capsys.readouterr().err.split())


def cell(grid: str, name: str) -> Cell:
    return next(c for c in cells_of((grid,), Choice()) if c.name == name)


def test_floors_are_those_of_the_published_cells() -> None:
    assert cell("decode", "decode/64/c4a_32k/128").floor_us == pytest.approx(18.2, abs=0.05)
    assert cell("decode", "decode/128/c4a_32k/128").floor_us == pytest.approx(48.4, abs=0.05)
    assert cell("decode", "decode/128/c128_1M/64").floor_us == pytest.approx(174.7, abs=0.05)
    assert cell("unequal", "unequal/64/c128_1M_among_8k/64").byte_floor_us == pytest.approx(5.7, abs=0.05)


def test_a_top_k_of_more_heads_is_wider() -> None:
    assert [LAYERS["c4a_32k"].named(heads) for heads in (8, 64, 128)] == [512, 512, 1024]


def test_rows_that_queries_share_count_once() -> None:
    together = cell("queries", "queries/16/c128_128k/64/4/shared")
    apart = cell("queries", "queries/16/c128_128k/64/4/separate")
    assert together.tokens == apart.tokens == 256 and together.flops == apart.flops
    outputs = 256 * 16 * 512 * 4
    assert together.bytes - outputs == 64 * (128 + 3 + 1024) * 584
    assert apart.bytes - outputs == 256 * (128 + 1024) * 584


def test_narrow_rows_have_narrow_queries() -> None:
    narrow = cell("rows", "rows/64/swa/1/fp8_per_tensor")
    assert narrow.bytes == 128 * 512 + 64 * 512 * 3
