"""DeepSeek-V4 sparse attention: ops, plans and paged caches over tensors of torch, numpy, cupy or jax, without a copy.

Importing this package loads neither torch nor numpy and touches no GPU. `docs/python.md` is the manual.
"""

from __future__ import annotations

from . import _libraries, case, ops, snapshot
from ._core import (
    AttentionLayer,
    Cache,
    Checkpoint,
    CudaError,
    Error,
    InvalidArgument,
    IoError,
    KvPool,
    ModelConfig,
    Plan,
    PrefixCache,
    PrefixKeys,
    RequestBlocks,
    Step,
    Unsupported,
    __version__,
    built_with_cuda,
)

__all__ = [
    "AttentionLayer",
    "Cache",
    "Checkpoint",
    "CudaError",
    "Error",
    "InvalidArgument",
    "IoError",
    "KvPool",
    "ModelConfig",
    "Plan",
    "PrefixCache",
    "PrefixKeys",
    "RequestBlocks",
    "Step",
    "Unsupported",
    "__version__",
    "built_with_cuda",
    "case",
    "ops",
    "snapshot",
]

_libraries.tell()
