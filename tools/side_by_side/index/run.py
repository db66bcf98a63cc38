"""Times and checks the cells of the index chain: this library's ops and a peer's kernels, whole and in parts."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch

from ..attention.cells import PREFILL_RUNS, PREFILL_SETS
from ..clock import Clock, Recording
from ..fault import Fault, in_one_line
from ..library import ALIGNMENT, Library, Plan
from .cells import HEADS, INDEX_DIM, TOP_K, IndexCell
from .inputs import IndexCall, IndexInputs, judge
from .peer import IndexPeer

UNWRITTEN = 0x7F7F7F7F
"""Of a choice: no entry, and not the -1 behind them."""


@dataclass
class IndexSide:
    """One way to compute a cell: a recording for each set, and what it writes, which is a choice or scores.

    Scores stand in a list of one, for a peer makes them anew in each call; before the first it is empty.
    """

    about: dict[str, Any]
    recordings: list[Recording] = field(default_factory=list)
    indices: list[torch.Tensor] = field(default_factory=list)
    scores: list[list[torch.Tensor]] = field(default_factory=list)
    before: int = UNWRITTEN
    """What a choice holds when a call begins."""
    kept: list[Any] = field(default_factory=list)
    """The recorded calls: a recording has only the addresses of what they hold."""

    def record(self, clock: Clock, run: Callable[[], Any]) -> None:
        """Adds a recording of the call."""
        self.kept.append(run)
        self.recordings.append(clock.record(run))


def checked_rows(cell: IndexCell) -> list[int]:
    """The first, the middle and the last."""
    return sorted({0, cell.tokens // 2, cell.tokens - 1})


def worst(errors: Sequence[float]) -> float:
    """The largest; NaN where one is."""
    return math.nan if any(map(math.isnan, errors)) else max(errors, default=0.0)


class Reference:
    """The exact scores of some rows of all sets."""

    def __init__(self, calls: Sequence[IndexCall]) -> None:
        self._rows = [{row: call.expected(row) for row in checked_rows(call.cell)} for call in calls]

    def check(self, side: IndexSide) -> dict[str, Any]:
        """Overwrites a side's outputs, runs its recordings again and compares the rows: how many were `checked`, and

        - of choices how many entries are wrong (`set_wrong`), how many are not in the exact set (`set_other`), and
          as `error` how much better one passed over was;
        - of scores the largest `error`, as a share of the row's largest score.
        """
        judged, errors = [], []
        for i, (recording, rows) in enumerate(zip(side.recordings, self._rows)):
            for written in side.scores[i] if side.scores else ():
                written.fill_(math.nan)
            for written in side.indices[i : i + 1]:
                written.fill_(side.before)
            recording.replay()
            for row, exact in rows.items():
                if side.indices:
                    judged.append(judge(side.indices[i][row], exact))
                elif exact.numel():
                    off = side.scores[i][0][row, : exact.numel()].double() - exact
                    errors.append(float(off.abs().max() / exact.abs().max()))
        if not side.indices:
            return {"checked": len(errors), "error": worst(errors)}
        return {
            "checked": len(judged),
            "set_wrong": sum(j.wrong for j in judged),
            "set_other": sum(j.other for j in judged),
            "error": worst([j.passed_over for j in judged]),
        }


class OwnIndexer:
    """This library's ops planned for a cell: scores and choice in one op, and each in an op of its own."""

    def __init__(self, library: Library, clock: Clock, calls: Sequence[IndexCall], args: argparse.Namespace) -> None:
        cell, device = calls[0].cell, calls[0].q.device
        self._clock, self._calls = clock, calls
        sizes = {"rows": cell.tokens, "width": cell.entries}
        scored = sizes | {"heads": HEADS, "dim": INDEX_DIM, "format": cell.rows}

        def plan(op: str, scalars: dict[str, Any], implementation: str = "") -> Plan:
            return library.plan(op, scalars, clock.device, implementation, args.deterministic)

        self._joint = plan("indexer_topk", scored | {"k": TOP_K}, args.impl)
        self._scores = plan("indexer_logits", scored)
        self._choice = plan("topk", sizes | {"k": TOP_K})
        plans = (self._joint, self._scores, self._choice)
        most = max(p.workspace_bytes for p in plans)
        self._workspace = torch.empty(most + ALIGNMENT, dtype=torch.uint8, device=device)
        self._logits = torch.empty(cell.tokens, cell.entries, device=device)
        self._chosen = torch.empty(cell.tokens, TOP_K, dtype=torch.int32, device=device)

    def _bind(self, plan: Plan, members: dict[str, Any]) -> Callable[[], None]:
        return plan.bind(members, self._workspace, self._clock.stream)

    @staticmethod
    def _read(call: IndexCall) -> dict[str, Any]:
        """What scores are made of."""
        names = ("q", "weights", "row_to_req", "lens", "cache")
        return {name: getattr(call, name) for name in names} | {"block_table": call.table}

    def sides(self) -> dict[str, IndexSide]:
        """Recorded: the op of both, the two ops one after the other, and the scores alone."""
        scores, choice = self._scores.implementation, self._choice.implementation
        joint = {"implementation": self._joint.implementation, "workspace_bytes": self._joint.workspace_bytes}
        sides = {
            "ours": IndexSide(joint),
            "ours_two_ops": IndexSide({"implementation": f"indexer_logits {scores}, topk {choice}"}),
            "ours_scores": IndexSide({"implementation": scores}),
        }
        for call in self._calls:
            read = self._read(call)
            joint_run = self._bind(self._joint, read | {"indices": self._chosen})
            score = self._bind(self._scores, read | {"logits": self._logits})
            choose = self._bind(self._choice, {"logits": self._logits, "lens": call.lens, "indices": self._chosen})
            runs = {"ours": joint_run, "ours_two_ops": _both(score, choose), "ours_scores": score}
            for name, run in runs.items():
                sides[name].record(self._clock, run)
            sides["ours"].indices.append(self._chosen)
            sides["ours_two_ops"].indices.append(self._chosen)
            sides["ours_scores"].scores.append([self._logits])
        return sides


