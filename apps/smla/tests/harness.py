"""Drives the smla program as a user does. Each *_test.py here is `X_test.py PROGRAM SOURCE_DIR`: it prints each call of
the program, and exits with 1 when one went wrong.
"""

import json
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM, SOURCE = sys.argv[1], Path(sys.argv[2])
FAILURES = []

# What the program does where there is no GPU, on any machine.
NO_GPU = os.environ | {"CUDA_VISIBLE_DEVICES": ""}


def run(*args, code, out="", err="", env=None):
    """Runs the program and checks status (one of several) and texts; returns stdout."""
    done = subprocess.run([PROGRAM, *map(str, args)], capture_output=True, text=True, timeout=300, check=False, env=env)
    codes = code if isinstance(code, tuple) else (code,)
    problems = [] if done.returncode in codes else [f"status {done.returncode}, expected {code}"]
    problems += [
        f"no {text!r} on stdout" for text in ([out] if isinstance(out, str) else out) if text not in done.stdout
    ]
    problems += [
        f"no {text!r} on stderr" for text in ([err] if isinstance(err, str) else err) if text not in done.stderr
    ]
    print(
        ("ok  " if not problems else "FAIL"),
        "smla",
        *[str(a) if len(str(a)) < 60 else "..." + str(a)[-50:] for a in args],
    )
    if problems:
        FAILURES.append(args)
        print("    " + "; ".join(problems), done.stdout[-1500:], done.stderr[-1500:], sep="\n    ")
    return done.stdout


def save(path, op, params, tensors):
    """A smla-case/1 file; tensors: name -> (dtype, shape, bytes)."""
    header, data = {"__metadata__": {"format": "smla-case/1", "op": op, "params": json.dumps(params)}}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def load(path):
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + size])
    meta = header.pop("__metadata__")
    return meta, {
        n: (t["dtype"], t["shape"], raw[8 + size + t["data_offsets"][0] : 8 + size + t["data_offsets"][1]])
        for n, t in header.items()
    }


def one_request(folder):
    """A trace of one request."""
    trace = folder / "one.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 5, "output_length": 2, "hash_ids": [1]}\n')
    return trace


def main(*checks):
    """Runs each check, check(folder), in one temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        for check in checks:
            check(Path(folder))
    print(f"{len(FAILURES)} failed")
    sys.exit(1 if FAILURES else 0)
