#!/usr/bin/env python3
"""The examples in README.md: in C++, source and what it prints, between <!-- example:begin --> and <!-- example:end -->;
in Python between <!-- python_example:begin --> and <!-- python_example:end -->.

readme.py write PROGRAM    rewrites both sections from examples/first_attention.* and the output of PROGRAM
readme.py check PROGRAM    exits 1 with the difference when the sections are out of date
"""

import difflib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
BEGIN, END = "<!-- {}:begin -->\n", "<!-- {}:end -->\n"


def python_section(_program):
    """Source alone: its last line says what it prints, which the wheel's tests check."""
    source = (ROOT / "examples" / "first_attention.py").read_text().rstrip()
    return f"```python\n{source}\n```\n"


def section(program):
    source = (ROOT / "examples" / "first_attention.cpp").read_text().rstrip()
    output = subprocess.run([program], capture_output=True, text=True, check=True).stdout.rstrip()
    return f"```cpp\n{source}\n```\n\nprints\n\n```\n{output}\n```\n"


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("write", "check"):
        sys.exit(__doc__)
    text = README.read_text()
    for name, make in (("example", section), ("python_example", python_section)):
        begin, end = BEGIN.format(name), END.format(name)
        if text.count(begin) != 1 or text.count(end) != 1:
            sys.exit(f"README.md: expected one section between {begin.strip()} and {end.strip()}")
        before, rest = text.split(begin)
        found, after = rest.split(end)
        wanted = make(Path(sys.argv[2]).resolve())
        if sys.argv[1] == "check" and found != wanted:
            sys.stdout.writelines(
                difflib.unified_diff(found.splitlines(True), wanted.splitlines(True), "README.md", "the program")
            )
            sys.exit("README.md: the example is out of date; ./dev docs rewrites it")
        text = before + begin + wanted + end + after
    if sys.argv[1] == "write":
        README.write_text(text)


if __name__ == "__main__":
    main()
