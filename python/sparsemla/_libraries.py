"""Where packages of this environment put libraries of the CUDA toolkit; torch's wheels bring cuBLASLt this way."""

from __future__ import annotations

import os
import sys

from . import _core

_FOLDERS = ("nvidia/cu13/lib", "nvidia/cu12/lib", "nvidia/cublas/lib")


def tell() -> None:
    """Names the folders to the library. It opens cuBLASLt when a projection on a GPU first asks for it."""
    beside = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    roots = [beside] + [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))]
    _core.add_library_folders([os.path.join(root, folder) for root in roots for folder in _FOLDERS])
