"""Recorded calls (docs/cases.md): write one from tensors, or record what runs; `python -m sparsemla.verify` replays."""

from __future__ import annotations

import json
import os

from . import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType
    from typing import Any


def write(
    path: str | os.PathLike[str],
    op: str,
    params: Mapping[str, Any],
    inputs: Mapping[str, Any],
    results: Mapping[str, Any],
    *,
    weights: Mapping[str, Any] | None = None,
    tolerance: Mapping[str, Any] | None = None,
) -> None:
    """Writes one call of one operation as a file.

    params: its scalars. inputs: tensors by name ("q" becomes `in.q`); results: the expected ones (`out.`); weights: by
    checkpoint name (`weights.`). Tensors are any that ops take, on a GPU contiguous ones; they are copied.
    tolerance: bounds of results, e.g. {"o": {"l2": 1e-3}}; without one the bytes must be equal.

    Raises InvalidArgument naming a tensor, IoError when the file cannot be written.
    """
    all_params = dict(params)
    if tolerance is not None:
        all_params["tolerance"] = {name: dict(bounds) for name, bounds in tolerance.items()}
    tensors = {f"in.{name}": tensor for name, tensor in inputs.items()}
    tensors |= {f"weights.{name}": tensor for name, tensor in (weights or {}).items()}
    tensors |= {f"out.{name}": tensor for name, tensor in results.items()}
    _core.write_case(os.fspath(path), op, json.dumps(all_params), tensors)


class record:  # noqa: N801 used like a function
    """Records every op that runs meanwhile, one file each: `with sparsemla.case.record(folder): ...`.

    Runs become slow. On a GPU calls are waited for and cannot be recorded in a CUDA graph meanwhile.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = os.fspath(folder)

    def __enter__(self) -> record:
        _core.record_calls(self.folder)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _core.record_calls("")

    def __iter__(self) -> Iterator[str]:
        """The files that are there."""
        names = (name for name in os.listdir(self.folder) if name.endswith(".smla-case.safetensors"))
        return iter(sorted(os.path.join(self.folder, name) for name in names))
