"""Tensors of each framework through DLPack, on the CPU and, where the library and the framework have one, on a GPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import sparsemla as sm

ROWS, WIDTH, K = 6, 700, 32


class Framework(NamedTuple):
    """How a framework takes and gives numbers on one kind of device."""

    tensor: Callable[[np.ndarray], Any]
    array: Callable[[Any], np.ndarray]
    writable: bool = True  # whether it has views, and tensors that ops may write


def need_gpu(framework: str, found: bool) -> None:
    if not sm.built_with_cuda():
        pytest.skip("the module has no CUDA")
    if not found:
        pytest.skip(f"{framework} has no GPU")


def numpy_on(device: str) -> Framework:
    assert device == "cpu"
    return Framework(np.array, np.asarray)


def torch_on(device: str) -> Framework:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    if device == "cuda":
        need_gpu("torch", torch.cuda.is_available())
    return Framework(lambda a: torch.from_numpy(a.copy()).to(device), lambda t: t.cpu().numpy())


def cupy_on(device: str) -> Framework:
    assert device == "cuda"
    cupy = pytest.importorskip("cupy", reason="cupy is not installed")
    need_gpu("cupy", bool(cupy.cuda.is_available()))
    return Framework(cupy.asarray, cupy.asnumpy)


def jax_on(device: str) -> Framework:
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = pytest.importorskip("jax", reason="jax is not installed")
    if device == "cuda":
        need_gpu("jax", jax.default_backend() == "gpu")
    place = jax.devices("gpu" if device == "cuda" else "cpu")[0]
    return Framework(lambda a: jax.device_put(a, place), np.asarray, writable=False)


MAKERS = {"numpy": numpy_on, "torch": torch_on, "cupy": cupy_on, "jax": jax_on}
WITH_VIEWS = ("numpy cpu", "torch cpu", "torch cuda", "cupy cuda")
WITHOUT_VIEWS = ("jax cpu", "jax cuda")


@pytest.fixture
def place(request: pytest.FixtureRequest) -> tuple[Framework, str]:
    """A framework, and its kind of device."""
    name, device = request.param.split()
    return MAKERS[name](device), device


def written(framework: Framework, device: str, values: np.ndarray) -> tuple[Any, Callable[[Any], np.ndarray]]:
    """A tensor that ops may write, beside those of a framework whose own they may not."""
    other = framework if framework.writable else numpy_on(device) if device == "cpu" else torch_on(device)
    return other.tensor(values), other.array


def scores() -> np.ndarray:
    return np.random.default_rng(3).permutation(ROWS * WIDTH).reshape(ROWS, WIDTH).astype(np.float32)


def best(values: np.ndarray) -> np.ndarray:
    return np.sort(np.argsort(-values, axis=1)[:, :K], axis=1)


@pytest.mark.parametrize("place", [*WITH_VIEWS, *WITHOUT_VIEWS], indirect=True)
def test_numbers_are_read_where_they_lie(place: tuple[Framework, str]) -> None:
    framework, device = place
    logits = framework.tensor(scores())
    chosen, array = written(framework, device, np.zeros((ROWS, K), np.int32))
    sm.ops.topk(logits=logits, lens=framework.tensor(np.full(ROWS, WIDTH, np.int32)), indices=chosen)
    np.testing.assert_array_equal(np.sort(array(chosen), axis=1), best(scores()))
    np.testing.assert_array_equal(framework.array(logits), scores())


@pytest.mark.parametrize("place", [*WITH_VIEWS, *WITHOUT_VIEWS], indirect=True)
def test_results_of_a_framework_are_inputs_at_once(place: tuple[Framework, str]) -> None:
    framework, device = place
    logits = framework.tensor(scores())
    for _ in range(8):
        logits = logits * 2.0 - 3.0  # still being computed, where the framework's work is queued
    chosen, array = written(framework, device, np.zeros((ROWS, K), np.int32))
    sm.ops.topk(logits=logits, lens=framework.tensor(np.full(ROWS, WIDTH, np.int32)), indices=chosen)
    np.testing.assert_array_equal(np.sort(array(chosen), axis=1), best(scores()))


@pytest.mark.parametrize("place", WITH_VIEWS, indirect=True)
def test_strides_of_views_are_followed(place: tuple[Framework, str]) -> None:
    framework, _ = place
    logits = framework.tensor(np.repeat(scores(), 2, axis=0))[::2]
    chosen = framework.tensor(np.zeros((ROWS, 2 * K), np.int32))
    sm.ops.topk(logits=logits, lens=framework.tensor(np.full(ROWS, WIDTH, np.int32)), indices=chosen[:, :K])
    np.testing.assert_array_equal(np.sort(framework.array(chosen)[:, :K], axis=1), best(scores()))
    assert not framework.array(chosen)[:, K:].any()


@pytest.mark.parametrize("place", WITHOUT_VIEWS, indirect=True)
def test_arrays_that_must_not_change_are_not_written(place: tuple[Framework, str]) -> None:
    framework, _ = place
    chosen = framework.tensor(np.zeros((ROWS, K), np.int32))
    lens = framework.tensor(np.full(ROWS, WIDTH, np.int32))
    with pytest.raises(sm.InvalidArgument, match="topk: indices: got a read-only tensor"):
        sm.ops.topk(logits=framework.tensor(scores()), lens=lens, indices=chosen)
    assert not framework.array(chosen).any()
