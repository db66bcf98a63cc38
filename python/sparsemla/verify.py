"""`python -m sparsemla.verify FILE...`: replays recorded calls and compares, as `smla verify` does (docs/cases.md)."""

from __future__ import annotations

import sys

from ._program import run

if __name__ == "__main__":
    sys.exit(run(["verify", *sys.argv[1:]]))
