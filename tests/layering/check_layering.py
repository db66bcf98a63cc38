#!/usr/bin/env python3
"""Checks the shape of the tree: `check_layering.py ROOT` prints every breach and exits 1 if there is one.

The rule (docs/architecture.md): code belongs to the folder of the highest subject that it needs to know; includes point
down only.
"""

import ast
import re
import sys
from pathlib import Path

# Low to high. A folder may include its own layer and those before it.
LAYERS = [
    "core",
    "device",
    "model",
    "checkpoint",
    "cache",
    "plan",
    "ops",
    "layer",
    "engine",
    "cases",
    "bindings",
    "apps",
    "python",
]

# Where each public header belongs. A header that is not named here is a breach: decide, then add it.
PUBLIC = {
    "export.h": "core",
    "error.h": "core",
    "dtype.h": "core",
    "tensor_view.h": "core",
    "device.h": "device",
    "communicator.h": "device",
    "model_config.h": "model",
    "layer_weights.h": "model",
    "checkpoint.h": "checkpoint",
    "kv_format.h": "cache",
    "entry_share.h": "cache",
    "kv_layout.h": "cache",
    "block_pool.h": "cache",
    "slab.h": "cache",
    "kv_pool.h": "cache",
    "prefix_keys.h": "cache",
    "prefix_cache.h": "cache",
    "snapshot.h": "cache",
    "snapshot_stream.h": "cache",
    "hand_over.h": "engine",
    "plan.h": "plan",
    "op.h": "ops",
    "context_parallel.h": "layer",
    "front_end.h": "layer",
    "step_metadata.h": "layer",
    "validate.h": "layer",
    "layer.h": "layer",
    "weights.h": "layer",
    "engine.h": "engine",
    "parallel_engine.h": "engine",
    "trace.h": "engine",
    "run_check.h": "engine",
    "case.h": "cases",
    "sparsemla.h": "apps",
    "c_api.h": "bindings",
}

RECORD_SIZES = ("584", "576", "656", "37440")
RECORD_SIZES_HOME = "src/cache/kv_format.cpp"
JSON_HOMES = ("src/model/", "src/checkpoint/", "src/cases/", "apps/", "tests/")
PROGRAM_ONLY = ("apps/", "tests/", "bench/")
UNFINISHED = ("TO" + "DO", "FIX" + "ME")

C_HEADERS = ("stddef.h", "stdint.h")
FOR_TWO_LANGUAGES = (("ifdef", "__cplusplus"), ("else", ""), ("endif", ""))

SOURCE_SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}
TEXT_SUFFIXES = SOURCE_SUFFIXES | {".py", ".md", ".txt", ".cmake", ".json", ".sh", ".yml", ".yaml", ".toml", ""}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
DIRECTIVE = re.compile(r"^\s*#\s*(\w+)\s*(.*)$")
# Comments go, strings stay; a newline inside a comment is kept so that line numbers hold.
COMMENT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'(?![0-9a-fA-F])', re.DOTALL)


def without_comments(text):
    def keep(match):
        found = match.group(0)
        return "\n" * found.count("\n") if found.startswith("/") else found

    return COMMENT.sub(keep, text)


def files(root, folders, suffixes):
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and path.suffix in suffixes:
                yield path, path.relative_to(root).as_posix()


def includes(text):
    for number, line in enumerate(text.splitlines(), 1):
        match = INCLUDE.match(line)
        if match:
            yield number, match.group(1), match.group(2)


def public_layer(name):
    """Layer of "sparsemla/<name>", or None."""
    return "ops" if name.startswith("ops/") else PUBLIC.get(name)


def layer_of_file(relative):
    parts = relative.split("/")
    if parts[0] == "src":
        return parts[1] if parts[1] in LAYERS else None
    if relative.startswith("include/sparsemla/"):
        return public_layer(relative[len("include/sparsemla/") :])
    if relative.startswith("bindings/python/"):
        return "python"
    return parts[0] if parts[0] in ("apps", "bindings") else None


def layer_of_include(name):
    if name.startswith("sparsemla/"):
        return public_layer(name[len("sparsemla/") :])
    first = name.split("/")[0]
    first = {"c": "bindings", "smla": "apps"}.get(first, first)
    return first if "/" in name and first in LAYERS else None


