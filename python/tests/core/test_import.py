"""What importing costs and touches."""

from __future__ import annotations

import subprocess
import sys


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_takes_less_than_a_fifth_of_a_second() -> None:
    code = "import time; t = time.perf_counter(); import sparsemla; print(time.perf_counter() - t)"
    assert min(float(run(code)) for _ in range(5)) < 0.2


def test_import_loads_no_framework_and_no_driver() -> None:
    code = """
import sys, sparsemla
foreign = {"torch", "numpy", "transformers", "vllm", "cupy", "jax"} & set(sys.modules)
assert not foreign, foreign
# A CUDA context needs the driver's library.
assert "libcuda.so" not in open("/proc/self/maps").read()
"""
    run(code)


def test_the_program_is_there() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sparsemla", "info"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0
    assert "sparse_attention" in done.stdout
    wrong = subprocess.run(
        [sys.executable, "-m", "sparsemla.verify", "/nowhere"], capture_output=True, text=True, timeout=60, check=False
    )
    assert wrong.returncode == 2
    assert "/nowhere" in wrong.stderr
