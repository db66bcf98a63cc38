"""Every op of the library as a function of its members: `sparsemla.ops.topk(logits=..., lens=..., indices=...)`.

Outputs are tensors that the caller gives; they are written in place. A scalar that the tensors determine may be left
out. Nested members may be given nested: `scopes=[{"cache": c, "indices": i}]` is `scopes[0].cache` and so on. `help()`
of a function lists its scalars and tensors with shapes and dtypes.

All functions take these as well:

stream: a `cudaStream_t` as an int, or a stream of torch or cupy; None: the current one of the tensors' framework.
workspace: a tensor of bytes; None: taken with torch's allocator for tensors of torch, else from memory of the module.
device: where the tensors are expected; None: wherever they are.
implementation: one by name ("ref", "cuda", ...); None: the best that accepts.
deterministic: whether a row's result must not depend on its neighbours in the batch.
threads: CPU threads; 0: as many as OpenMP would start.

Errors: InvalidArgument names the op and the member, Unsupported lists why each implementation refuses.
"""

from __future__ import annotations

from . import _core

TYPE_CHECKING = False  # the module typing takes longer to import than all of this package
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def names() -> list[str]:
    """All ops, in the order of a layer."""
    return list(_core.op_names())


def members(op: str) -> list[dict[str, Any]]:
    """The scalars and tensors of an op.

    Each has `name` and `kind` ("int", "bool", "float", "dtype", "format", "word"; "input", "output", "cache").
    Scalars have `default`; tensors have `dtype`, `dims` and `written`.
    """
    return list(_core.op_members(op))


def scalars(op: str, **given: Any) -> dict[str, Any]:
    """The scalars that a call with these members would have: those given and those that its tensors determine."""
    return dict(_core.determine(op, given))


def _document(op: str) -> str:
    lines = [f"{op}, of the family {_core.op_family(op)}. For example: {_core.op_typical(op)}.", "", "Scalars:"]
    tensors = ["", "Tensors:"]
    for member in _core.op_members(op):
        name, kind = member["name"], member["kind"]
        if "default" in member:
            default = f" = {member['default']}" if member["default"] else ""
            lines.append(f"    {name}: {kind}{default}")
        elif kind == "cache":
            access = "written" if member["written"] else "read"
            tensors.append(f"    {name}: sparsemla.Cache, {access}")
        else:
            tensors.append(f"    {name} [{member['dims']}] {member['dtype']}, {kind}")
    return "\n".join(lines + tensors)


def _function(op: str) -> Callable[..., None]:
    call = _core.call

    def function(
        *,
        stream: Any = None,
        workspace: Any = None,
        device: Any = None,
        implementation: str | None = None,
        deterministic: bool = False,
        threads: int = 0,
        **members: Any,
    ) -> None:
        call(op, members, stream, workspace, device, implementation, deterministic, threads)

    function.__name__ = function.__qualname__ = op
    function.__module__ = __name__
    function.__doc__ = _document(op)
    return function


for _name in _core.op_names():
    globals()[_name] = _function(_name)
del _name
