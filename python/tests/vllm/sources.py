"""vLLM's own sources, file by file, out of a folder or a wheel; pip downloads the wheel where none is named.

SPARSEMLA_VLLM_SOURCES: folders with vLLM and its `.dist-info`, or wheels, separated like PATH.
SPARSEMLA_VLLM_CACHE: where downloaded wheels are kept, half a gigabyte; ~/.cache/sparsemla/vllm without it.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import zipfile
from pathlib import Path

VERSIONS = ("0.24.0", "0.33.0")
TIMEOUT = 240  # seconds of a download


class SourcesMissing(Exception):
    """Why the sources of a version cannot be had."""


def downloaded(version: str) -> Path:
    """The wheel, from the package index by pip; kept for the next run. @raises SourcesMissing: pip could not."""
    kept = Path(os.environ.get("SPARSEMLA_VLLM_CACHE", Path.home() / ".cache" / "sparsemla" / "vllm"))
    found = sorted(kept.glob(f"vllm-{version}-*.whl"))
    if found:
        return found[0]
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
        str(kept),
    ]
    command += ["--implementation", "cp", "--python-version", "3.12", f"vllm=={version}"]
    for platform in ("manylinux_2_28_x86_64", "manylinux_2_34_x86_64", "manylinux_2_35_x86_64"):
        command += ["--platform", platform]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SourcesMissing(f"pip download vllm=={version}: {error}") from None
    found = sorted(kept.glob(f"vllm-{version}-*.whl"))
    if not found:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or ["no wheel came"]
        raise SourcesMissing(f"pip download vllm=={version}: {said[-1]}")
    return found[0]


class Sources:
    """The Python files of one version of vLLM."""

    def __init__(self, version: str) -> None:
        self.version = version
        self.folder, self.wheel = None, None
        self._trees: dict[str, ast.Module] = {}
        for place in filter(None, os.environ.get("SPARSEMLA_VLLM_SOURCES", "").split(os.pathsep)):
            path = Path(place)
            if path.is_dir() and (path / f"vllm-{version}.dist-info").is_dir():
                self.folder = path
                return
            if path.is_file() and path.name.startswith(f"vllm-{version}-"):
                self.wheel = zipfile.ZipFile(path)
                return
        self.wheel = zipfile.ZipFile(downloaded(version))

    def tree(self, module: str) -> ast.Module:
        """The syntax of a module. @raises KeyError: there is none."""
        if module not in self._trees:
            self._trees[module] = self._parsed(module)
        return self._trees[module]

    def _parsed(self, module: str) -> ast.Module:
        base = module.replace(".", "/")
        for name in (f"{base}.py", f"{base}/__init__.py"):
            try:
                if self.folder is not None:
                    return ast.parse((self.folder / name).read_text())
                assert self.wheel is not None
                return ast.parse(self.wheel.read(name))
            except (FileNotFoundError, KeyError):
                continue
        raise KeyError(f"vLLM {self.version} has no module {module}")

    def names(self, module: str) -> set[str]:
        """What a module defines or imports at its top, also under `if` and `try`."""
        found: set[str] = set()
        pending: list[ast.AST] = list(self.tree(module).body)
        while pending:
            node = pending.pop()
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.add(node.name)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                found |= {(a.asname or a.name).split(".")[0] for a in node.names}
            elif isinstance(node, (ast.Assign, ast.AnnAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found |= {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
            else:
                pending += [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt)]
                pending += [s for n in getattr(node, "handlers", []) for s in n.body]
        return found

    def cls(self, module: str, name: str) -> ast.ClassDef:
        """@raises KeyError: the module has no such class."""
        for node in ast.walk(self.tree(module)):
            if isinstance(node, ast.ClassDef) and node.name == name:
                return node
        raise KeyError(f"vLLM {self.version}: {module} has no class {name}")

    def function(self, module: str, name: str) -> ast.FunctionDef:
        """A function, or "Class.method". @raises KeyError: there is none."""
        owner, _, last = name.rpartition(".")
        body = self.cls(module, owner).body if owner else self.tree(module).body
        for node in body:
            if isinstance(node, ast.FunctionDef) and node.name == last:
                return node
        raise KeyError(f"vLLM {self.version}: {module} has no function {name}")

    def parameters(self, module: str, name: str) -> list[str]:
        a = self.function(module, name).args
        return [p.arg for p in [*a.posonlyargs, *a.args, *a.kwonlyargs]]

    def fields(self, module: str, name: str) -> set[str]:
        """Annotated members of a class's body."""
        body = self.cls(module, name).body
        return {n.target.id for n in body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}

    def attributes(self, module: str, name: str) -> set[str]:
        """Attributes that a class's methods give to self."""
        found = set()
        for node in ast.walk(self.cls(module, name)):
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in targets:
                for at in ast.walk(target) if target is not None else ():
                    if isinstance(at, ast.Attribute) and isinstance(at.value, ast.Name) and at.value.id == "self":
                        found.add(at.attr)
        return found
