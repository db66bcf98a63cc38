"""This library by its C interface: `libsparsemla.so`, or the module of an installed wheel, which shows the same calls.

Only what plans an op by name and runs it is bound. Tensors are anything with torch's `data_ptr`, `shape` and `stride`.
"""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .fault import Fault

OK = 0
DEVICES = {"cpu": 0, "cuda": 1}
DTYPES = {
    "torch.float32": 1,
    "torch.float64": 2,
    "torch.bfloat16": 3,
    "torch.float8_e4m3fn": 4,
    "torch.uint8": 5,
    "torch.int32": 6,
    "torch.int64": 7,
    "torch.bool": 8,
}
ALIGNMENT = 64
"""Of a workspace, bytes."""

NEEDED = ("smla_plan_create", "smla_plan_run", "smla_plan_workspace", "smla_op_get_member", "smla_last_error")


class _Tensor(c.Structure):
    _fields_ = [
        ("struct_size", c.c_uint64),
        ("data", c.c_void_p),
        ("dtype", c.c_int32),
        ("rank", c.c_int32),
        ("shape", c.c_int64 * 4),
        ("strides", c.c_int64 * 4),
    ]


class _Cache(c.Structure):
    _fields_ = [
        ("struct_size", c.c_uint64),
        ("format", c.c_char_p),
        ("base", c.c_void_p),
        ("num_blocks", c.c_int64),
        ("block_size", c.c_int64),
        ("block_stride_bytes", c.c_int64),
        ("kv_scale", c.c_float),
        ("reserved", c.c_int32),
    ]


class _Scalar(c.Structure):
    _fields_ = [
        ("struct_size", c.c_uint64),
        ("name", c.c_char_p),
        ("integer", c.c_int64),
        ("number", c.c_double),
        ("text", c.c_char_p),
    ]


class _Argument(c.Structure):
    _fields_ = [
        ("struct_size", c.c_uint64),
        ("name", c.c_char_p),
        ("tensor", c.POINTER(_Tensor)),
        ("cache", c.POINTER(_Cache)),
    ]


class _PlanOptions(c.Structure):
    _fields_ = [
        ("struct_size", c.c_uint64),
        ("implementation", c.c_char_p),
        ("device", c.c_int32),
        ("threads", c.c_int32),
        ("deterministic", c.c_int32),
        ("reserved", c.c_int32),
    ]


def _sized(kind: Any, *values: Any) -> Any:
    return kind(c.sizeof(kind), *values)


def find_library(path: str | None) -> Path:
    """The file to load: `path`, or the module of the installed package. @raises Fault: there is none"""
    if path:
        found = Path(path)
        if not found.is_file():
            raise Fault(f"--lib: {path} is no file")
        return found
    try:
        from sparsemla import _core
    except ImportError as error:
        raise Fault(f"--lib is not given and the package sparsemla is not installed ({error})") from error
    return Path(str(_core.__file__))


class Library:
    """A loaded library. @raises Fault: the file cannot be loaded, or lacks a call of the C interface."""

    def __init__(self, path: str | None) -> None:
        self.path = find_library(path)
        try:
            self._calls = c.CDLL(str(self.path.resolve()))
        except OSError as error:
            raise Fault(f"--lib: {self.path}: {error}") from error
        for name in NEEDED:
            if not hasattr(self._calls, name):
                raise Fault(f"--lib: {self.path} has no {name}; expected libsparsemla.so or the module of a wheel")
        self._calls.smla_last_error.restype = c.c_char_p
        self._calls.smla_version.restype = c.c_char_p
        self._calls.smla_plan_destroy.argtypes = [c.c_void_p]
        self.version = self._calls.smla_version().decode()

    def _check(self, status: int) -> None:
        if status != OK:
            raise Fault(self._calls.smla_last_error().decode())

    def plan(self, op: str, scalars: Mapping[str, Any], device: str, implementation: str, deterministic: bool) -> Plan:
        """An op chosen for one problem. @raises Fault: the library's text"""
        return Plan(self, op, scalars, device, implementation, deterministic)


class Plan:
    """A plan of the library; `implementation` and `workspace_bytes` say what it chose."""

    def __init__(
        self, library: Library, op: str, scalars: Mapping[str, Any], device: str, implementation: str, same_bits: bool
    ) -> None:
        self._library, self._calls = library, library._calls
        self._handle = c.c_void_p()
        list_ = (_Scalar * len(scalars))(*[_scalar(name, value) for name, value in scalars.items()])
        options = _sized(_PlanOptions, implementation.encode() or None, DEVICES[device], 0, int(same_bits), 0)
        status = self._calls.smla_plan_create(
            op.encode(), list_, c.c_int64(len(scalars)), c.byref(options), c.byref(self._handle)
        )
        library._check(status)
        size, chosen = c.c_size_t(), c.c_char_p()
        library._check(self._calls.smla_plan_workspace(self._handle, c.byref(size), c.byref(chosen)))
        self.workspace_bytes, self.implementation = size.value, (chosen.value or b"").decode()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._calls.smla_plan_destroy(self._handle)

    def bind(self, members: Mapping[str, Any], workspace: Any, stream: Callable[[], int]) -> Callable[[], None]:
        """A function that runs the plan over these tensors and caches on the stream that `stream` names.

        `workspace`: a tensor of bytes with ALIGNMENT more than the plan needs. The function keeps all of them.
        """
        kept: list[Any] = [members, workspace]
        list_ = (_Argument * len(members))(*[_argument(name, value, kept) for name, value in members.items()])
        place = workspace.data_ptr() + -workspace.data_ptr() % ALIGNMENT

        def run() -> None:
            assert kept
            status = self._calls.smla_plan_run(
                self._handle,
                list_,
                c.c_int64(len(members)),
                c.c_void_p(place),
                c.c_size_t(self.workspace_bytes),
                c.c_void_p(stream()),
            )
            self._library._check(status)

        return run


def _scalar(name: str, value: Any) -> Any:
    """Words are formats and rules, dtypes are torch's; whole numbers and flags are integers."""
    if str(value) in DTYPES:
        return _sized(_Scalar, name.encode(), DTYPES[str(value)], 0.0, None)
    if isinstance(value, str):
        return _sized(_Scalar, name.encode(), 0, 0.0, value.encode())
    if isinstance(value, float):
        return _sized(_Scalar, name.encode(), 0, value, None)
    return _sized(_Scalar, name.encode(), int(value), 0.0, None)


def _argument(name: str, value: Any, kept: list[Any]) -> Any:
    if hasattr(value, "format"):
        cache = _sized(
            _Cache,
            value.format.encode(),
            value.memory.data_ptr(),
            value.blocks,
            value.page,
            value.stride,
            value.kv_scale,
            0,
        )
        kept.append(cache)
        return _sized(_Argument, name.encode(), None, c.pointer(cache))
    tensor = _sized(_Tensor, value.data_ptr(), DTYPES[str(value.dtype)], value.dim())
    for i in range(value.dim()):
        tensor.shape[i], tensor.strides[i] = value.shape[i], value.stride(i)
    kept.append(tensor)
    return _sized(_Argument, name.encode(), c.pointer(tensor), None)