def check_direction(root):
    for path, relative in files(root, ["src", "include", "bindings", "apps"], SOURCE_SUFFIXES):
        own = layer_of_file(relative)
        if own is None:
            yield f"{relative}: belongs to no layer; known are {', '.join(LAYERS)} (public headers: PUBLIC in {Path(__file__).name})"
            continue
        for number, _, name in includes(without_comments(path.read_text())):
            other = layer_of_include(name)
            if other is None:
                if name.startswith("sparsemla/"):
                    yield f"{relative}:{number}: {name} is a public header of no known layer"
            elif LAYERS.index(other) > LAYERS.index(own):
                yield f"{relative}:{number}: {own} includes {name}, which belongs to the higher layer {other}"


def check_public_headers(root):
    for path, relative in files(root, ["include"], SOURCE_SUFFIXES):
        text = without_comments(path.read_text())
        for number, kind, name in includes(text):
            standard = kind == "<" and (
                re.fullmatch(r"[a-z_0-9]+", name) or (relative.endswith("/c_api.h") and name in C_HEADERS)
            )
            if not standard and not name.startswith("sparsemla/"):
                yield f"{relative}:{number}: a public header includes {name}; only the standard library and sparsemla/ are allowed"
        for number, line in enumerate(text.splitlines(), 1):
            match = DIRECTIVE.match(line)
            if not match or match.group(1) == "include" or (match.group(1), match.group(2)) == ("pragma", "once"):
                continue
            # What C and C++ read alike, and the one mark of what is exported.
            if relative.endswith(("/c_api.h", "/export.h")) and (match.group(1), match.group(2)) in FOR_TWO_LANGUAGES:
                continue
            if relative.endswith("/export.h") and match.group(1) == "define" and match.group(2).startswith("SMLA_API "):
                continue
            yield f"{relative}:{number}: a public header has #{match.group(1)}; it must not depend on how it is built"
        if "#pragma once" not in text:
            yield f"{relative}: no #pragma once"


def check_foreign_headers(root):
    for path, relative in files(root, ["src", "bindings", "apps", "tests", "examples", "bench"], SOURCE_SUFFIXES):
        stem = path.stem
        for number, _, name in includes(without_comments(path.read_text())):
            where = f"{relative}:{number}: includes {name}"
            if name.startswith("nlohmann/") and not (path.suffix == ".cpp" and relative.startswith(JSON_HOMES)):
                yield f"{where}; JSON is read in .cpp files of {', '.join(JSON_HOMES)} only"
            if name.startswith(("CLI/", "fmt/")) and not relative.startswith(PROGRAM_ONLY):
                yield f"{where}; it is for programs only"
            if re.match(r"(oneapi/)?dnnl", name) and not stem.endswith("_onednn"):
                yield f"{where}; oneDNN belongs in *_onednn.cpp"
            if (
                re.match(r"cu(da|blas|b/|rand)", name)
                and path.suffix not in (".cu", ".cuh")
                and not (stem.endswith("_cuda_oracle_test") or relative.startswith(("tests/gpu/", "tests/emulator/")))
            ):
                yield f"{where}; CUDA headers belong in .cu and .cuh files"
            if re.search(r"(^|/)(\w*intrin\.h|arm_neon\.h)$", name) and not (
                re.search(r"_(avx2|avx512|amx)$", stem) or re.match(r"src/device/\w*simd\w*\.h$", relative)
            ):
                yield f"{where}; intrinsics belong in files named _avx2, _avx512 or _amx"
            if stem.endswith("_ref") and re.search(r"intrin|neon|simd|avx|amx|kernel", name):
                yield f"{where}; a reference knows no SIMD and no kernel"


def check_cuda_suffixes(root):
    """Kernels for every GPU are `_cuda.cu`, kernels for Hopper `_sm90.cu`; only the latter see `_sm90.cuh`."""
    for path, relative in files(root, ["src"], SOURCE_SUFFIXES):
        stem = path.stem
        if path.suffix == ".cu" and not stem.endswith(("_cuda", "_sm90")):
            yield f"{relative}: a .cu file is named _cuda (any GPU) or _sm90 (Hopper)"
        if stem.endswith("_sm90"):
            if path.suffix not in (".cu", ".cuh") and stem != "no_sm90":
                yield f"{relative}: _sm90 is the suffix of .cu and .cuh files"
            continue
        for number, _, name in includes(without_comments(path.read_text())):
            if name.endswith("_sm90.cuh"):
                yield f"{relative}:{number}: includes {name}; it belongs to files named _sm90"