def _both(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        first()
        second()

    return run


class PeerIndexer:
    """A peer's calls of a cell."""

    def __init__(self, peer: IndexPeer, clock: Clock, calls: Sequence[IndexCall]) -> None:
        self._clock = clock
        made = [peer.prepare(call) for call in calls]
        self._prepared = [one for one in made if one is not None]

    def sides(self, failed: Callable[[Exception], None]) -> dict[str, IndexSide]:
        """Recorded: scores alone, the chain, and the chain without readying its output; `failed` is told why one of
        them is absent."""
        sides = {}
        for name in ("peer_scores", "peer", "peer_uncleared") if self._prepared else ():
            try:
                sides[name] = self._record(name)
            except (Fault, RuntimeError) as error:
                failed(error)
        return sides

    def _record(self, name: str) -> IndexSide:
        side = IndexSide(
            {"implementation": self._prepared[0].calls}, before=-1 if name == "peer_uncleared" else UNWRITTEN
        )
        for one in self._prepared:
            if name == "peer_scores":
                side.scores.append([])
                run: Callable[[], Any] = partial(_keep, side.scores[-1], one.score)
            else:
                side.indices.append(one.indices)
                run = one.chain if name == "peer" else one.bare_chain
            side.record(self._clock, run)
        return side


def _keep(place: list[torch.Tensor], score: Callable[[], torch.Tensor]) -> None:
    place[:] = [score()]


class IndexBench:
    """Measures one cell after the other."""

    def __init__(self, args: argparse.Namespace, library: Library, peer: IndexPeer | None, clock: Clock) -> None:
        self._args, self._library, self._peer, self._clock = args, library, peer, clock

    def measure(self, cell: IndexCell, inputs: IndexInputs) -> dict[str, Any]:
        """A row of the results; what fails is its `failure`, what of the peer fails its `peer_failure`."""
        row: dict[str, Any] = cell.describe() | {"sides": {}}
        try:
            calls = inputs.calls(cell, min(self._args.sets, PREFILL_SETS) if cell.prefill else self._args.sets)
            sides = OwnIndexer(self._library, self._clock, calls, self._args).sides() | self._theirs(calls, row)
            runs = min(self._args.runs, PREFILL_RUNS) if cell.prefill else self._args.runs
            times = self._clock.measure({name: side.recordings for name, side in sides.items()}, runs)
            reference = Reference(calls)
            for name, side in sides.items():
                checked = reference.check(side)
                row["sides"][name] = asdict(times[name]) | side.about | checked
                if name.startswith("ours") and _fails(checked):
                    row["failure"] = f"{name}: {checked}"
        except (Fault, RuntimeError) as error:
            row["failure"] = in_one_line(error)
        return row

    def _theirs(self, calls: Sequence[IndexCall], row: dict[str, Any]) -> dict[str, IndexSide]:
        def failed(error: Exception) -> None:
            row.setdefault("peer_failure", in_one_line(error))

        if self._peer is None:
            return {}
        try:
            return PeerIndexer(self._peer, self._clock, calls).sides(failed)
        except (Fault, RuntimeError) as error:
            failed(error)
            return {}


def _fails(checked: dict[str, Any]) -> bool:
    return not checked["checked"] or checked.get("set_wrong", 0) > 0 or math.isnan(checked["error"])
