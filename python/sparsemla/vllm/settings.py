"""What the environment asks the plugin to do."""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from dataclasses import dataclass


class Mode(enum.Enum):
    """How much of DeepSeek-V4's attention this library computes; each includes the one before."""

    OFF = "off"
    ATTENTION = "attention"  # decode and prefill attention
    INDEXER = "indexer"  # and the indexer's scores and choice
    FULL = "full"  # and inserts, compressors, index queries, inverse RoPE and the grouped output projection

    def takes_indexer(self) -> bool:
        return self in (Mode.INDEXER, Mode.FULL)


DEFAULT_MODE = Mode.ATTENTION


@dataclass(frozen=True)
class Settings:
    """Read once a process by :func:`read_settings`."""

    mode: Mode = DEFAULT_MODE
    portable: bool = False  # only kernels that run on any GPU from sm_80 on
    deterministic: bool = False  # a token's bits do not depend on its neighbours in the batch
    own: bool = False  # nothing is left to FlashMLA and DeepGEMM where these are faster

    def leaves_prefill(self) -> bool:
        """Whether FlashMLA may attend for the prompts of large steps."""
        return not (self.own or self.portable or self.deterministic)

    def leaves_products(self) -> bool:
        """Whether DeepGEMM may do the grouped FP8 product of the output projection."""
        return not (self.own or self.portable)


def _flag(environment: Mapping[str, str], name: str) -> bool:
    value = environment.get(name, "0")
    if value not in ("0", "1"):
        raise ValueError(f"{name}: got {value!r}, expected 0 or 1")
    return value == "1"


def read_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """SPARSEMLA_VLLM (a Mode's word); SPARSEMLA_VLLM_PORTABLE, _DETERMINISTIC and _OWN (0 or 1).

    @raises ValueError: one of them holds something else.
    """
    env = os.environ if environment is None else environment
    word = env.get("SPARSEMLA_VLLM", DEFAULT_MODE.value).strip().lower()
    try:
        mode = Mode(word)
    except ValueError:
        known = ", ".join(m.value for m in Mode)
        raise ValueError(f"SPARSEMLA_VLLM: got {word!r}, expected one of {known}") from None
    return Settings(
        mode=mode,
        portable=_flag(env, "SPARSEMLA_VLLM_PORTABLE"),
        deterministic=_flag(env, "SPARSEMLA_VLLM_DETERMINISTIC"),
        own=_flag(env, "SPARSEMLA_VLLM_OWN"),
    )
