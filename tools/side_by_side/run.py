"""The command `run`: times the cells, checks their outputs, prints as it goes and keeps a file of results."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from . import report
from .attention.cells import Cell
from .attention.inputs import Inputs
from .attention.peer import Peer, load_peer
from .attention.run import Bench
from .clock import Clock, ceilings, make_clock
from .fault import Fault
from .index.cells import IndexCell
from .index.inputs import IndexInputs
from .index.peer import IndexPeer, load_index_peer
from .index.run import IndexBench
from .library import Library
from .ops.cells import OpCell
from .ops.inputs import OpInputs
from .ops.peer import OpPeer, load_op_peer
from .ops.run import OpsBench
from .options import asks_index, asks_ops, chosen_cells

CACHE_BYTES = 6 << 30
INDEX_CACHE_BYTES = 20 << 30


def describe_machine(device: str) -> dict[str, Any]:
    """The card and the software of a run."""
    about = {"torch": torch.__version__, "python": platform.python_version()}
    if device != "cuda":
        return about | {"card": platform.processor() or platform.machine()}
    properties = torch.cuda.get_device_properties(0)
    return about | {
        "card": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "cuda": torch.version.cuda,
    }


AnyCell = Cell | IndexCell | OpCell


def measure_all(
    cells: Sequence[AnyCell],
    bench: Any,
    inputs: Any,
    limit: float | None,
    emit: Callable[[dict[str, Any], int], None],
) -> list[AnyCell]:
    """Measures the cells until the limit, seconds from now; returns those that were not begun."""
    begin = time.monotonic()
    for i, cell in enumerate(cells):
        if limit is not None and time.monotonic() - begin > limit:
            return list(cells[i:])
        emit(bench.measure(cell, inputs), i)
        later = {c.rows for c in cells[i + 1 :]}
        inputs.drop({cell.rows} - later)
    return []


def make_bench(
    args: argparse.Namespace, cells: Sequence[Any], library: Library, peer: Any, clock: Clock
) -> tuple[Any, Any]:
    """What measures the cells, and what makes their inputs."""
    if asks_index(args):
        made = IndexInputs(cells, args.sets, args.device, args.seed, INDEX_CACHE_BYTES)
        return IndexBench(args, library, peer, clock), made
    if asks_ops(args):
        return OpsBench(args, library, peer, clock), OpInputs(args.device, args.seed)
    return Bench(args, library, peer, clock), Inputs(cells, args.sets, args.device, args.seed, CACHE_BYTES)


def load_any_peer(args: argparse.Namespace) -> Peer | IndexPeer | OpPeer:
    """The peer of the grids asked for. @raises Fault: it cannot be loaded"""
    if asks_index(args):
        return load_index_peer(args.peer, args.adapter)
    return load_op_peer(args.peer, args.adapter) if asks_ops(args) else load_peer(args.peer, args.adapter)


def run(args: argparse.Namespace) -> int:
    """The command. @raises Fault: a file cannot be loaded, or there is no GPU"""
    if args.device == "cuda" and not torch.cuda.is_available():
        raise Fault("torch finds no GPU (--device cpu tries the tool out)")
    begin = time.monotonic()
    library = Library(args.lib)
    peer = load_any_peer(args) if args.peer else None
    cells = chosen_cells(args)
    torch.manual_seed(args.seed)
    clock = make_clock(args.device)
    results: dict[str, Any] = {
        "tool": "side_by_side",
        "date": time.strftime("%Y-%m-%d"),
        "note": args.note,
        "machine": describe_machine(args.device),
        "library": {"file": library.path.name, "version": library.version},
        "peer": {"name": peer.name, "file": args.peer, "uncounted": peer.uncounted} if peer else None,
        "options": {k: v for k, v in vars(args).items() if k not in ("command", "json")},
        "ceilings": {"before": ceilings(clock)},
        "rows": [],
    }
    print(report.head(results), flush=True)

    def emit(row: dict[str, Any], index: int) -> None:
        results["rows"].append(row)
        passed = time.monotonic() - begin
        print(f"[{index + 1}/{len(cells)}, {passed:.0f} s] {report.line(row)}", flush=True)
        save(args.json, results)

    bench, inputs = make_bench(args, cells, library, peer, clock)
    left = measure_all(cells, bench, inputs, args.limit, emit)
    results["not_run"] = [cell.name for cell in left]
    results["ceilings"]["after"] = ceilings(clock)
    save(args.json, results)
    print("\n" + report.render(results), end="")
    return verdict(results["rows"], left)


def save(path: str | None, results: dict[str, Any]) -> None:
    """Writes the results so far."""
    if path:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps(results, indent=1))


def verdict(rows: Iterable[dict[str, Any]], left: Sequence[AnyCell]) -> int:
    """The exit status, and on stderr what it is for."""
    failed = [(row["name"], row[key]) for row in rows for key in ("failure", "peer_failure") if key in row]
    for name, text in failed:
        print(f"side_by_side: {name}: {text}", file=sys.stderr)
    if left:
        print(f"side_by_side: --limit: {len(left)} cells were not begun, the first {left[0].name}", file=sys.stderr)
    return 1 if failed else 0
