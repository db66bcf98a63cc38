from __future__ import annotations

import pytest
from stand_in import Vllm


@pytest.fixture
def vllm_stand_in(monkeypatch: pytest.MonkeyPatch) -> Vllm:
    monkeypatch.delenv("SPARSEMLA_VLLM", raising=False)
    return Vllm(monkeypatch)
