"""What the tables of all grids write alike. Standard library only."""

from __future__ import annotations

import math

from .bars import Row


def number(value: float, digits: int = 1) -> str:
    """A number of a table; a dash where there is none."""
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def failed(row: Row, columns: int) -> list[str]:
    """The line of a cell that failed, in a table of so many columns."""
    return [row["name"], "FAILED", *[""] * (columns - 3), row["failure"]]


def failures(row: Row) -> str:
    """The end of a cell's line: what failed of it."""
    text = f" FAILED {row['failure']}" if "failure" in row else ""
    return text + (f" PEER FAILED {row['peer_failure']}" if "peer_failure" in row else "")
