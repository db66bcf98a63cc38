"""Bars and tables of files of results; neither needs torch."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
from results import row, rows_of, write
from side_by_side import bars, publish, report
from side_by_side.attention.cells import Cell, Choice, cells_of
from side_by_side.fault import Fault

ROOT = Path(__file__).parents[3]


def verdicts(rows: list[report.Row]) -> dict[str, str]:
    """{what, bound: verdict} of the bars that something was measured for."""
    return {f"{b.what}: {b.bound}": b.verdict for b in bars.bars(rows) if b.verdict != "not measured"}


def missed(rows: list[report.Row]) -> list[str]:
    return [what for what, verdict in verdicts(rows).items() if verdict == "missed"]


def fast(cell: Cell) -> float:
    """A time that meets every bar of decode, of which the peer takes twice."""
    return cell.floor_us + 2


def test_nothing_measured_is_no_verdict() -> None:
    assert verdicts([]) == {}


def test_decode_bars_are_met() -> None:
    rows = rows_of("decode", fast, lambda c: 2 * fast(c))
    assert missed(rows) == []
    assert len(verdicts(rows)) == 6 + 3


@pytest.mark.parametrize(
    ("slow", "share", "expected"),
    [
        ("decode/64/swa/128", 1.94, ["decode, every cell: each at least 1.05"]),
        ("decode/64/c4a_32k/128", 1.6, ["64 heads, C4A, 128 requests: at most 32 us"]),
        ("decode/128/c4a_32k/128", 1.7, ["128 heads, C4A, 128 requests: at most 85 us"]),
        ("decode/64/c4a_32k/1", 1.0, []),
        ("decode/64/c4a_32k/1", 1.9, []),
    ],
)
def test_one_slow_cell(slow: str, share: float, expected: list[str]) -> None:
    rows = rows_of("decode", lambda c: fast(c) * (share if c.name == slow else 1), lambda c: 2 * fast(c))
    assert missed(rows) == expected


def test_means_of_few_and_of_all_requests() -> None:
    rows = rows_of("decode", fast, lambda c: fast(c) * (1.7 if c.requests <= 16 else 1.3))
    assert missed(rows) == ["decode, up to 16 requests: geometric mean at least 1.8"]
    rows = rows_of("decode", fast, lambda c: fast(c) * 1.4)
    assert missed(rows)[0] == "decode, all cells: geometric mean at least 1.5"


@pytest.mark.parametrize(("us", "expected"), [(8.5, []), (8.6, ["one query, 640 keys: at most 8.5 us"])])
def test_one_query(us: float, expected: list[str]) -> None:
    assert missed(rows_of("small", lambda c: us)) == expected


def test_unequal_requests() -> None:
    assert missed(rows_of("unequal", lambda c: 1.3 * c.byte_floor_us + 9.9)) == []
    assert len(missed(rows_of("unequal", lambda c: 1.3 * c.byte_floor_us + 10.1))) == 1


def test_prefill_bars() -> None:
    assert missed(rows_of("prefill", lambda c: c.floor_us, lambda c: 1.02 * c.floor_us)) == []
    rows = rows_of("prefill", lambda c: c.floor_us, lambda c: (0.89 if c.heads == 64 else 1.2) * c.floor_us)
    assert missed(rows) == ["prefill, every cell: each at least 0.9"]
    few = rows_of("prefill_few", lambda c: c.floor_us, lambda c: (1.45 if c.heads < 32 else 1.8) * c.floor_us)
    assert missed(few) == ["prefill, 32 heads: each at least 1.9"]


def test_few_heads() -> None:
    floor = {c.name: c.byte_floor_us for c in cells_of(("few",), Choice())}

    def near(c: Cell) -> float:
        return 1.4 * floor[f"few/8/{c.layer}/{c.requests}"] + 4.4

    assert missed(rows_of("few", near)) == []
    assert missed(rows_of("few", lambda c: near(c) + (2 if c.heads == 8 else 1.9))) == [
        "few heads, decode: at most 1.4 byte floors + 4.5 us (+ 6 us under 640 keys)"
    ]
    slower = missed(rows_of("few", lambda c: near(c) * (0.9 if c.heads == 64 else 1)))
    assert slower == ["few heads, decode: never slower than more heads"]


def test_other_rows() -> None:
    assert missed(rows_of("rows", lambda c: c.floor_us + 1)) == []
    rows = rows_of("rows", lambda c: 2 * c.floor_us + (1.1 if c.rows == "bf16" and c.requests >= 64 else 0.9))
    assert missed(rows) == ["bf16 rows, 64 requests and more: at most 2 floors + 1 us"]
    rows = rows_of("rows", lambda c: 104.0 if c.rows == "fp8_per_tensor" and c.requests == 1 else 100.0)
    assert "per-tensor FP8 rows, FP8 queries: no slower than fp8_ds_mla" in missed(rows)


def test_several_queries() -> None:
    def times(shared: float) -> list[report.Row]:
        return rows_of("queries", lambda c: 100 * shared if c.shared else 100.0)

    assert missed(times(0.64)) == []
    assert missed(times(0.7)) == [
        "several queries of a request, 8 to 32 heads: at most 0.65 of separate ones, two 0.75"
    ]
    rows = rows_of("queries", lambda c: 100.0 if not c.shared else 64.0 if c.heads < 64 else 104.0)
    assert missed(rows) == ["several queries, elsewhere: no slower than separate ones"]


def test_errors_and_memory() -> None:
    cell = cells_of(("small",), Choice())[0]
    assert missed([row(cell, 8.0, 20.0, error=1.62e-3)]) == []
    assert missed([row(cell, 8.0, 20.0, error=1.7e-3)]) == ["error against float64: at most the peer's"]
    assert missed([row(cell, 8.0, lse_error=1.1e-6)]) == ["lse against float64: 1e-6"]
    assert missed([row(cell, 8.0, workspace_bytes=(64 << 20) + 1)]) == ["workspace: at most 64 MiB"]


def test_a_wrong_row_counts_nowhere() -> None:
    rows = rows_of("decode", fast, lambda c: 2 * fast(c))
    rows[0] |= {"failure": "ours: 3 NaN, error 0.1"}
    assert math.isnan(bars.us(rows[0]))
    assert len(bars.compared(rows)) == 49
    top, lines = report.columns(rows)
    assert lines[0][0] == "decode/64/swa/1" and lines[0][1] == "FAILED" and len(lines[0]) == len(top)
    assert "FAILED ours: 3 NaN" in report.text_table(top, lines, markdown=False)


def test_table_from_a_file(tmp_path: Path) -> None:
    rows = rows_of("decode", lambda c: 10.0, lambda c: 15.0)
    rows[1]["sides"]["ours2"] = rows[1]["sides"]["ours"] | {"us": 5.0}
    name = write(tmp_path / "a.json", rows, not_run=["decode/1/swa/1"])
    done = subprocess.run(
        [sys.executable, ROOT / "tools/side_by_side", "table", name], capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "NVIDIA H200, CUDA 13.0, torch 2.11.0, 2026-11-22"
    first = next(line.split() for line in lines if line.startswith("decode/64/swa/4 "))
    assert first[:3] == ["decode/64/swa/4", "0.2", "10.0"] and first[7:12] == ["5.0", "0.50", "15.0", "1.50", "3.00"]
    assert "  decode, peer/ours: 1.500 of 50 cells" in lines
    assert "met     decode, all cells: geometric mean at least 1.5: 1.50 of 50 cells" in lines
    assert "missed  decode, up to 16 requests: geometric mean at least 1.8: 1.50 of 30 cells" in lines
    assert lines[-1] == "1 cells were not begun, the first decode/1/swa/1"


def test_markdown() -> None:
    text = report.text_table(["cell", "us"], [["a", "1.0"]], markdown=True)
    assert text == "| cell | us |\n| --- | ---: |\n| a | 1.0 |\n"


def test_of_several_files_the_last_counts(tmp_path: Path) -> None:
    first = write(tmp_path / "a.json", rows_of("decode", lambda c: 10.0))
    second = write(tmp_path / "b.json", rows_of("small", lambda c: 9.0) + rows_of("decode", lambda c: 8.0)[:1])
    rows = report.load([first, second])["rows"]
    assert len(rows) == 51 and rows[0]["sides"]["ours"]["us"] == 8.0 and rows[1]["sides"]["ours"]["us"] == 10.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "No such file"),
        ("{", "Expecting property name"),
        ("[]", "expected a file of"),
        ('{"tool": "side_by_side"}', "expected a file of"),
        ('{"tool": "side_by_side", "rows": []}', "hold no row"),
        ('{"tool": "side_by_side", "rows": [{"name": "x"}]}', "a row has no grid"),
    ],
)
def test_files_that_are_none(tmp_path: Path, text: str | None, expected: str) -> None:
    path = tmp_path / "x.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(Fault, match=expected):
        report.load([str(path)])


def test_what_is_kept_is_what_pages_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / publish.FOLDER).mkdir(parents=True)
    monkeypatch.setattr(publish.pages, "ROOT", tmp_path)
    rows = rows_of("decode", lambda c: 10.0, lambda c: 12.0) + rows_of("prefill", lambda c: 50.0, lambda c: 40.0)
    publish.keep(report.load([write(tmp_path / "a.json", rows)]))
    says, cells = publish.load("decode")
    assert says["date"] == "2026-11-22" and says["card"].startswith("NVIDIA H200") and "abc1234" in says["ours"]
    assert len(cells) == 50
    assert cells[0] == {"heads": 64, "layer": "swa", "requests": 1, "peer_us": 12.0, "ours_us": 10.0}
    prefill = publish.load("prefill")[1]
    assert len(prefill) == 36
    assert "- prefill, 64 and 128 heads: 0.80 times as fast (36 cells" in publish.sentences(cells, prefill)
    assert "| 64, 8,192, 640 | 4295 / 3436 (0.80) |" in publish.prefill_table(prefill)
    assert 'viewBox="0 0 ' in publish.picture(says, cells)


def test_without_a_peer_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish.pages, "ROOT", tmp_path)
    with pytest.raises(Fault, match="no cell"):
        publish.keep(report.load([write(tmp_path / "a.json", rows_of("decode", lambda c: 10.0))]))
