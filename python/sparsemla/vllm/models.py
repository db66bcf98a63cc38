"""vLLM's own classes of DeepSeek-V4, after the choice of their attention layer was replaced.

vLLM imports this module by its name when it loads (or inspects) such a model, and never before: an earlier import of
`vllm.models.deepseek_v4` would fix how graphs are recorded before vLLM's configuration is known.
"""

from __future__ import annotations

from typing import Any

import vllm.models.deepseek_v4 as _vllms

from sparsemla.vllm.takeover import install

install()


def __getattr__(name: str) -> Any:
    return getattr(_vllms, name)
