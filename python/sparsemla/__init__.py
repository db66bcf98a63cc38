"""DeepSeek-V4 sparse attention: ops, plans and paged caches over tensors of torch, numpy, cupy or jax, without a copy.

Importing this package loads neither torch nor numpy and touches no GPU. `docs/python.md` is the manual.
"""

from __future__ import annotations

from . import _libraries, ops
from ._core import (
    AttentionLayer,
    Cache,
    CudaError,
    Error,
    InvalidArgument,
    IoError,
    Plan,
    Step,
    Unsupported,
    __version__,
    built_with_cuda,
)

__all__ = [
    "AttentionLayer",
    "Cache",
    "CudaError",
    "Error",
    "InvalidArgument",
    "IoError",
    "Plan",
    "Step",
    "Unsupported",
    "__version__",
    "built_with_cuda",
    "ops",
]

_libraries.tell()
