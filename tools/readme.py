#!/usr/bin/env python3
"""The example in README.md: its source and what it prints, between <!-- example:begin --> and <!-- example:end -->.

readme.py write PROGRAM    rewrites the section from examples/first_attention.cpp and the output of PROGRAM
readme.py check PROGRAM    exits 1 with the difference when the section is out of date
"""

import difflib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
BEGIN, END = "<!-- example:begin -->\n", "<!-- example:end -->\n"


def section(program):
    source = (ROOT / "examples" / "first_attention.cpp").read_text().rstrip()
    output = subprocess.run([program], capture_output=True, text=True, check=True).stdout.rstrip()
    return f"```cpp\n{source}\n```\n\nprints\n\n```\n{output}\n```\n"


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("write", "check"):
        sys.exit(__doc__)
    text = README.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        sys.exit(f"README.md: expected one section between {BEGIN.strip()} and {END.strip()}")
    before, rest = text.split(BEGIN)
    found, after = rest.split(END)
    wanted = section(Path(sys.argv[2]).resolve())
    if sys.argv[1] == "write":
        README.write_text(before + BEGIN + wanted + END + after)
    elif found != wanted:
        sys.stdout.writelines(
            difflib.unified_diff(found.splitlines(True), wanted.splitlines(True), "README.md", "the program")
        )
        sys.exit("README.md: the example is out of date; ./dev docs rewrites it")


if __name__ == "__main__":
    main()
