"""Whether a forward of this package takes the arguments of the one that it replaces."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import transformers

from sparsemla import Unsupported

TESTED = "5.17 to 5.24"
"""Releases of transformers that the tests were run with."""


def check_signature(module: type[torch.nn.Module], ours: Callable[..., Any]) -> None:
    """Raises Unsupported where `module.forward` names an argument that `ours` does not: it would be lost in its
    keyword arguments."""
    known = inspect.signature(ours).parameters
    for name, parameter in inspect.signature(module.forward).parameters.items():
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD and name not in known:
            raise Unsupported(
                f"transformers {transformers.__version__}: {module.__name__}.forward: got an argument {name!r}, "
                f"expected {', '.join(n for n in known if n not in ('self', 'kwargs'))}, as in transformers {TESTED}"
            )
