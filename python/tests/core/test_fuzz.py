"""Calls with arguments of any kind: an answer or an exception of the library, never a crash.

SMLA_PY_FUZZ_SECONDS (5) bounds the time, SMLA_PY_FUZZ_SEED chooses the calls.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sparsemla as sm

SECONDS = float(os.environ.get("SMLA_PY_FUZZ_SECONDS", "5"))
SEED = int(os.environ.get("SMLA_PY_FUZZ_SEED", "0")) or random.randrange(1 << 30)

DTYPES = [np.float32, np.float64, np.float16, np.uint16, np.uint8, np.int32, np.int64, np.bool_, np.int8]
NUMBERS = [0, 1, -1, 2, 3, 7, 63, 64, 127, 128, 512, 2**31 - 1, 2**31, 2**32, 2**62, -(2**63), 2**64, 0.5, float("nan")]
OBJECTS = [None, "", "bf16", "fp8_ds_mla", "F32", b"x", [], {}, [{}], {"a": 1}, object(), True, 1 + 2j, ...]


def other_tensor(rng: random.Random, t: np.ndarray) -> Any:
    """A tensor that is much like this one."""
    try:
        return _other_tensor(rng, t)
    except (MemoryError, ValueError):  # numpy's own limits
        return t


def _other_tensor(rng: random.Random, t: np.ndarray) -> Any:
    # Large ones are seen, not copied.
    way = rng.randrange(11) if t.nbytes < 1 << 24 else rng.choice([1, 2, 3, 5, 9, 10])
    if way == 0:
        return t.astype(rng.choice(DTYPES))
    if way == 1:
        return t[rng.randrange(len(t) + 1) :] if t.ndim and len(t) else t
    if way == 2:
        return t[..., :: rng.choice([1, 2, 3, -1])]
    if way == 3:
        return t.T
    if way == 4:
        return t.reshape(-1)
    if way == 5:
        return t[None]
    if way == 6:
        return np.repeat(t, rng.choice([0, 2, 3]), axis=0) if t.ndim else t
    if way == 7:  # hostile contents
        noise = np.frombuffer(rng.randbytes(t.nbytes), np.uint8).copy()
        return (
            noise.view(t.dtype).reshape(t.shape) if t.dtype != np.bool_ else (noise & 1).astype(bool).reshape(t.shape)
        )
    if way == 8:
        return np.asfortranarray(t)
    if way == 9:
        shape = list(t.shape)
        if shape:
            shape[rng.randrange(len(shape))] = rng.choice([0, 1, 2**31, 2**40])
        return np.broadcast_to(np.zeros((), t.dtype), shape)
    return rng.choice(OBJECTS)


def other_cache(rng: random.Random, cache: sm.Cache) -> Any:
    tensor = other_tensor(rng, cache.tensor) if rng.random() < 0.5 else cache.tensor
    form = rng.choice([cache.format, cache.format, "bf16", "index_fp8", "state_c4", "fp8_per_tensor"])
    size = rng.choice([cache.block_size, cache.block_size, 1, 64, 2**30])
    try:
        return sm.Cache(tensor, form, size, block_stride_bytes=rng.choice([None, None, 1, 4096, 2**40]))
    except sm.InvalidArgument:
        return cache


def one_call(rng: random.Random, calls: list[Any]) -> bool:
    """Whether the library took it."""
    call = rng.choice(calls)
    members = {**call.tensors, **call.scalars}
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        name = rng.choice(list(members))
        value = members[name]
        if rng.random() < 0.15:
            del members[name]
            if not members:
                return False
        elif isinstance(value, np.ndarray):
            members[name] = other_tensor(rng, value)
        elif isinstance(value, sm.Cache):
            members[name] = other_cache(rng, value)
        else:
            members[name] = rng.choice(NUMBERS + OBJECTS)
    op = getattr(sm.ops, call.op if rng.random() < 0.98 else rng.choice(sm.ops.names()))
    try:
        if rng.random() < 0.2:
            scalars = {n: v for n, v in members.items() if n in call.scalars}
            plan = sm.Plan(call.op, scalars)
            plan.run({n: v for n, v in members.items() if n not in call.scalars})
        else:
            op(**members, threads=rng.choice([0, 1, 1, 2]))
    except (sm.Error, MemoryError):
        return False
    return True


def run(folder: str, seconds: float, seed: int) -> None:
    import cases

    np.seterr(all="ignore")
    # What asks for all memory of the machine gets a MemoryError.
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    rng = random.Random(seed)
    by_op: dict[str, list[Any]] = {}
    for path in sorted(Path(folder).glob("*.smla-case.safetensors")):
        op = path.name.split(".")[0].split("_", 1)[1]
        if len(by_op.setdefault(op, [])) < 4 and path.stat().st_size < 4 << 20:
            call = cases.read_call(cases.read_case(path))
            given = sm.ops.scalars(call.op, **call.tensors, **call.scalars)
            call.scalars.update({n: v for n, v in given.items() if n not in call.tensors and rng.random() < 0.5})
            by_op[op].append(call)
    by_op = {op: calls for op, calls in by_op.items() if calls}
    end = time.monotonic() + seconds
    made = taken = 0
    while time.monotonic() < end:
        taken += one_call(rng, by_op[rng.choice(list(by_op))])
        made += 1
    print(f"fuzz: {made} calls of {len(by_op)} ops, {taken} taken")
    assert made > 20 * seconds
    assert 0 < taken < made


def test_any_argument(recorded: list[Path]) -> None:
    # In a process of its own: a crash is a failure with a seed, not the end of the tests.
    command = [sys.executable, "-X", "faulthandler", __file__, str(recorded[0].parent), str(SECONDS), str(SEED)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS + 300, check=False)
    print(done.stdout)
    if done.returncode != 0:
        pytest.fail(f"SMLA_PY_FUZZ_SEED={SEED}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")


if __name__ == "__main__":
    run(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
