#!/usr/bin/env python3
"""Who runs which cell of attention on an H200, as docs/kernels/sparse_attention.md says. Standard library only.

kernel_cells.py write PROGRAM    asks a smla program that was built with CUDA, and rewrites the page's section
kernel_cells.py check PROGRAM    exits 1 where the page says something else
"""

import subprocess
import sys

import pages

PAGE = "docs/kernels/sparse_attention.md"
SECTION = "which_cells"
COMMAND = ("why", "sparse_attention", "--cells", "--gpu", "h200")


def main():
    if len(sys.argv) != 3 or sys.argv[1] not in ("write", "check"):
        sys.exit(__doc__)
    asked = subprocess.run([sys.argv[2], *COMMAND], capture_output=True, text=True, check=False)
    if asked.returncode != 0:
        sys.exit(f"kernel_cells: {' '.join(COMMAND)}: status {asked.returncode}: {asked.stderr.strip()}")
    if sys.argv[1] == "write":
        print("\n".join(pages.rewrite([PAGE], {SECTION: asked.stdout})))
    elif pages.fill(pages.read([PAGE]), {SECTION: asked.stdout}) != pages.read([PAGE]):
        sys.exit(f"{PAGE} is out of date: `python3 tools/kernel_cells.py write {sys.argv[2]}` rewrites it")


if __name__ == "__main__":
    main()
