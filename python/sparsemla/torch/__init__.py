"""Every op of the library as `torch.ops.sparsemla.<op>`: for eager code, torch.compile and CUDA graphs.

    import sparsemla.torch
    o, lse = torch.ops.sparsemla.sparse_attention(
        q, sink, scopes_0_cache=rows, scopes_0_indices=slots, scopes_0_cache_format="fp8_ds_mla")
    torch.ops.sparsemla.topk.out(logits, lens, indices=indices)

Importing this module defines the ops, on the CPU and on GPUs; nothing is compiled. Names are those of
`sparsemla.ops.members(op)` with `_` in place of brackets and dots.

An op `name` returns new tensors, `name.out` writes into those given. Ops that write caches, or whose outputs' shapes
their arguments do not say, have the writing form alone, as `name`. What is written is declared; there are no gradients.

A cache is a uint8 tensor of blocks, [blocks, bytes] or [blocks, rows, bytes] with any distance between blocks, beside
keywords: `<cache>_format` names its rows, `<cache>_block_size` counts those of a block (the second of three dimensions
says it too), `<cache>_kv_scale` is the scale of fp8_per_tensor rows. Dtypes of results are given as `<name>_dtype`.

`schema(op)` shows the arguments of an op.
"""

from __future__ import annotations

from ._register import define_all, schemas

__all__ = ["names", "schema"]

_SCHEMAS = define_all()


def names() -> list[str]:
    """The ops, with `.out` behind those that write into given tensors beside a form that returns new ones."""
    return list(_SCHEMAS)


def schema(op: str) -> str:
    """The torch schema of an op, for example of "topk" or "topk.out".

    Raises InvalidArgument for a name that is no op.
    """
    return schemas(_SCHEMAS, op)
