from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, os.path.dirname(__file__))

import cases


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Every op call that the project's case files make, as files of one call each."""
    folder = tmp_path_factory.mktemp("recorded")
    files = sorted(cases.GOLDEN.glob("upstream/*.safetensors"))
    files += [cases.GOLDEN / f"layer_{kind}.safetensors" for kind in ("c4a", "c128a", "swa")]
    return cases.record(folder, files)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny model's random weights."""
    folder = tmp_path_factory.mktemp("checkpoint") / "tiny"
    command = [sys.executable, "-m", "sparsemla", "make-checkpoint", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return folder
