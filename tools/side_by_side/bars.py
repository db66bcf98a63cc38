"""What is asked of the kernels on an H200, and what a file of results says about it. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .attention.cells import FEW_HEADS
from .index.cells import DECODE_GRID, INDEX_GRIDS, PREFILL_GRID
from .ops.cells import OPS_GRIDS

Row = dict[str, Any]

NOISE = 1.03
"""Two times that differ by less are the same: for "no slower"."""
ERROR_NOISE = 1.02
"""Likewise of two errors: sampled tokens of one and the same rounding differ that much."""
MOST_WORKSPACE = 64 << 20
UP_TO = 16
MANY = 64
LONG_LIST = 1152
SHORT_LIST = 640
INDEX_UP_TO = (32, 32768)
"""Requests and entries of the index chain's lesser cells."""
INDEX_GROUPS = {
    f"index chain, up to {INDEX_UP_TO[0]} requests and {INDEX_UP_TO[1]:,} entries": 1.5,
    "index chain, other decode cells": 1.15,
    "index chain, prefill": 1.3,
}
"""What the peer's time over ours is to be in each group of cells."""


@dataclass(frozen=True)
class Bar:
    """One line of the verdict; `verdict` is "met", "missed" or "not measured"."""

    what: str
    bound: str
    measured: str
    verdict: str


def us(row: Row, side: str = "ours") -> float:
    """Microseconds of a side; nan where it was not measured or is wrong."""
    return float(row["sides"].get(side, {}).get("us", math.nan)) if "failure" not in row else math.nan


def ratio(row: Row, ours: str = "ours", theirs: str = "peer") -> float:
    """The peer's time over ours; nan without both."""
    return us(row, theirs) / us(row, ours)


def mean(values: Iterable[float]) -> float:
    """The geometric mean; nan of nothing."""
    known = list(values)
    return math.exp(math.fsum(math.log(v) for v in known) / len(known)) if known else math.nan


def compared(rows: Iterable[Row], /, **want: Any) -> list[Row]:
    """The right rows of these members that have a peer's time."""
    return [r for r in rows if matches(r, want) and not math.isnan(ratio(r))]


def timed(rows: Iterable[Row], /, **want: Any) -> list[Row]:
    """The right rows of these members."""
    return [r for r in rows if matches(r, want) and not math.isnan(us(r))]


def matches(row: Row, want: dict[str, Any]) -> bool:
    """Whether the row has these members; a tuple is a choice."""
    return all(row[k] in v if isinstance(v, tuple) else row[k] == v for k, v in want.items())


def _verdict(ok: bool) -> str:
    return "met" if ok else "missed"


def _at_least(what: str, rows: Sequence[Row], bound: float, value: Callable[[Sequence[Row]], float], word: str) -> Bar:
    if not rows:
        return Bar(what, f"{word} at least {bound:g}", "", "not measured")
    got = value(rows)
    return Bar(what, f"{word} at least {bound:g}", f"{got:.2f} of {len(rows)} cells", _verdict(round(got, 9) >= bound))


def _each_ratio(what: str, rows: Sequence[Row], bound: float) -> Bar:
    """Every cell's ratio is at least the bound."""
    if not rows:
        return Bar(what, f"each at least {bound:g}", "", "not measured")
    worst = min(rows, key=ratio)
    under = sum(ratio(r) < bound for r in rows)
    text = f"worst {ratio(worst):.2f} ({worst['name']}); {len(rows) - under} of {len(rows)} cells"
    return Bar(what, f"each at least {bound:g}", text, _verdict(not under))


def _each_under(what: str, bound: str, rows: Sequence[Row], share: Callable[[Row], float]) -> Bar:
    """Every cell's share of its bound is at most 1."""
    if not rows:
        return Bar(what, bound, "", "not measured")
    worst = max(rows, key=share)
    over = sum(share(r) > 1 for r in rows)
    text = f"{len(rows) - over} of {len(rows)} cells; worst {share(worst):.2f} of it ({worst['name']})"
    return Bar(what, bound, text, _verdict(not over))


def _time(what: str, rows: Sequence[Row], most: float) -> Bar:
    if not rows:
        return Bar(what, f"at most {most:g} us", "", "not measured")
    got = max(us(r) for r in rows)
    return Bar(what, f"at most {most:g} us", f"{got:.1f} us", _verdict(got <= most))


