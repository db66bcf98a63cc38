"""Shapes and dtypes of an op's results, from the shapes of what it reads: for fakes and for new tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import torch

from sparsemla import InvalidArgument

from ._members import OpMembers, Tensor, words_of

DTYPES = {
    "F32": torch.float32,
    "F64": torch.float64,
    "BF16": torch.bfloat16,
    "E4M3": torch.float8_e4m3fn,
    "U8": torch.uint8,
    "I32": torch.int32,
    "I64": torch.int64,
    "BOOL": torch.bool,
}
NAMES = {dtype: name for name, dtype in DTYPES.items()}

_TERM = re.compile(r"^(?:>= )?([\w.\[\]]+(?:\s*[-+*/]\s*[\w.\[\]]+)*)$")
# A number of 0 that means another one.
_ZERO_IS = {
    ("sparse_attention", "out_heads"): "heads",
    ("sparse_attention", "value_dim"): "dim",
    ("qnorm_rope_insert", "out_heads"): "heads",
}
# Ops that leave the ends of rows as they were: what they leave of a new tensor is 0.
_LEAVE_ENDS = {"indexer_logits", "ragged_indexer_logits", "gather_rows"}
# Optional outputs that the form which returns new tensors leaves out.
_ON_DEMAND = {("topk", "scores"), ("projection", "y_values"), ("projection", "y_scales")}
_GROUP = 128  # dims of a scale of FP8 activations

Values = dict[str, Any]
Shape = Callable[[Values], tuple[Any, ...]]


def _packed_scales(of_ue8m0: str, groups: str | None, dim: Callable[[Values], Any], rows: str) -> Shape:
    """Scales of FP8 activations: [groups, scales, rows rounded up to 4], four UE8M0 bytes in an int32."""

    def shape(values: Values) -> tuple[Any, ...]:
        scales = dim(values) // _GROUP
        if values["scale"] == of_ue8m0:
            scales = (scales + 3) // 4
        return (values[groups] if groups else 1, scales, (values[rows] + 3) // 4 * 4)

    return shape


def _group_dim(values: Values) -> Any:
    return values["heads"] // values["groups"] * values["dim"]


def _quantised_heads(values: Values) -> tuple[Any, ...]:
    """E4M3 output of attention, group after group; nothing where it is not quantised."""
    groups = values["output_epilogue.groups"]
    return (groups, values["tokens"], values["heads"] // groups * values["value_dim"]) if groups else ()


# Shapes that the words of the op table leave to people; () where they do not.
_SHAPES: dict[tuple[str, str], Shape] = {
    ("quantize_rows", "scales"): _packed_scales("ue8m0x4", None, lambda v: v["dim"], "rows"),
    ("inverse_rope_quant", "values"): lambda v: (v["groups"], v["tokens"], _group_dim(v)),
    ("inverse_rope_quant", "scales"): _packed_scales("ue8m0x4", "groups", _group_dim, "tokens"),
    ("sparse_attention", "o"): _quantised_heads,
    ("gather_rows", "out"): lambda v: (v["requests"], v["rows"], 512),
}
_SCALE_DTYPES = {"f32": torch.float32, "ue8m0x4": torch.int32}


def returned(members: OpMembers) -> tuple[Tensor, ...]:
    """The outputs of the form that returns new tensors; none where there is no such form.

    Outputs of nested parts are wanted by their part alone and are not among them.
    """
    outputs = tuple(
        tensor for tensor in members.outputs if "." not in tensor.name and (members.op, tensor.name) not in _ON_DEMAND
    )
    inputs_too = {tensor.name for tensor in members.inputs}
    if members.writes_cache or members.op == "add_rows" or any(t.name in inputs_too for t in outputs):
        return ()
    known = all(
        (members.op, tensor.name) in _SHAPES or (_plain(members, tensor) and "@" not in tensor.dtype)
        for tensor in outputs
    )
    return outputs if known else ()


def _plain(members: OpMembers, tensor: Tensor) -> bool:
    return all(_TERM.match(dim) and all(word in members.by_name for word in words_of(dim)) for dim in tensor.dims)


def _default(kind: str, text: str) -> Any:
    if kind == "int":
        return int(text)
    if kind == "bool":
        return text == "true"
    return text


def _missing(members: OpMembers, name: str) -> InvalidArgument:
    argument = members.by_name[name].argument
    return InvalidArgument(f"{members.op}: {argument}: got none, expected it: no tensor that is read says it")


def determine(members: OpMembers, tensors: Mapping[str, Any], scalars: Mapping[str, Any]) -> Values:
    """The scalars of a call by member name: those given, those that inputs say, and defaults."""
    values = {name: value for name, value in scalars.items() if value is not None}
    least: Values = {}
    for tensor in members.inputs:
        given = tensors.get(tensor.name)
        if given is None or tensor.is_cache:
            continue
        source = tensor.dtype.partition(":")[0]
        if source in members.by_name and members.by_name[source].kind == "dtype":
            values.setdefault(source, given.dtype)
        if len(tensor.dims) != given.dim():
            continue  # the library says what is wrong
        for dim, size in zip(tensor.dims, given.shape, strict=True):
            if dim in members.by_name:
                values.setdefault(dim, size)
            elif dim.startswith(">= "):
                least.setdefault(dim[3:], size)
            elif dim == "requests+1":
                values.setdefault("requests", size - 1)
    for name, size in least.items():
        if name in members.by_name:
            values.setdefault(name, size)
    for name, scalar in members.by_name.items():
        if name not in values:
            values[name] = _default(scalar.kind, scalar.default)
    for (op, name), other in _ZERO_IS.items():
        if op == members.op and isinstance(values.get(name), int) and values[name] == 0:
            values[name] = values[other]
    return values


def _size(members: OpMembers, dim: str, values: Values) -> Any:
    """A dimension such as "tokens", "requests - decodes" or ">= top_k + window"."""
    text = dim.removeprefix(">= ")
    for word in words_of(text):
        scalar = members.by_name[word]
        unset = scalar.kind == "int" and scalar.default == "0" and word not in values["given"]
        if unset and isinstance(values[word], int) and values[word] == 0:
            raise _missing(members, word)
    total: Any = None
    for sign, term in re.findall(r"([-+]?)\s*([\w.\[\]*/]+)", text):
        product: Any = 1
        for operator, factor in re.findall(r"([*/]?)([\w.\[\]]+)", term):
            number = values[factor] if factor in values else int(factor)
            product = product // number if operator == "/" else product * number
        total = product if total is None else (total - product if sign == "-" else total + product)
    return total


def _dtype(tensor: Tensor, values: Values) -> torch.dtype:
    """The dtype of a result: the one that its words name, or that their scalar says."""
    source, colon, _ = tensor.dtype.partition(":")
    if not colon:
        return DTYPES[source] if source in DTYPES else _as_dtype(values[source])
    value = values[source]
    return _SCALE_DTYPES[value] if value in _SCALE_DTYPES else _as_dtype(value)


def _as_dtype(value: Any) -> torch.dtype:
    return value if isinstance(value, torch.dtype) else DTYPES[value]


def new_outputs(
    members: OpMembers, tensors: Mapping[str, Any], scalars: Mapping[str, Any]
) -> tuple[dict[str, torch.Tensor], Values]:
    """New tensors for the results of a call, by member name, on the device of what it reads; and its scalars.

    Raises InvalidArgument naming a scalar that nothing says.
    """
    values = determine(members, tensors, scalars)
    values["given"] = {name for name, value in scalars.items() if value is not None}
    device = next(tensor.device for tensor in tensors.values() if tensor is not None)
    made = {}
    for tensor in returned(members):
        rule = _SHAPES.get((members.op, tensor.name))
        shape = (rule(values) if rule else ()) or tuple(_size(members, dim, values) for dim in tensor.dims)
        new = torch.zeros if members.op in _LEAVE_ENDS else torch.empty
        made[tensor.name] = new(shape, dtype=_dtype(tensor, values), device=device)
    del values["given"]
    return made, values
