"""The index chain's cells, bars and tables; none needs torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from results import rows_of as attention_rows
from results import write
from side_by_side import bars, publish, report
from side_by_side.attention.cells import Choice
from side_by_side.index.cells import INDEX_GRIDS, IndexCell, index_cells_of
from side_by_side.index.report import index_line
from side_by_side.options import arguments, chosen_cells


def names(*words: str) -> list[str]:
    return [cell.name for cell in chosen_cells(arguments(["run", *words]))]


@pytest.mark.parametrize(("grid", "count"), [("index", 4 * 2 * 4), ("index_prefill", 2 * 3)])
def test_grids(grid: str, count: int) -> None:
    found = names("--grid", grid)
    assert len(found) == len(set(found)) == count


def test_all_grids_are_those_of_attention() -> None:
    assert not [name for name in names("--grid", "all") if name.startswith("index")]


def test_options_choose_cells() -> None:
    words = ("--grid", "index,index_prefill", "--batches", "3", "--queries", "4", "--pools", "100", "--tokens", "7")
    assert names(*words) == ["index/3/4/100", "index_prefill/7/100"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--grid", "index,decode"], "--grid: got index,decode, expected attention or the index chain, not both"),
        (["--grid", "index", "--impl2", "cpu"], "--impl2: got one with an index grid"),
    ],
)
def test_wrong_words_are_named(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        arguments(["run", *words])
    assert text in " ".join(capsys.readouterr().err.split())


def test_a_prefill_sees_what_ends_before_each_query() -> None:
    cell = IndexCell("index_prefill", 1, 2048, 2048)
    assert [cell.visible(i) for i in (0, 2, 3, 2047)] == [1536, 1536, 1537, 2048]
    assert [IndexCell("index_prefill", 1, 9, 2).visible(i) for i in range(9)] == [0, 0, 0, 0, 1, 1, 1, 1, 2]
    assert IndexCell("index", 8, 2, 2048).visible(0) == 2048


def test_floors() -> None:
    cell = IndexCell("index", 128, 1, 262144)
    assert cell.byte_floor_us == pytest.approx(128 * 262144 * 132 / 3.55e6, rel=1e-3) and cell.prefill is False
    scored = 4096 * (32768 - 512)  # half of the 4,096 tokens' 1,024 entries are ahead of the mean query
    assert IndexCell("index_prefill", 1, 4096, 32768).floor_us == pytest.approx(
        scored * 2 * 64 * 128 / 1598e6, rel=1e-3
    )


def row(cell: IndexCell, ours: float, peer: float | None, **members: object) -> report.Row:
    sides = {name: {"us": ours, "p10": 0.0, "p90": 0.0, "error": 0.0} for name in ("ours", "ours_two_ops")}
    sides["ours_scores"] = sides["ours"] | {"us": ours / 2}
    if peer is not None:
        sides["peer"] = sides["peer_uncleared"] = sides["ours"] | {"us": peer, "set_wrong": 3, "set_other": 4}
        sides["peer_scores"] = sides["ours"] | {"us": peer / 4}
    return cell.describe() | {"sides": sides} | members


def rows_of(ours: Callable[[IndexCell], float], share: Callable[[IndexCell], float]) -> list[report.Row]:
    return [row(c, ours(c), share(c) * ours(c)) for c in index_cells_of(tuple(INDEX_GRIDS), Choice())]


def verdicts(rows: list[report.Row]) -> list[tuple[str, str]]:
    return [(bar.verdict, bar.measured) for bar in bars.bars(rows) if bar.verdict != "not measured"]


def test_bars() -> None:
    def share(cell: IndexCell) -> float:
        return 1.35 if cell.prefill else 1.55 if cell.requests <= 32 and cell.entries <= 32768 else 1.1

    assert verdicts(rows_of(lambda c: 10.0 + 2 * c.queries if not c.prefill else 50, share)) == [
        ("met", "1.55 of 18 cells"),
        ("missed", "1.10 of 14 cells"),
        ("met", "1.35 of 6 cells"),
        ("met", "1.17 of 16 cells, 1.17 to 1.17"),
    ]
    assert verdicts(rows_of(lambda c: 10.0 * c.queries, share))[-1][0] == "missed"


def test_bars_of_attention_stay() -> None:
    attention = attention_rows("decode", lambda c: 10.0, lambda c: 15.0)
    index = rows_of(lambda c: 10.0, lambda c: 2.0)
    assert len(verdicts(attention + index)) == len(verdicts(attention)) + len(verdicts(index))


def test_tables(tmp_path: Path) -> None:
    rows = rows_of(lambda c: 10.0, lambda c: 1.5)
    rows[0]["failure"] = "ours: wrong"
    rows[1] = row(index_cells_of(("index",), Choice())[1], 10.0, None, peer_failure="RuntimeError: no kernel")
    text = report.render(report.load([write(tmp_path / "a.json", rows)]))
    lines = {line.split()[0]: line for line in text.splitlines() if line.startswith("index")}
    assert "FAILED ours: wrong" in lines["index/1/1/2048"]
    assert lines["index/1/1/8192"].endswith("no kernel") and " - " in lines["index/1/1/8192"]
    assert lines["index/1/1/32768"].split()[2:] == [
        *("10.0", "0.0", "0.0", "10.0", "15.0", "1.50", "15.0", "5.0", "3.8", "0.75", "0e+00", "3", "4"),
        "-",
    ]
    assert "  index chain, prefill, scores, peer/ours: 0.750 of 6 cells, " in text
    assert "met     index chain, prefill: geometric mean at least 1.3: 1.50 of 6 cells" in text
    assert "PEER FAILED RuntimeError: no kernel" in index_line(rows[1])


def test_without_a_peer_its_columns_are_absent() -> None:
    top, lines = report.columns([row(c, 10.0, None) for c in index_cells_of(("index",), Choice())])
    assert "peer" not in top and all(len(line) == len(top) for line in lines)


def test_results_are_kept_and_become_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / publish.FOLDER).mkdir(parents=True)
    monkeypatch.setattr(publish.pages, "ROOT", tmp_path)
    publish.keep(report.load([write(tmp_path / "a.json", rows_of(lambda c: 10.0, lambda c: 1.5))]))
    says, cells = publish.load("index")
    assert len(cells) == 38 and "index_fp8 rows" in says["ours"]
    assert {cell["peer_us"] for cell in cells} == {15.0} and {cell["ours_scores_us"] for cell in cells} == {5.0}
    text = publish.index_table(cells)
    assert "| 128 x 2 | 15.0 / 10.0 (1.50) |" in text and "| 4,096 | 15.0 / 10.0 (1.50) |" in text
    assert publish.index_table([]) == ""
