"""Measures attention: this library's and the peer's calls of a cell, and whether their results are right."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from ..clock import Clock
from ..fault import Fault, in_one_line
from ..library import ALIGNMENT, Library
from .cells import DIM, PREFILL_RUNS, PREFILL_SETS, Cell
from .inputs import Call, Inputs
from .peer import Peer, Prepared

CHECKED_TOKENS = 3
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
