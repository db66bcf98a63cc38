"""The state of a request as bytes that another pool takes (docs/snapshot.md)."""

from __future__ import annotations

import os

from . import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ._core import RequestBlocks


def save(blocks: RequestBlocks, tokens: int, note: bytes = b"") -> bytes:
    """The rows that a request of `tokens` computed positions needs to go on, and the host's own note.

    Raises InvalidArgument when `blocks` lacks a block that the request needs.
    """
    return bytes(_core.save_snapshot(blocks, tokens, note))


def inspect(snapshot: bytes) -> dict[str, Any]:
    """What a snapshot holds: tokens, num_layers, caches and note. Raises IoError when it is damaged."""
    return dict(_core.inspect_snapshot(snapshot))


def load(snapshot: bytes, blocks: RequestBlocks) -> dict[str, Any]:
    """Puts the request into the pool of `blocks`, which hold none; returns what `inspect` says.

    All or nothing. Raises IoError when it is damaged, InvalidArgument for a pool of other caches or too few blocks.
    """
    return dict(_core.load_snapshot(snapshot, blocks))


def write(path: str | os.PathLike[str], snapshot: bytes) -> None:
    """Writes a snapshot as a file; `path` never holds half of one. Raises IoError."""
    _core.write_snapshot(os.fspath(path), snapshot)


def read(path: str | os.PathLike[str]) -> bytes:
    """The bytes of a snapshot file. Raises IoError."""
    return bytes(_core.read_snapshot(os.fspath(path)))
