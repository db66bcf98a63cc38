"""Recorded calls (docs/cases.md) as arguments of `sparsemla.ops`, over numpy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import sparsemla as sm

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = ROOT / "tests" / "golden"

# numpy has no bfloat16 and no E4M3: their bits.
DTYPES = {
    "F32": np.float32,
    "F64": np.float64,
    "BF16": np.uint16,
    "F8_E4M3": np.uint8,
    "U8": np.uint8,
    "I32": np.int32,
    "I64": np.int64,
    "BOOL": np.bool_,
}
SCOPES = {"cache": "cache", "indices": "indices", "lens": "lens"}


@dataclass
class Case:
    """A file: its op, its scalars and its tensors by full name."""

    path: Path
    op: str
    params: dict[str, Any]
    tensors: dict[str, np.ndarray]


@dataclass
class Call:
    """One call of an op: members to give, and the bytes that outputs must have afterwards."""

    op: str
    scalars: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Any] = field(default_factory=dict)
    expected: dict[str, np.ndarray] = field(default_factory=dict)
    written: dict[str, np.ndarray] = field(default_factory=dict)


def read_case(path: Path) -> Case:
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    meta = header.pop("__metadata__")
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        flat = np.frombuffer(data[8 + size + begin : 8 + size + end], DTYPES[entry["dtype"]])
        tensors[name] = flat.reshape(entry["shape"]).copy()
    return Case(path, meta["op"], json.loads(meta["params"]), tensors)


def _cache(case: Case, tensor: np.ndarray, name: str) -> sm.Cache:
    params = case.params
    return sm.Cache(
        tensor, params[f"{name}_format"], params[f"{name}_block_size"], kv_scale=params.get(f"{name}_scale", 1.0)
    )


def _attention_call(case: Case) -> Call:
    """The older form of sparse_attention."""
    params, t = case.params, case.tensors
    call = Call("sparse_attention")
    call.tensors["q"] = t["in.q"]
    if "in.sink" in t:
        call.tensors["sink"] = t["in.sink"]
    for i in range(2):
        if f"in.cache{i}" not in t:
            continue
        cache = sm.Cache(
            t[f"in.cache{i}"],
            params.get(f"format{i}", "fp8_ds_mla"),
            params[f"block_size{i}"],
            kv_scale=params.get(f"kv_scale{i}", 1.0),
        )
        call.tensors[f"scopes[{i}].cache"] = cache
        call.tensors[f"scopes[{i}].indices"] = t[f"in.indices{i}"]
        if f"in.lens{i}" in t:
            call.tensors[f"scopes[{i}].lens"] = t[f"in.lens{i}"]
    if params.get("rope_dim"):
        call.tensors["output_epilogue.positions"] = t["in.positions"]
        call.tensors["output_epilogue.cos_sin"] = t["in.cos_sin"]
    if params.get("q_rope_dim"):
        call.tensors["query_prologue.positions"] = t.get("in.q_positions", t.get("in.positions"))
        call.tensors["query_prologue.cos_sin"] = t.get("in.q_cos_sin", t.get("in.cos_sin"))
        call.scalars["query_prologue.eps"] = params.get("q_eps", 1e-6)
    for name in ("scale", "q_scale", "partial"):
        if name in params:
            call.scalars[name] = params[name]
    heads = t["out.lse"].shape[1] if "out.lse" in t else t["out.o"].shape[1]
    call.scalars["heads"] = heads
    for name in ("o", "lse"):
        _expect(call, case, name)
    return call


def _expect(call: Call, case: Case, name: str) -> None:
    want = case.tensors.get(f"out.{name}")
    if want is None:
        return
    before = case.tensors.get(f"in.{name}_before")
    out = np.full(want.nbytes, 0xFF, np.uint8).view(want.dtype).reshape(want.shape) if before is None else before
    if before is not None and before.shape != want.shape:
        out = before.reshape(want.shape)
    call.tensors[name] = call.written[name] = out
    call.expected[name] = want


def read_call(case: Case) -> Call:
    """The call that a recorded op is. @raises KeyError: the case is no call of one op."""
    if case.op == "sparse_attention":
        return _attention_call(case)
    call = Call(case.op)
    for member in sm.ops.members(case.op):
        name, kind = member["name"], member["kind"]
        if kind == "input":
            if f"in.{name}" in case.tensors:
                call.tensors[name] = case.tensors[f"in.{name}"]
        elif kind == "output":
            _expect(call, case, name)
        elif kind == "cache":
            want = case.tensors.get(f"out.{name}")
            given = case.tensors.get(f"in.{name}_before" if want is not None else f"in.{name}")
            if given is None:
                continue
            call.tensors[name] = _cache(case, given, name)
            if want is not None:
                call.written[name], call.expected[name] = given, want
        elif name in case.params and not isinstance(case.params[name], dict):
            call.scalars[name] = case.params[name]
    # A keyword that is a scalar and a tensor is the tensor, which says what the scalar is.
    for name in call.scalars.keys() & call.tensors.keys():
        del call.scalars[name]
    return call


def record(folder: Path, files: list[Path]) -> list[Path]:
    """Verifies the files by the program that the module carries and records every op that it runs."""
    environment = {**os.environ, "SMLA_DUMP": str(folder)}
    command = [sys.executable, "-m", "sparsemla.verify", *map(str, files)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(folder.glob("*.smla-case.safetensors"))
