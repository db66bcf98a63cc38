"""What the plugin says in vLLM's log: once a process, one sentence a fact."""

from __future__ import annotations

import logging

_said: set[str] = set()


def _logger() -> logging.Logger:
    try:
        from vllm.logger import init_logger
    except ImportError:
        return logging.getLogger("sparsemla.vllm")
    logger: logging.Logger = init_logger("vllm.sparsemla")
    return logger


def say(text: str) -> None:
    """Logs a sentence, the first time that it is said."""
    if text not in _said:
        _said.add(text)
        _logger().info("SparseMLA: %s", text)


def warn(text: str) -> None:
    """Logs why something stays vLLM's, the first time that it is said."""
    if text not in _said:
        _said.add(text)
        _logger().warning("SparseMLA: %s", text)
