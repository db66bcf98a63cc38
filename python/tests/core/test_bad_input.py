"""Whatever Python gives: an exception that names the argument, or the right answer."""

from __future__ import annotations

import ctypes
import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest
import sparsemla as sm


def call(**changes: Any) -> None:
    """topk over good arguments but for these."""
    good: dict[str, Any] = {
        "logits": np.zeros((4, 100), np.float32),
        "lens": np.array([100, 5, 50, 0], np.int32),
        "indices": np.empty((4, 8), np.int32),
    }
    good.update(changes)
    sm.ops.topk(**good)


class Tensor(ctypes.Structure):
    """DLPack's tensor and what manages it."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
ctypes.pythonapi.PyCapsule_New.restype = ctypes.py_object
ctypes.pythonapi.PyCapsule_New.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class Exported:
    """A tensor of some other framework, by DLPack alone; counts how often it was given back."""

    def __init__(
        self,
        array: np.ndarray,
        device: tuple[int, int] = (1, 0),
        null: bool = False,
        code: int | None = None,
        capsule_name: bytes = b"dltensor",
    ) -> None:
        self.array, self.device, self.freed, self.kept = array, device, 0, []
        self.null, self.code, self.capsule_name = null, code, capsule_name

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(self, stream: int | None = None) -> Any:
        a = self.array
        shape = (ctypes.c_int64 * a.ndim)(*a.shape)
        strides = (ctypes.c_int64 * a.ndim)(*(s // a.itemsize for s in a.strides))

        def free(_: int) -> None:
            self.freed += 1

        code = {"f": 2, "i": 0, "u": 1, "b": 6}[a.dtype.kind] if self.code is None else self.code
        deleter = DELETER(free)
        tensor = Tensor(
            None if self.null else a.ctypes.data,
            *self.device,
            a.ndim,
            code,
            8 * a.itemsize,
            1,
            ctypes.addressof(shape),
            ctypes.addressof(strides),
            0,
            None,
            ctypes.cast(deleter, ctypes.c_void_p).value,
        )
        self.kept += [shape, strides, deleter, tensor]
        return ctypes.pythonapi.PyCapsule_New(ctypes.addressof(tensor), self.capsule_name, None)


BAD = {
    "float64 logits": ({"logits": np.zeros((4, 100))}, r"topk: logits: got \[4, 100\] F64"),
    "float16": ({"logits": np.zeros((4, 100), np.float16)}, "topk: logits: got dtype float16"),
    "complex": ({"logits": np.zeros((4, 100), np.complex64)}, "topk: logits: got dtype complex64"),
    "objects": ({"logits": np.zeros((4, 100), object)}, "topk: logits: got dtype object"),
    "big endian": ({"logits": np.zeros((4, 100), ">f4")}, "topk: logits: got bytes in the order"),
    "int64 lens": ({"lens": np.zeros(4, np.int64)}, r"topk: lens: got \[4\] I64, expected \[4\] I32"),
    "no lens": ({"lens": None}, "topk: lens: got no tensor"),
    "a list": ({"lens": [1, 2, 3, 4]}, "topk: lens: got a list, expected a tensor"),
    "a number": ({"lens": 4}, "topk: lens: got 4, expected a tensor"),
    "a word": ({"lens": "4"}, "topk: lens: got '4', expected a tensor"),
    "bytes": ({"lens": b"1234"}, "topk: lens: got a bytes, expected a tensor"),
    "an object": ({"lens": object()}, "topk: lens: got a object, expected a tensor"),
    "a cache": (
        {"lens": sm.Cache(np.zeros((1, 1024), np.uint8), "bf16", 1)},
        "topk: lens: got a Cache, expected a tensor",
    ),
    "no dimension": ({"lens": np.array(3, np.int32)}, "topk: lens: got 0 dimensions, expected 1 to 4"),
    "five dimensions": ({"lens": np.zeros((1, 1, 1, 1, 4), np.int32)}, "topk: lens: got 5 dimensions"),
    "nine dimensions": ({"lens": np.zeros((1,) * 9, np.int32)}, "topk: lens: got 9 dimensions, expected at most 8"),
    "too short": ({"lens": np.zeros(3, np.int32)}, r"topk: lens: got \[3\] I32, expected \[4\]"),
    "zero rows": ({"lens": np.zeros(0, np.int32)}, r"topk: lens: got \[0\] I32, expected \[4\]"),
    "every second column": ({"indices": np.empty((4, 16), np.int32)[:, ::2]}, "topk: indices: .*last stride 2"),
    "columns first": ({"indices": np.empty((8, 4), np.int32).T}, "topk: indices: .*last stride 4"),
    "backwards": ({"lens": np.zeros(4, np.int32)[::-1]}, "topk: lens: got stride 0 of -1"),
    "one number seen often": ({"lens": np.broadcast_to(np.int32(3), (4,))}, "topk: lens: got strides of 0"),
    "odd stride": (
        {"logits": np.lib.stride_tricks.as_strided(np.zeros(999, np.float32), (4, 100), (401, 4))},
        "topk: logits: got a stride of 401 bytes",
    ),
    "not aligned": (
        {"logits": np.frombuffer(bytes(1601), np.float32, 400, 1).reshape(4, 100)},
        "topk: logits: got data that is not aligned",
    ),
    "2^31 rows": (
        {"logits": np.lib.stride_tricks.as_strided(np.zeros(200, np.float32), (2**31, 100), (0, 4))},
        r"topk: lens: got \[4\] I32, expected \[2147483648\]",
    ),
    "2^60 elements": (
        {"logits": np.lib.stride_tricks.as_strided(np.zeros(2, np.float32), (2**31, 2**29), (0, 0))},
        "topk: logits: got",
    ),
    "read-only output": (
        {"indices": np.broadcast_to(np.empty((4, 8), np.int32), (4, 8))},
        "topk: indices: got a read-only",
    ),
    "unknown member": ({"weights": np.zeros(3)}, "topk: weights: got a member of that name, expected one of rows"),
    "unknown part": ({"slots": {"places": np.zeros(3)}}, "topk: slots.places: got a member of that name"),
    "number as a key": ({"slots": {3: np.zeros(3)}}, "topk: slots: got a key 3"),
    "contradiction": ({"rows": 5}, r"topk: logits: got \[4, 100\] F32, expected \[5, 100\]"),
    "fraction": ({"k": 2.5}, "topk: k: got 2.5, expected an integer"),
    "k of 2^70": ({"k": 2**70}, "topk: k: got 1180591620717411303424, expected a number of 64 bits"),
    "k below 0": ({"k": -1}, "topk: problem.k: got -1"),
    "k of 2^31": ({"k": 2**31}, "topk: problem.k: got 2147483648"),
    "threads": ({"threads": -1}, "threads: got -1"),
    "many threads": ({"threads": 10**6}, "threads: got 1000000"),
    "implementation": ({"implementation": "avx9"}, 'topk: got implementation "avx9", expected one of'),
    "device": ({"device": "tpu"}, 'device: got "tpu", expected "cpu", "cuda" or "cuda:0"'),
    "another device": ({"device": "cuda:1"}, "device: got cuda:1, expected cpu"),
    "stream": ({"stream": 16}, "stream: got a stream for tensors on the CPU"),
    "stream of letters": ({"stream": "main"}, "stream: got 'main'"),
    "negative stream": ({"stream": -4}, "stream: got -4"),
    "on a GPU": (
        {"lens": Exported(np.zeros(4, np.int32), (2, 0))},
        "topk: lens: got a tensor on cuda:0, expected one on cpu beside logits",
    ),
    "on a TPU": ({"lens": Exported(np.zeros(4, np.int32), (99, 0))}, "topk: lens: got a tensor on DLPack device"),
    "without memory": (
        {"lens": Exported(np.zeros(4, np.int32), null=True)},
        r"topk: lens: got a tensor without memory \(\[4\] I32, freed\)",
    ),
    "opaque type": ({"lens": Exported(np.zeros(4, np.int32), code=3)}, "topk: lens: got DLPack type code 3 of 32 bits"),
    "other capsule": ({"lens": Exported(np.zeros(4, np.int32), capsule_name=b"used_dltensor")}, "topk: lens: got"),
}


@pytest.mark.parametrize("name", BAD)
def test_names_the_argument(name: str) -> None:
    changes, text = BAD[name]
    with pytest.raises(sm.InvalidArgument, match=text):
        call(**changes)


def test_a_cpu_tensor_among_those_of_a_gpu() -> None:
    with pytest.raises(
        sm.InvalidArgument, match=r"topk: lens: got a tensor on cpu, expected one on cuda:0 beside logits"
    ):
        call(logits=Exported(np.zeros((4, 100), np.float32), (2, 0)))


@pytest.mark.skipif(sm.built_with_cuda(), reason="this build has GPU kernels")
def test_a_gpu_without_kernels_is_unsupported() -> None:
    on_gpu = {
        n: Exported(a, (2, 0)) for n, a in [("logits", np.zeros((4, 9), np.float32)), ("lens", np.zeros(4, np.int32))]
    }
    with pytest.raises(sm.Unsupported, match="this build has no CUDA"):
        call(**on_gpu, indices=Exported(np.empty((4, 2), np.int32), (2, 0)))


def test_exports_are_given_back() -> None:
    tensors = {
        "logits": Exported(np.random.default_rng(0).normal(size=(4, 100)).astype(np.float32)),
        "lens": Exported(np.full(4, 100, np.int32)),
        "indices": Exported(np.empty((4, 8), np.int32)),
    }
    call(**tensors)
    with pytest.raises(sm.InvalidArgument):
        call(**tensors, rows=7)
    gc.collect()
    assert {n: t.freed for n, t in tensors.items()} == dict.fromkeys(tensors, 2)
    best = np.sort(np.argsort(-tensors["logits"].array, axis=1)[:, :8], axis=1)
    np.testing.assert_array_equal(tensors["indices"].array, best)


class Raises:
    """A producer with an error of its own."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError("deleted")


