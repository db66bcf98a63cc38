"""vLLM's own classes of DeepSeek-V4.1, which stay as they are."""

from __future__ import annotations

from typing import Any

import vllm.models.deepseek_v41 as _vllms

from sparsemla.vllm.report import warn

warn("DeepSeek-V4.1 has other ratios, rows and shared layers than V4; its attention stays vLLM's.")


def __getattr__(name: str) -> Any:
    return getattr(_vllms, name)