def _mean_ratio(rows: Sequence[Row]) -> float:
    return mean(ratio(r) for r in rows)


def decode_bars(rows: Sequence[Row]) -> list[Bar]:
    """64 and 128 heads, beside the peer."""
    cells = compared(rows, grid="decode", heads=(64, 128))
    few = [r for r in cells if r["requests"] <= UP_TO]
    single = timed(rows, grid=("small", "decode"), heads=64, layer="c4a_32k", requests=1)
    return [
        _at_least("decode, all cells", cells, 1.5, _mean_ratio, "geometric mean"),
        _each_ratio("decode, every cell", cells, 1.05),
        _at_least(f"decode, up to {UP_TO} requests", few, 1.8, _mean_ratio, "geometric mean"),
        _time("64 heads, C4A, 128 requests", timed(rows, grid="decode", heads=64, layer="c4a_32k", requests=128), 32),
        _time("128 heads, C4A, 128 requests", timed(rows, grid="decode", heads=128, layer="c4a_32k", requests=128), 85),
        _time("one query, 640 keys", [r for r in single if r["keys"] == SHORT_LIST], 8.5),
        _each_under(
            "one request of 1M tokens among 8k ones",
            "at most 1.3 byte floors + 10 us",
            timed(rows, grid="unequal"),
            lambda r: us(r) / (1.3 * r["byte_floor_us"] + 10),
        ),
    ]


def prefill_bars(rows: Sequence[Row]) -> list[Bar]:
    """64 and 128 heads; few heads beside the peer's kernel for them."""
    cells = compared(rows, grid="prefill", heads=(64, 128))
    few = compared(rows, grid="prefill_few")
    return [
        _each_ratio("prefill, every cell", cells, 0.9),
        _at_least("prefill, all cells", cells, 1.0, _mean_ratio, "geometric mean"),
        _each_ratio("prefill, 8 and 16 heads", [r for r in few if r["heads"] in (8, 16)], 1.4),
        _each_ratio("prefill, 32 heads", [r for r in few if r["heads"] == 32], 1.9),
    ]


def few_bars(rows: Sequence[Row]) -> list[Bar]:
    """Decode of few heads: near the floor of its bytes, and never slower than more heads."""
    cells = timed(rows, grid="few")
    by_place = {(r["layer"], r["requests"], r["heads"]): r for r in cells}
    slower = []
    pairs = 0
    for (layer, requests, heads), row in by_place.items():
        for more in (16, 32, 64):
            wider = by_place.get((layer, requests, more))
            if more > heads and wider is not None:
                pairs += 1
                if us(row) > NOISE * us(wider):
                    slower.append(f"{row['name']} than {more}")
    what, bound = "few heads, decode", "never slower than more heads"
    text = f"{pairs - len(slower)} of {pairs} pairs" + (f"; slower: {slower[0]}" if slower else "")
    return [
        _each_under(
            "few heads, decode",
            "at most 1.4 byte floors + 4.5 us (+ 6 us under 640 keys)",
            [r for r in cells if r["heads"] in FEW_HEADS and r["requests"] >= MANY],
            lambda r: us(r) / (1.4 * r["byte_floor_us"] + (4.5 if r["keys"] >= SHORT_LIST else 6)),
        ),
        Bar(what, bound, text, _verdict(not slower)) if pairs else Bar(what, bound, "", "not measured"),
    ]


def _partner(row: Row, rows: Sequence[Row], /, **change: Any) -> Row | None:
    keys = ("grid", "heads", "layer", "requests", "queries", "shared", "rows")
    want = {k: row[k] for k in keys} | change
    found = timed(rows, **want)
    return found[0] if found else None


def rows_bars(rows: Sequence[Row]) -> list[Bar]:
    """Other rows than fp8_ds_mla."""
    narrow = []
    for row in timed(rows, grid="rows", rows="fp8_per_tensor"):
        wide = _partner(row, rows, rows="fp8_ds_mla")
        if wide is not None:
            narrow.append((row, wide))
    slower = {id(row): us(row) / us(wide) / NOISE for row, wide in narrow}
    return [
        _each_under(
            f"bf16 rows, {MANY} requests and more",
            "at most 2 floors + 1 us",
            [r for r in timed(rows, grid="rows", rows="bf16") if r["requests"] >= MANY],
            lambda r: us(r) / (2 * r["floor_us"] + 1),
        ),
        _each_under(
            "per-tensor FP8 rows, FP8 queries",
            "no slower than fp8_ds_mla",
            [row for row, _ in narrow],
            lambda r: slower[id(r)],
        ),
    ]


