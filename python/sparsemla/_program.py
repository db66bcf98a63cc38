"""The smla program, which the module carries."""

from __future__ import annotations

import signal
import sys

from . import _core


def run(arguments: list[str]) -> int:
    """Runs `smla ARGUMENTS` in this process; returns its exit status."""
    # The program knows no Python: an interrupt ends it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.stdout.flush()
    return int(_core.run_program(["smla", *arguments]))


def main() -> None:
    """The console entry point."""
    sys.exit(run(sys.argv[1:]))
