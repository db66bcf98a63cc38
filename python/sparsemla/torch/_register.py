"""Definition of the ops with torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from sparsemla import Cache, InvalidArgument, ops

from ._members import OpMembers, Scalar, Tensor, read_members
from ._shapes import NAMES, new_outputs, returned

_NAMESPACE = "sparsemla"
_OPTIONS = ("implementation", "deterministic", "threads")
_OPTION_TYPES = "str? implementation=None, bool deterministic=False, int threads=0"
_library: Any = torch.library.Library  # without types
_libraries: list[Any] = []  # their ops live as long as they do


def _schema(members: OpMembers, name: str, written: tuple[Tensor, ...], results: tuple[Tensor, ...]) -> str:
    """The schema of one form: what is read, then by keyword what is written, scalars and options."""
    marks = iter("abcdefghijklmnop")

    def declared(tensor: Tensor, optional: bool) -> str:
        alias = f"({next(marks)}!)" if tensor.written else ""
        return f"Tensor{alias}{'?' if optional else ''} {tensor.argument}{'=None' if optional else ''}"

    positional = [declared(tensor, i > 0) for i, tensor in enumerate(members.inputs)]
    keywords = [declared(tensor, True) for tensor in written]
    for tensor in members.inputs:
        if tensor.is_cache:
            keywords.append(f"str? {tensor.argument}_format=None")
            keywords.append(f"int? {tensor.argument}_block_size=None")
            keywords.append(f"float {tensor.argument}_kv_scale=1.0")
    said = {tensor.dtype.partition(":")[0] for tensor in written}
    keywords += [
        f"{scalar.type} {scalar.argument}=None" for scalar in members.scalars if not _is_dtype_of(scalar, said)
    ]
    keywords.append(_OPTION_TYPES)
    back = ", ".join(f"Tensor {tensor.argument}" for tensor in results)
    return f"{name}({', '.join(positional)}, *, {', '.join(keywords)}) -> ({back})"


def _is_dtype_of(scalar: Scalar, tensors: set[str]) -> bool:
    """Whether a scalar is a dtype that given outputs say."""
    return scalar.kind == "dtype" and scalar.name in tensors


def _cache(op: str, tensor: Tensor, given: torch.Tensor, arguments: dict[str, Any]) -> Cache:
    """A cache over a tensor of blocks, from the keywords beside it."""
    name = tensor.argument
    row_format, block_size = arguments[f"{name}_format"], arguments[f"{name}_block_size"]
    if row_format is None:
        raise InvalidArgument(f"{op}: {name}_format: got none, expected the name of its rows")
    if block_size is None:
        if given.dim() != 3:
            raise InvalidArgument(
                f"{op}: {name}_block_size: got none beside a tensor of {given.dim()} dimensions, expected the rows of "
                "a block, or a tensor [blocks, rows, bytes]"
            )
        block_size = given.shape[1]
    return Cache(given, row_format, block_size, kv_scale=arguments[f"{name}_kv_scale"])


class Form:
    """One form of an op: returning, or writing into given tensors."""

    def __init__(self, members: OpMembers, name: str, results: tuple[Tensor, ...]) -> None:
        self.members = members
        self.results = results
        self.written = () if results else members.outputs
        self.schema = _schema(members, name, self.written, results)
        self._names: list[str] = []

    def bind(self, overload: Any) -> None:
        """Learns the order of the arguments."""
        self._names = [argument.name for argument in overload._schema.arguments]
        self._defaults = {a.name: a.default_value for a in overload._schema.arguments if a.has_default_value()}

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """All arguments of a call by name."""
        return self._defaults | dict(zip(self._names, args, strict=False)) | kwargs

    def _tensors(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return {t.name: arguments[t.argument] for t in (*self.members.inputs, *self.written)}

    def _scalars(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return {s.name: arguments.get(s.argument) for s in self.members.scalars}

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Computes on the device of the tensors."""
        arguments = self.arguments(args, kwargs)
        tensors, scalars = self._tensors(arguments), self._scalars(arguments)
        made: dict[str, torch.Tensor] = {}
        if self.results:
            made, _ = new_outputs(self.members, tensors, scalars)
        call: dict[str, Any] = {}
        for tensor in self.members.inputs:
            given = tensors[tensor.name]
            if given is not None:
                call[tensor.name] = _cache(self.members.op, tensor, given, arguments) if tensor.is_cache else given
        call |= {name: given for name, given in (tensors | made).items() if given is not None and name not in call}
        for name, value in scalars.items():
            if value is not None and name not in call:
                call[name] = NAMES[value] if isinstance(value, torch.dtype) else value
        _functions[self.members.op](**call, **{option: arguments[option] for option in _OPTIONS})
        return self._back(made)

    def fake(self, *args: Any, **kwargs: Any) -> Any:
        """Shapes and dtypes of the results; no number is read."""
        arguments = self.arguments(args, kwargs)
        made: dict[str, torch.Tensor] = {}
        if self.results:
            made, _ = new_outputs(self.members, self._tensors(arguments), self._scalars(arguments))
        return self._back(made)

    def _back(self, made: dict[str, torch.Tensor]) -> Any:
        back = tuple(made[tensor.name] for tensor in self.results)
        return None if not back else back[0] if len(back) == 1 else back


_functions: dict[str, Callable[..., None]] = {}


def _forms(op: str) -> dict[str, Form]:
    """The forms of an op by their name in torch."""
    members = read_members(op)
    results = returned(members)
    if not results:
        return {op: Form(members, op, ())}
    return {op: Form(members, op, results), f"{op}.out": Form(members, f"{op}.out", ())}


def define_all() -> dict[str, str]:
    """Defines every op once and returns the schemas by name."""
    library = _library(_NAMESPACE, "DEF")
    _libraries.append(library)
    defined = {}
    for op in ops.names():
        _functions[op] = getattr(ops, op)
        for name, form in _forms(op).items():
            library.define(form.schema, tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides))
            packet = getattr(torch.ops.sparsemla, op)
            form.bind(getattr(packet, name.partition(".")[2] or "default"))
            for key in ("CPU", "CUDA"):
                library.impl(name, form.run, key)
            torch.library.register_fake(f"{_NAMESPACE}::{name}", form.fake, lib=library)
            defined[name] = f"{_NAMESPACE}::{form.schema}"
    return defined


def schemas(defined: dict[str, str], op: str) -> str:
    """The schema of an op by name."""
    if op not in defined:
        raise InvalidArgument(f"op: got {op!r}, expected one of {', '.join(defined)}")
    return defined[op]
