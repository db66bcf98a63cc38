#!/usr/bin/env python3
"""Builds programs outside the tree against an installed SparseMLA and runs them.

consumer_test.py SOURCE --prefix PREFIX            against what is installed there
consumer_test.py SOURCE --install BUILD CMAKE      installs a build folder into a folder of its own first
consumer_test.py SOURCE --unpack ARCHIVE           unpacks a .tar.gz somewhere first
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ENVIRONMENT = {
    key: value
    for key, value in os.environ.items()
    if key not in ("CMAKE_PREFIX_PATH", "PKG_CONFIG_PATH", "LD_LIBRARY_PATH")
}
done = []


def run(*command, **more):
    result = subprocess.run(
        [str(word) for word in command], text=True, capture_output=True, env={**ENVIRONMENT, **more}
    )
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{result.stdout}{result.stderr}\nexit status {result.returncode}")
    return result.stdout


def expected(source, name):
    """What a program prints, from its README."""
    if name == "attention":
        return re.search(r"\nprints\n\n```\n(.*?)```", (source / "README.md").read_text(), re.DOTALL).group(1)
    return re.search(
        r"^## Output\n.*?^```\n(.*?)^```$", (source / "examples/c_host/README.md").read_text(), re.DOTALL | re.MULTILINE
    ).group(1)


def check_runs(source, label, programs, library_folder=None):
    for name, program in programs.items():
        more = {"LD_LIBRARY_PATH": str(library_folder)} if library_folder else {}
        got = run(program, **more)
        if got != expected(source, name):
            sys.exit(f"{label}, {name}: got\n{got}expected\n{expected(source, name)}")
    done.append(label)


def needed(program):
    return "libsparsemla" in run("readelf", "-d", program)


def with_cmake(source, prefix, work, kind):
    folder = work / f"cmake-{kind}"
    run(
        "cmake",
        "-S",
        source / "tests/package/consumer",
        "-B",
        folder,
        f"-DKIND={kind}",
        f"-DSOURCES={source / 'examples'}",
        f"-DCMAKE_PREFIX_PATH={prefix}",
        "-DCMAKE_BUILD_TYPE=Debug",
        "-DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF",
    )
    run("cmake", "--build", folder)
    programs = {"attention": folder / "attention", "host": folder / "host"}
    if needed(programs["attention"]) != (kind == "shared"):
        sys.exit(f"find_package, {kind}: linked with the other library")
    check_runs(source, f"find_package, {kind}", programs)


def with_pkg_config(source, prefix, work, kind):
    pc = next(prefix.rglob("sparsemla.pc")).parent
    flags = run(
        "pkg-config",
        "--cflags",
        "--libs",
        *(["--static"] if kind == "static" else []),
        "sparsemla",
        PKG_CONFIG_PATH=str(pc),
    ).split()
    if kind == "static":
        flags = ["-l:libsparsemla.a" if flag == "-lsparsemla" else flag for flag in flags]
    folder = work / f"pkg-config-{kind}"
    folder.mkdir()
    programs = {"attention": folder / "attention", "host": folder / "host"}
    run("g++", "-std=c++20", source / "examples/first_attention.cpp", "-o", programs["attention"], *flags)
    run("gcc", "-std=c11", source / "examples/c_host/main.c", "-o", programs["host"], *flags)
    check_runs(source, f"pkg-config, {kind}", programs, pc.parent if kind == "shared" else None)


def main():
    source, mode, argument = Path(sys.argv[1]).resolve(), sys.argv[2], sys.argv[3]
    with tempfile.TemporaryDirectory(prefix="sparsemla-consumer-") as folder:
        work = Path(folder)
        prefix = Path(argument)
        if mode == "--install":
            prefix = work / "prefix"
            run(sys.argv[4], "--install", argument, "--prefix", prefix)
        elif mode == "--unpack":
            run("tar", "-xf", Path(argument).resolve(), "-C", work)
            prefix = next(work.glob("sparsemla-*"))
        with_cmake(source, prefix, work, "static")
        with_cmake(source, prefix, work, "shared")
        if shutil.which("pkg-config"):
            with_pkg_config(source, prefix, work, "shared")
            with_pkg_config(source, prefix, work, "static")
        else:
            print("SKIP pkg-config: it is not installed")
        program = prefix / "bin/smla"
        if program.exists() or mode != "--install":
            print(run(program, "info").splitlines()[0])
    print("consumers: " + "; ".join(done))


if __name__ == "__main__":
    main()
