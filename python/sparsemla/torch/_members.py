"""The members of an op as arguments of a torch schema."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass, field

from sparsemla import ops

_SCALAR_TYPES = {
    "int": "SymInt?",
    "bool": "bool?",
    "float": "float?",
    "dtype": "ScalarType?",
    "format": "str?",
    "word": "str?",
}
_WORD = re.compile(r"[A-Za-z_][\w.\[\]]*")


def argument_name(member: str) -> str:
    """The name of a member in a schema: "scopes[0].cache" is scopes_0_cache, "global" is global_."""
    name = re.sub(r"[\[\].]+", "_", member)
    return name + "_" if keyword.iskeyword(name) else name


@dataclass(frozen=True)
class Tensor:
    """A tensor or cache of an op."""

    name: str
    argument: str
    kind: str  # "input", "output" or "cache"
    written: bool
    dtype: str
    dims: tuple[str, ...]

    @property
    def is_cache(self) -> bool:
        """Whether it is a paged cache."""
        return self.kind == "cache"


@dataclass(frozen=True)
class Scalar:
    """A scalar of an op's problem."""

    name: str
    argument: str
    kind: str
    default: str

    @property
    def type(self) -> str:
        """Its type in a schema."""
        return _SCALAR_TYPES[self.kind]


@dataclass(frozen=True)
class OpMembers:
    """What an op has: scalars that are arguments, what it reads and what it writes; `by_name` has all scalars."""

    op: str
    scalars: tuple[Scalar, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    by_name: dict[str, Scalar] = field(compare=False)

    @property
    def writes_cache(self) -> bool:
        """Whether one of its caches is written."""
        return any(tensor.is_cache and tensor.written for tensor in self.inputs)


def read_members(op: str) -> OpMembers:
    """The members of an op. Scalars that a tensor which is read says without fail are no arguments: formats and block
    sizes of caches, dtypes of inputs."""
    found = ops.members(op)
    tensors = [
        Tensor(m["name"], argument_name(m["name"]), m["kind"], m["written"], m["dtype"], split_dims(m["dims"]))
        for m in found
        if m["kind"] in ("input", "output", "cache")
    ]
    said = {dim for tensor in tensors if tensor.is_cache and tensor.dtype == "cache" for dim in tensor.dims}
    dtypes = {m["name"] for m in found if m["kind"] == "dtype"}
    said |= {t.dtype.partition(":")[0] for t in tensors if t.kind == "input"} & dtypes
    scalars = []
    for m in found:
        if m["kind"] in _SCALAR_TYPES and m["name"] not in said:
            name = argument_name(m["name"]) + ("_dtype" if m["kind"] == "dtype" else "")
            taken = any(tensor.argument == name for tensor in tensors)
            scalars.append(Scalar(m["name"], name + "_kind" if taken else name, m["kind"], m["default"]))
    return OpMembers(
        op,
        tuple(scalars),
        tuple(tensor for tensor in tensors if tensor.kind != "output"),
        tuple(tensor for tensor in tensors if tensor.kind == "output"),
        {
            m["name"]: Scalar(m["name"], argument_name(m["name"]), m["kind"], m["default"])
            for m in found
            if "default" in m
        },
    )


def split_dims(dims: str) -> tuple[str, ...]:
    """The dimensions of a shape in words, one text each."""
    return tuple(dim.strip() for dim in dims.split(","))


def words_of(dim: str) -> list[str]:
    """The names in a dimension."""
    return _WORD.findall(dim)
