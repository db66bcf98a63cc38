#!/usr/bin/env python3
"""Sparse attention of this library beside a peer's kernels, in one process on one GPU.

    python3 tools/side_by_side run --lib libsparsemla.so --peer _flashmla_C.abi3.so --grid decode --json FILE
    python3 tools/side_by_side table FILE...
    python3 tools/side_by_side keep FILE...
    python3 tools/side_by_side write | check

Exit status: 0; 1 where a result is wrong, a cell failed or a page is out of date; 2 where the command line is.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Started as a folder: the package is found beside it, and its modules by that name alone.
sys.path[0] = str(Path(__file__).resolve().parents[1])

from side_by_side import options, publish, report  # noqa: E402
from side_by_side.fault import Fault  # noqa: E402


def main() -> int:
    args = options.arguments()
    if args.command == "run":
        from side_by_side import run  # torch only here

        return run.run(args)
    if args.command == "table":
        print(report.render(report.load(args.files), markdown=args.markdown), end="")
        return 0
    if args.command == "keep":
        publish.keep(report.load(args.files))
        return publish.write()
    return publish.write() if args.command == "write" else publish.check()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Fault as fault:
        sys.exit(f"side_by_side: {fault}")