def test_a_deleted_tensor_says_so() -> None:
    with pytest.raises(sm.InvalidArgument, match=r"topk: lens: got a Raises that cannot be shared \(deleted\)"):
        call(lens=Raises())


def test_nothing_is_written_when_an_argument_is_wrong() -> None:
    indices = np.full((4, 8), 7, np.int32)
    with pytest.raises(sm.InvalidArgument):
        call(indices=indices, lens=np.zeros(3, np.int32))
    assert (indices == 7).all()


def test_zero_rows_are_a_call() -> None:
    call(logits=np.zeros((0, 100), np.float32), lens=np.zeros(0, np.int32), indices=np.empty((0, 8), np.int32))


CACHES = {
    "format": ((np.zeros((2, 1024), np.uint8), "bf17", 1), {}, 'row format: got "bf17", expected one of'),
    "rows": (
        (np.zeros((2, 1024), np.uint8), "bf16", 2),
        {},
        r"Cache: tensor: got blocks of 1024 bytes .*expected 2048 bytes or more",
    ),
    "none": ((np.zeros((2, 1024), np.uint8), "bf16", 0), {}, "Cache: block_size: got 0"),
    "stride": (
        (np.zeros((2, 1024), np.uint8), "bf16", 1),
        {"block_stride_bytes": 512},
        "Cache: tensor: got block_stride_bytes 512",
    ),
    "short stride": (
        (np.zeros(4096, np.uint8), "bf16", 1),
        {"block_stride_bytes": 512},
        "got a block stride of 512 bytes, expected 1024",
    ),
    "holes": ((np.zeros((2, 2048), np.uint8)[:, ::2], "bf16", 1), {}, "Cache: tensor: got stride 2 of dimension 1"),
    "number": ((3, "bf16", 1), {}, "Cache: tensor: got a int"),
    "nothing": ((None, "bf16", 1), {}, "Cache: tensor: got a NoneType"),
}


