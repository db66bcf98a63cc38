"""`python -m sparsemla`: the smla program."""

from __future__ import annotations

from ._program import main

main()
