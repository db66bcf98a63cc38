"""Files of results as `run --json` writes them, made up."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from side_by_side.attention.cells import Cell, Choice, cells_of

Row = dict[str, Any]


def row(cell: Cell, ours: float, peer: float | None = None, **members: float) -> Row:
    """A right row; `members` are ours besides the time."""
    time = {"p10": 0.0, "p90": 0.0, "nan": 0, "error": 1.6e-3}
    sides: Row = {"ours": {**time, "us": ours, "lse_error": 1e-7, "workspace_bytes": 0, "implementation": "x"}}
    sides["ours"] |= members
    if peer is not None:
        sides["peer"] = {**time, "us": peer}
    return cell.describe() | {"sides": sides}


def rows_of(grid: str, ours: Callable[[Cell], float], peer: Callable[[Cell], float] | None = None) -> list[Row]:
    """All cells of a grid with these times."""
    return [row(c, ours(c), peer(c) if peer else None) for c in cells_of((grid,), Choice())]


def write(path: Path, rows: list[Row], **members: Any) -> str:
    """A file of results; returns its name."""
    found = {
        "tool": "side_by_side",
        "date": "2026-11-22",
        "note": "abc1234",
        "machine": {"card": "NVIDIA H200", "torch": "2.11.0", "cuda": "13.0"},
        "library": {"file": "libsparsemla.so", "version": "0.1.0"},
        "peer": {"name": "FlashMLA", "file": "_flashmla_C.abi3.so", "uncounted": "its schedule"},
        "options": {"impl": "", "impl2": None, "deterministic": False},
        "ceilings": {"before": {"product_tflops": 800.0, "copy_gbs": 4000.0}},
        "rows": rows,
        "not_run": [],
    }
    path.write_text(json.dumps(found | members))
    return str(path)
