"""Times and checks the cells of the ops around attention: this library's op and a peer's kernels."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from ..attention.cells import PREFILL_RUNS
from ..clock import Clock, Recording
from ..fault import Fault, in_one_line
from ..library import ALIGNMENT, Library
from .cells import OpCell
from .inputs import OpCall, OpInputs, Output, checked_rows, relative
from .peer import OpPeer

WRONG = {"compress_store": 0.05, "indexer_q": 0.05, "gather_rows": 4e-3}
"""Relative l2 error against float64 beyond which a row is wrong: rounding to e4m3 alone makes up to 0.03."""
UNLIKE = 0.03
"""Relative l2 difference of all rows of both sides beyond which the peer's are wrong.

Other roundings before e4m3 make 0.01.
"""


@dataclass
class OpSide:
    """One implementation over all sets of a cell, and where each set's results are."""

    about: dict[str, Any]
    recordings: list[Recording] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)
    """The recorded calls: a recording has only the addresses of what they hold."""

    def record(self, clock: Clock, run: Callable[[], Any], output: Output) -> None:
        """Adds a recording of a call."""
        self.kept.append(run)
        self.outputs.append(output)
        self.recordings.append(clock.record(run))


def check(side: OpSide, calls: Sequence[OpCall]) -> dict[str, Any]:
    """Spoils the results of the first set, runs its recording again and compares rows with float64."""
    call, output = calls[0], side.outputs[0]
    output.spoil()
    side.recordings[0].replay()
    found = call.read(output)
    errors = [relative(found[row], call.expected(row)) for row in checked_rows(found.shape[0])]
    return {"nan": int(torch.isnan(found).sum()), "error": float(torch.tensor(errors).max())}


def is_wrong(checked: dict[str, Any], op: str) -> bool:
    """Whether a side's results are; NaN is."""
    return bool(checked["nan"]) or not checked["error"] <= WRONG[op]


class OpsBench:
    """Measures one cell after the other."""

    def __init__(self, args: argparse.Namespace, library: Library, peer: OpPeer | None, clock: Clock) -> None:
        self._args, self._library, self._peer, self._clock = args, library, peer, clock

    def _ours(self, calls: Sequence[OpCall]) -> OpSide:
        cell, device = calls[0].cell, self._clock.device
        plan = self._library.plan(cell.kind.op, calls[0].scalars(), device, self._args.impl, self._args.deterministic)
        side = OpSide({"implementation": plan.implementation, "workspace_bytes": plan.workspace_bytes})
        for call in calls:
            workspace = torch.empty(plan.workspace_bytes + ALIGNMENT, dtype=torch.uint8, device=device)
            output = call.output()
            side.record(self._clock, plan.bind(call.members(output), workspace, self._clock.stream), output)
        return side

    def _theirs(self, calls: Sequence[OpCall]) -> OpSide | None:
        if self._peer is None:
            return None
        side = OpSide({})
        for call in calls:
            output = call.output()
            made = self._peer.prepare(call, output)
            if made is None:
                return None
            side.about = {"implementation": made[1]}
            side.record(self._clock, made[0], output)
        return side

    def measure(self, cell: OpCell, inputs: OpInputs) -> dict[str, Any]:
        """A row of the results; what fails is its `failure`, what of the peer fails its `peer_failure`.

        `peer_error` is the relative l2 difference of all results of both.
        """
        row: dict[str, Any] = cell.describe() | {"sides": {}}
        try:
            calls = inputs.calls(cell, self._args.sets)
            sides = {"ours": self._ours(calls)}
            try:
                theirs = self._theirs(calls)
                if theirs is not None:
                    sides["peer"] = theirs
            except Exception as error:  # a compiler's errors are of many kinds
                row["peer_failure"] = in_one_line(error)
            runs = min(self._args.runs, PREFILL_RUNS)
            times = self._clock.measure({name: side.recordings for name, side in sides.items()}, runs)
            for name, side in sides.items():
                checked = check(side, calls)
                row["sides"][name] = asdict(times[name]) | side.about | checked
                if is_wrong(checked, cell.kind.op):
                    key = "failure" if name == "ours" else "peer_failure"
                    row[key] = f"{name}: {checked['nan']} NaN, error {checked['error']:.2g}"
            if "peer" in sides:
                self._compare(row, sides, calls[0])
        except (Fault, RuntimeError) as error:
            row["failure"] = in_one_line(error)
        return row

    @staticmethod
    def _compare(row: dict[str, Any], sides: dict[str, OpSide], call: OpCall) -> None:
        ours, theirs = (call.read(sides[name].outputs[0]) for name in ("ours", "peer"))
        row["peer_error"] = relative(theirs, ours)
        if not row["peer_error"] <= UNLIKE:
            row.setdefault("peer_failure", f"peer: differs from ours by {row['peer_error']:.2g}")
        if "peer_failure" in row:
            row["sides"]["wrong_peer"] = row["sides"].pop("peer")