@pytest.mark.parametrize("name", CACHES)
def test_caches_name_what_is_wrong(name: str) -> None:
    arguments, options, text = CACHES[name]
    with pytest.raises(sm.InvalidArgument, match=text):
        sm.Cache(*arguments, **options)


def test_blocks_of_a_cache() -> None:
    assert sm.Cache(np.zeros(5000, np.uint8), "bf16", 1).num_blocks == 4
    assert (
        sm.Cache(np.zeros(5024, np.uint8), "bf16", 1, block_stride_bytes=2000).num_blocks == 3
    )  # the last needs no rest
    apart = sm.Cache(np.zeros((3, 4096), np.uint8)[:, :2048], "bf16", 2)
    assert (apart.num_blocks, apart.block_stride_bytes, apart.format, apart.block_size) == (3, 4096, "bf16", 2)
    assert sm.Cache(np.zeros((3, 2, 512), np.uint16), "bf16", 2).block_stride_bytes == 2048


def test_a_cache_keeps_its_tensor_and_a_call_nothing() -> None:
    class Array(np.ndarray):
        """Can be referred to weakly."""

    rows = np.zeros((2, 512), np.uint16).view(Array)
    known = weakref.ref(rows)
    cache = sm.Cache(rows, "bf16", 1)
    del rows
    assert known() is not None
    del cache
    gc.collect()
    assert known() is None