def check_device_words(root):
    """src/device knows machines, not models."""
    pattern = re.compile(r"(?i)(?<![a-z])(rope|rms_?norm|heads?|tokens?)(?![a-z])")
    for path, relative in files(root, ["src/device"], SOURCE_SUFFIXES):
        for number, line in enumerate(without_comments(path.read_text()).splitlines(), 1):
            match = pattern.search(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", line))
            if match:
                yield f"{relative}:{number}: {match.group(1)} is a word of the model; it belongs in src/ops"


def check_record_sizes(root):
    pattern = re.compile(r"(?<![\w.])(" + "|".join(RECORD_SIZES) + r")(?![\w.]*\w)")
    for path, relative in files(root, ["src", "include", "bindings", "apps"], SOURCE_SUFFIXES):
        if relative == RECORD_SIZES_HOME:
            continue
        text = re.sub(r"(?<=\d)'(?=\d)", "", without_comments(path.read_text()))
        for number, line in enumerate(text.splitlines(), 1):
            for match in pattern.finditer(line):
                yield f"{relative}:{number}: the record size {match.group(1)} as a literal; it belongs in {RECORD_SIZES_HOME}"


# Rooms of the Python package: the foreign modules and other rooms that each may name. The core needs none of them to be
# imported.
ROOMS = {"": set(), "torch": {"torch"}, "transformers": {"torch", "transformers"}, "vllm": {"torch", "vllm"}}
FOREIGN = {"torch", "numpy", "transformers", "vllm", "cupy", "jax"}


def python_imports(tree):
    """(line, absolute module or room of this package) of every import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level == 0:
                yield node.lineno, module
            # `from . import torch` in the core names a room, too.
            if node.level == 0 and module == "sparsemla":
                yield from ((node.lineno, f"sparsemla.{alias.name}") for alias in node.names)
            if node.level:
                yield node.lineno, ("." * node.level) + module
                if not module:
                    yield from ((node.lineno, "." * node.level + alias.name) for alias in node.names)


def check_python_rooms(root):
    package = root / "python/sparsemla"
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).parts
        room = parts[0] if len(parts) > 1 else ""
        relative = path.relative_to(root).as_posix()
        if room not in ROOMS:
            yield f"{relative}: belongs to no room; known are {', '.join(r for r in ROOMS if r)}"
            continue
        for number, name in python_imports(ast.parse(path.read_text())):
            if name.startswith("."):
                up = len(name) - len(name.lstrip("."))
                words = name.lstrip(".").split(".")
                # Relative to the package itself: from the core one dot, from a room two.
                other = words[0] if up == (2 if room else 1) and words[0] in ROOMS else None
            elif name.split(".")[0] == "sparsemla":
                words = name.split(".")
                other = words[1] if len(words) > 1 and words[1] in ROOMS else None
            else:
                first = name.split(".")[0]
                if first in FOREIGN and first not in ROOMS[room] | ({"numpy"} if room else set()):
                    yield f"{relative}:{number}: {room or 'the core'} imports {name}; that is for other rooms"
                continue
            if other and other != room and other not in ROOMS[room]:
                yield f"{relative}:{number}: {room or 'the core'} imports the room {other}"


def check_unfinished(root):
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if parts[0].startswith((".git", "build")) or not path.is_file() or path.suffix not in TEXT_SUFFIXES:
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            for word in UNFINISHED:
                if re.search(rf"\b{word}\b", line):
                    yield f"{path.relative_to(root).as_posix()}:{number}: {word}"


CHECKS = [
    check_direction,
    check_public_headers,
    check_foreign_headers,
    check_cuda_suffixes,
    check_device_words,
    check_record_sizes,
    check_python_rooms,
    check_unfinished,
]


def breaches(root):
    return [text for check in CHECKS for text in check(Path(root))]


def main():
    if len(sys.argv) != 2 or not (Path(sys.argv[1]) / "src").is_dir():
        sys.exit("usage: check_layering.py ROOT (the folder that holds src/)")
    found = breaches(sys.argv[1])
    for text in found:
        print(text)
    print(f"layering: {len(found)} breaches" if found else "layering: every include points down")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
