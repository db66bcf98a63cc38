from __future__ import annotations

import sys
from pathlib import Path

import pytest
from stand_in import Vllm

# Modules of the checks and times in the engine.
sys.path.append(str(Path(__file__).parents[2] / "bench" / "vllm"))


@pytest.fixture
def vllm_stand_in(monkeypatch: pytest.MonkeyPatch) -> Vllm:
    monkeypatch.delenv("SPARSEMLA_VLLM", raising=False)
    return Vllm(monkeypatch)
