#!/usr/bin/env python3
"""The output that an example's README.md shows: the first fenced block after the line "## Output".

example.py write PROGRAM README    puts the output of PROGRAM there
example.py check PROGRAM README    exits 1 with the difference when it is another
"""

import difflib
import re
import subprocess
import sys
from pathlib import Path

SECTION = re.compile(r"(^## Output\n.*?^```\n)(.*?)(^```$)", re.DOTALL | re.MULTILINE)


def main():
    if len(sys.argv) != 4 or sys.argv[1] not in ("write", "check"):
        sys.exit(__doc__)
    program, readme = Path(sys.argv[2]).resolve(), Path(sys.argv[3])
    text = readme.read_text()
    section = SECTION.search(text)
    if not section:
        sys.exit(f'{readme}: expected a line "## Output" and a fenced block after it')
    output = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    if sys.argv[1] == "write":
        readme.write_text(text[: section.start(2)] + output + text[section.end(2) :])
    elif section.group(2) != output:
        sys.stdout.writelines(
            difflib.unified_diff(section.group(2).splitlines(True), output.splitlines(True), str(readme), "the program")
        )
        sys.exit(f"{readme}: the output is out of date; ./dev docs rewrites it")


if __name__ == "__main__":
    main()
