"""The command `run`: times the cells, checks their outputs, prints as it goes and keeps a file of results."""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from . import report
from .cells import DIM, PREFILL_RUNS, PREFILL_SETS, Cell
from .clock import Clock, ceilings, make_clock
from .fault import Fault, in_one_line
from .index_cells import IndexCell
from .index_inputs import IndexInputs
from .index_peer import IndexPeer, load_index_peer
from .index_run import IndexBench
from .inputs import Call, Inputs
from .library import ALIGNMENT, Library
from .ops_cells import OpCell
from .ops_inputs import OpInputs
from .ops_peer import OpPeer, load_op_peer
from .ops_run import OpsBench
from .options import asks_index, asks_ops, chosen_cells
from .peer import Peer, Prepared, load_peer

CHECKED_TOKENS = 3
CACHE_BYTES = 6 << 30
INDEX_CACHE_BYTES = 20 << 30
WRONG = 4e-3
"""Relative l2 error beyond which a result is wrong: bf16 outputs alone make 1.7e-3."""


class Side:
    """One implementation over all sets of a cell: its recordings, and what became of the outputs of one set."""

    def __init__(
        self, clock: Clock, calls: Sequence[Call], prepared: Sequence[Prepared], about: dict[str, Any]
    ) -> None:
        self._calls, self._prepared, self.about = calls, prepared, about
        self.recordings = [clock.record(p.run) for p in prepared]

    def check(self) -> dict[str, Any]:
        """Writes NaN over an output, runs it again and compares tokens with float64."""
        call, prepared, lse = self._calls[0], self._prepared[0], self._prepared[0].lse
        prepared.output.fill_(float("nan"))
        if lse is not None:
            lse.fill_(float("nan"))
        self.recordings[0].replay()
        found = {"nan": int(torch.isnan(prepared.output).sum()), "error": 0.0}
        tokens = call.cell.tokens
        for token in sorted({0, tokens // 2, tokens - 1})[:CHECKED_TOKENS]:
            o, expected_lse = call.expected(token)
            error = torch.linalg.norm(prepared.output[token].double() - o) / torch.linalg.norm(o)
            found["error"] = max(found["error"], float(error))
            if lse is not None:
                off = (lse[token].double() - expected_lse).abs() / expected_lse.abs().clamp(min=1)
                found["lse_error"] = max(found.get("lse_error", 0.0), float(off.max()))
        return found


def prepare_ours(
    library: Library, clock: Clock, call: Call, implementation: str, deterministic: bool
) -> tuple[Prepared, dict[str, Any]]:
    """This library's call. @raises Fault: the library refuses it"""
    cell = call.cell
    scalars: dict[str, Any] = {
        "tokens": cell.tokens,
        "heads": cell.heads,
        "q": call.q.dtype,
        "o": torch.bfloat16,
        "scopes": len(call.scopes),
        "scale": call.scale,
        "q_scale": float(call.q_scale),
    }
    o = torch.empty(cell.tokens, cell.heads, DIM, dtype=torch.bfloat16, device=call.q.device)
    lse = torch.empty(cell.tokens, cell.heads, device=call.q.device)
    members: dict[str, Any] = {"q": call.q, "sink": call.sink, "o": o, "lse": lse}
    if cell.shares_lists:
        scalars["tokens_per_list"] = cell.queries
    for i, scope in enumerate(call.scopes):
        indices = scope.indices
        if cell.shares_lists:
            indices, members[f"scopes[{i}].starts"] = scope.shared(cell.queries)
        scalars[f"scopes[{i}].format"] = scope.cache.format
        scalars[f"scopes[{i}].block_size"] = scope.cache.page
        scalars[f"scopes[{i}].width"] = indices.shape[1]
        members[f"scopes[{i}].cache"] = scope.cache
        members[f"scopes[{i}].indices"] = indices
        members[f"scopes[{i}].lens"] = scope.lens
    plan = library.plan("sparse_attention", scalars, clock.device, implementation, deterministic)
    workspace = torch.empty(plan.workspace_bytes + ALIGNMENT, dtype=torch.uint8, device=call.q.device)
    run = plan.bind(members, workspace, clock.stream)
    about = {"implementation": plan.implementation, "workspace_bytes": plan.workspace_bytes}
    return Prepared(run, o, lse), about


class Bench:
    """Measures one cell after the other."""

    def __init__(self, args: argparse.Namespace, library: Library, peer: Peer | None, clock: Clock) -> None:
        self._args, self._library, self._peer, self._clock = args, library, peer, clock

    def _ours(self, calls: Sequence[Call], implementation: str) -> Side:
        made = [
            prepare_ours(self._library, self._clock, call, implementation, self._args.deterministic) for call in calls
        ]
        return Side(self._clock, calls, [prepared for prepared, _ in made], made[0][1])

    def _theirs(self, calls: Sequence[Call]) -> Side | None:
        assert self._peer is not None
        prepared = []
        for call in calls:
            one = self._peer.prepare(call)
            if one is None:
                return None
            prepared.append(one)
        return Side(self._clock, calls, prepared, {})

    def measure(self, cell: Cell, inputs: Inputs) -> dict[str, Any]:
        """A row of the results; what fails is its `failure`."""
        row: dict[str, Any] = cell.describe() | {"sides": {}}
        try:
            calls = inputs.calls(cell, PREFILL_SETS if cell.prefill else self._args.sets)
            sides: dict[str, Side] = {"ours": self._ours(calls, self._args.impl)}
            if self._args.impl2 is not None:
                sides["ours2"] = self._ours(calls, self._args.impl2)
            theirs = self._theirs(calls) if self._peer is not None else None
            if theirs is not None:
                sides["peer"] = theirs
            runs = min(self._args.runs, PREFILL_RUNS) if cell.prefill else self._args.runs
            times = self._clock.measure({name: side.recordings for name, side in sides.items()}, runs)
            for name, side in sides.items():
                checked = side.check()
                row["sides"][name] = asdict(times[name]) | side.about | checked
                if name != "peer" and (checked["nan"] or not checked["error"] <= WRONG):
                    row["failure"] = f"{name}: {checked['nan']} NaN, error {checked['error']:.2g}"
        except (Fault, RuntimeError) as error:
            row["failure"] = in_one_line(error)
        return row


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
