#!/usr/bin/env python3
"""Type stubs of the Python module: `python_stubs.py write|check ROOT`.

Needs a Python that imports sparsemla and has nanobind and ruff. `_core.pyi` is nanobind's, `ops.pyi` is made from the
list of ops: a function for each with its members as keywords. `check` exits 1 where the files in python/sparsemla are
others.
"""

import keyword
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import sparsemla as sm

HEAD = '''"""Made by tools/python_stubs.py; do not edit."""

from collections.abc import Mapping, Sequence
from typing import Any

from ._core import Cache

Tensor = Any  # of torch, numpy, or any with __dlpack__
Dtype = Any  # a word or a framework's dtype

def names() -> list[str]: ...
def members(op: str) -> list[dict[str, Any]]: ...
def scalars(op: str, **given: Any) -> dict[str, Any]: ...
'''

EXCEPTIONS = {
    "Error": ["RuntimeError"],
    "InvalidArgument": ["Error", "ValueError"],
    "Unsupported": ["Error", "NotImplementedError"],
    "IoError": ["Error", "OSError"],
    "CudaError": ["Error"],
}

OPTIONS = [
    ("stream", "Any"),
    ("workspace", "Tensor | None"),
    ("device", "Any"),
    ("implementation", "str | None"),
    ("deterministic", "bool"),
    ("threads", "int"),
]
KINDS = {
    "int": "int",
    "bool": "bool",
    "float": "float",
    "dtype": "Dtype",
    "format": "str",
    "word": "str",
    "input": "Tensor | None",
    "output": "Tensor | None",
    "cache": "Cache | None",
}


def keywords(op):
    """Keywords of an op with their types, in the order of its members: tensors first, which say most."""
    found = {}
    for member in sorted(sm.ops.members(op), key=lambda m: "default" in m):
        name, kind = member["name"], KINDS[member["kind"]]
        if "[" in name:
            name, kind = name.split("[")[0], "Sequence[Mapping[str, Any]]"
        elif "." in name:
            name, kind = name.split(".")[0], "Mapping[str, Any] | None"
        known = found.setdefault(name, [])
        if kind not in known:
            known.append(kind)
    return found


def ops_stub():
    lines = [HEAD]
    for op in sm.ops.names():
        given = [
            f"    {name}: {' | '.join(kinds)} = ...,"
            for name, kinds in keywords(op).items()
            if not keyword.iskeyword(name)
        ]
        # A keyword of Python ("in") is given as **{"in": "bf16"}.
        rest = ["    **members: Any,"] if any(keyword.iskeyword(name) for name in keywords(op)) else []
        options = [f"    {name}: {kind} = ...," for name, kind in OPTIONS]
        lines.append("\n".join([f"def {op}(", "    *,", *given, *options, *rest, ") -> None: ..."]) + "\n")
    return "\n".join([lines[0].rstrip("\n"), *[line.rstrip("\n") for line in lines[1:]]]) + "\n"


def core_stub():
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "_core.pyi"
        subprocess.run(
            [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "sparsemla._core", "-o", str(made)], check=True
        )
        text = made.read_text()
    # The exceptions call themselves by the name that users see; they are the module's own.
    text = re.sub(r"from sparsemla import \([^)]*\)\n", "", text)
    classes = "".join(f"class {name}({', '.join(bases)}): ...\n" for name, bases in EXCEPTIONS.items())
    lines = text.split("\n\n\n", 1)
    return f"{lines[0]}\n\n__version__: str\n\n{classes}\n{lines[1]}"


def formatted(text):
    command = [
        sys.executable,
        "-m",
        "ruff",
        "format",
        "-q",
        "--line-length",
        "120",
        "--stdin-filename",
        "stub.pyi",
        "-",
    ]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("write", "check"):
        sys.exit("usage: python_stubs.py write|check ROOT")
    wrong = []
    for name, text in (("_core.pyi", core_stub()), ("ops.pyi", ops_stub())):
        path = Path(sys.argv[2]) / "python/sparsemla" / name
        text = formatted(text)
        if sys.argv[1] == "write":
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            wrong.append(f"{path}: not what the module says (tools/python_stubs.py write {sys.argv[2]} mends it)")
    print("\n".join(wrong) or "stubs: as the module says")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