def _shared_bound(row: Row) -> float:
    """What several queries of a request may take of as many separate ones."""
    asked = row["heads"] in FEW_HEADS and (row["keys"] >= LONG_LIST or row["requests"] >= MANY)
    return (0.65 if row["queries"] >= 4 else 0.75) if asked else NOISE


def queries_bars(rows: Sequence[Row]) -> list[Bar]:
    """Several queries of a request."""
    pairs = []
    for row in timed(rows, grid="queries", shared=True):
        apart = _partner(row, rows, shared=False)
        if apart is not None:
            pairs.append((row, us(row) / us(apart) / _shared_bound(row)))
    share = {id(row): value for row, value in pairs}
    asked = [row for row, _ in pairs if _shared_bound(row) < 1]
    others = [row for row, _ in pairs if _shared_bound(row) >= 1]
    return [
        _each_under(
            "several queries of a request, 8 to 32 heads",
            "at most 0.65 of separate ones, two 0.75",
            asked,
            lambda r: share[id(r)],
        ),
        _each_under("several queries, elsewhere", "no slower than separate ones", others, lambda r: share[id(r)]),
    ]


def error_bars(rows: Sequence[Row]) -> list[Bar]:
    """Errors beside the peer's, and what memory a call takes."""
    with_error = compared(rows)
    with_lse = [r for r in timed(rows) if "lse_error" in r["sides"]["ours"]]
    with_memory = [r for r in timed(rows) if "workspace_bytes" in r["sides"]["ours"]]
    return [
        _each_under(
            "error against float64",
            "at most the peer's",
            with_error,
            lambda r: r["sides"]["ours"]["error"] / (ERROR_NOISE * r["sides"]["peer"]["error"]),
        ),
        _each_under("lse against float64", "1e-6", with_lse, lambda r: r["sides"]["ours"]["lse_error"] / 1e-6),
        _each_under(
            "workspace", "at most 64 MiB", with_memory, lambda r: r["sides"]["ours"]["workspace_bytes"] / MOST_WORKSPACE
        ),
    ]


def index_group(row: Row) -> str:
    """The group of a cell; empty where it is none of the index chain."""
    few, others, prefill = INDEX_GROUPS
    if row["grid"] == DECODE_GRID:
        return few if row["requests"] <= INDEX_UP_TO[0] and row["keys"] <= INDEX_UP_TO[1] else others
    return prefill if row["grid"] == PREFILL_GRID else ""


def index_bars(rows: Sequence[Row]) -> list[Bar]:
    """The index chain beside the peer's, and two queries of a request beside one."""
    groups = [
        _at_least(group, [r for r in compared(rows) if index_group(r) == group], bound, _mean_ratio, "geometric mean")
        for group, bound in INDEX_GROUPS.items()
    ]
    ones = {(r["requests"], r["keys"]): us(r) for r in timed(rows, grid=DECODE_GRID, queries=1)}
    twos = [r for r in timed(rows, grid=DECODE_GRID, queries=2) if (r["requests"], r["keys"]) in ones]
    share = [us(r) / ones[r["requests"], r["keys"]] for r in twos]
    what, bound = "index chain, two queries over one", "geometric mean at most 1.2"
    if not share:
        return [*groups, Bar(what, bound, "", "not measured")]
    text = f"{mean(share):.2f} of {len(share)} cells, {min(share):.2f} to {max(share):.2f}"
    return [*groups, Bar(what, bound, text, _verdict(mean(share) <= 1.2))]


def bars(rows: Sequence[Row]) -> list[Bar]:
    """All of them."""
    makers = (decode_bars, prefill_bars, few_bars, rows_bars, queries_bars, error_bars)
    attention = [row for row in rows if row["grid"] not in {*INDEX_GRIDS, *OPS_GRIDS}]
    index = [row for row in rows if row["grid"] in INDEX_GRIDS]
    return [bar for maker in makers for bar in maker(attention)] + index_bars(index)