PLANS = {
    "op": (("top_k",), 'op: got "top_k", expected one of'),
    "scalar": (("topk", {"rows": 4, "depth": 3}), "topk: depth: got a member of that name"),
    "impossible": (("topk", {"rows": -4}), "topk: "),
    "tensor": (("topk", {"rows": 4, "lens": np.zeros(4, np.int32)}), "topk: scalars: got a tensor"),
    "dtype": (("rms_norm", {"in": "float3"}), "rms_norm: in: got dtype float3"),
    "word": (("quantize_rows", {"scale": "f33"}), 'quantize_rows: scale: got "f33", expected f32 or ue8m0x4'),
    "format": (("insert_rows", {"format": 3}), "insert_rows: format: got 3, expected a word"),
    "flag": (("rms_norm", {"has_weight": 2}), "rms_norm: has_weight: got 2, expected 0 or 1"),
}


@pytest.mark.parametrize("name", PLANS)
def test_plans_name_what_is_wrong(name: str) -> None:
    arguments, text = PLANS[name]
    with pytest.raises(sm.InvalidArgument, match=text):
        sm.Plan(*arguments)


def test_errors_are_of_python_s_own_kinds() -> None:
    assert issubclass(sm.InvalidArgument, (sm.Error, ValueError))
    assert issubclass(sm.InvalidArgument, ValueError)
    assert issubclass(sm.Unsupported, NotImplementedError)
    assert issubclass(sm.IoError, OSError)
    assert issubclass(sm.Error, RuntimeError)


def test_threads_call_at_once() -> None:
    logits = np.random.default_rng(5).normal(size=(64, 2000)).astype(np.float32)
    lens = np.full(64, 2000, np.int32)
    want = np.sort(np.argsort(-logits, axis=1)[:, :16], axis=1)
    wrong = []

    def work() -> None:
        for i in range(30):
            out = np.empty((64, 16), np.int32)
            sm.ops.topk(logits=logits, lens=lens, indices=out, threads=1 + i % 2)
            if not np.array_equal(out, want):
                wrong.append(i)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
