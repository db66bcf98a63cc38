#!/usr/bin/env python3
"""`run_tidy.py BUILD SECONDS JOBS`: clang-tidy over the sources on standard input, in that order, until the seconds are
used up.

Prints the findings; the last line is "REACHED n total". Exits 1 when there were findings.
"""

import concurrent.futures
import json
import re
import subprocess
import sys
import time
from pathlib import Path


def readable_commands(build):
    """The folder of a compile_commands.json without the precompiled headers of another compiler."""
    entries = json.loads((build / "compile_commands.json").read_text())
    for entry in entries:
        entry["command"] = re.sub(r" -Winvalid-pch -include \S+/cmake_pch\.hxx", "", entry["command"])
    folder = build / "tidy"
    folder.mkdir(exist_ok=True)
    (folder / "compile_commands.json").write_text(json.dumps(entries))
    return folder, {Path(entry["file"]).resolve() for entry in entries}


def main():
    build, seconds, jobs = Path(sys.argv[1]).resolve(), float(sys.argv[2]), int(sys.argv[3])
    build, known = readable_commands(build)
    sources = [name for name in dict.fromkeys(sys.stdin.read().split()) if Path(name).resolve() in known]
    command = ["clang-tidy", "-p", str(build), "--quiet"]
    command += ["--extra-arg=-Wno-unknown-warning-option", "--extra-arg=-Wno-ignored-optimization-argument"]
    deadline = time.monotonic() + seconds

    def check(source):
        if time.monotonic() > deadline:
            return None
        done = subprocess.run([*command, source], capture_output=True, text=True)
        return "" if done.returncode == 0 else done.stdout or done.stderr

    reached = findings = 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for output in pool.map(check, sources):
            reached += output is not None
            if output:
                findings += 1
                print(output.strip(), flush=True)
    print(f"REACHED {reached} {len(sources)}")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
