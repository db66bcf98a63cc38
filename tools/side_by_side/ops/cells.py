"""The grid of the ops around attention: compressor, index queries, gathering of rows, in the sizes of a V4 layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from ..attention.cells import DIM, GATHER_TBS, ROW_BYTES, Choice

ROPE_DIM = 64
HEADS, INDEX_DIM = 64, 128
POSITIONS = 32768
"""Of a context; index queries are at its last ones."""
MOST_DECODES = 256
"""Up to so many tokens are one of each request; more are one prompt's."""
OPS_GRID = "ops"
TOKENS = (1, 64, 256, 2048, 8192)


@dataclass(frozen=True)
class OpKind:
    """An op as this library calls it: `ratio` tokens make an entry, `decode` closes a group with every token."""

    op: str
    ratio: int = 0
    decode: bool = False

    @property
    def halves(self) -> int:
        """Of a state row: two where windows overlap."""
        return 2 if self.ratio == 4 else 1

    @property
    def window(self) -> int:
        """Tokens that an entry is pooled of."""
        return self.ratio * self.halves


KINDS = {
    "compress_c4_main_decode_all_boundary": OpKind("compress_store", 4, decode=True),
    "compress_c4_main_prefill": OpKind("compress_store", 4),
    "compress_c128_main_decode_all_boundary_two_stage": OpKind("compress_store", 128, decode=True),
    "compress_c128_main_prefill_two_stage": OpKind("compress_store", 128),
    "indexer_q_rope_fp8": OpKind("indexer_q"),
    "dequant_gather": OpKind("gather_rows"),
}
"""By the names of data/peers/ops.csv."""


@dataclass(frozen=True)
class OpCell:
    """One call: an op of KINDS over `tokens` tokens."""

    layer: str
    tokens: int

    grid: ClassVar[str] = OPS_GRID

    @property
    def kind(self) -> OpKind:
        return KINDS[self.layer]

    @property
    def name(self) -> str:
        """The cell's name, that of data/peers and of the library's own benchmark."""
        return f"{self.grid}/{self.layer}/{self.tokens}"

    @property
    def rows(self) -> str:
        return "index_fp8" if self.kind.op == "indexer_q" else "fp8_ds_mla"

    @property
    def heads(self) -> int:
        return HEADS if self.kind.op == "indexer_q" else 1

    @property
    def requests(self) -> int:
        if self.kind.op == "indexer_q":
            return self.tokens if self.tokens <= MOST_DECODES else 1
        return self.tokens if self.kind.decode else 1

    @property
    def end(self) -> int:
        """Positions of a request of a compressor, whole groups; its tokens are the last ones."""
        before = self.kind.window + (0 if self.kind.decode else self.tokens)
        return -(-before // self.kind.ratio) * self.kind.ratio

    @property
    def entries(self) -> int:
        """Entries that a compressor makes."""
        if self.kind.decode:
            return self.tokens
        return self.end // self.kind.ratio - (self.end - self.tokens) // self.kind.ratio

    @property
    def bytes(self) -> int:
        """Everything that is read and written, once."""
        if self.kind.op == "gather_rows":
            return self.tokens * (ROW_BYTES["fp8_ds_mla"] + 2 * DIM)
        if self.kind.op == "indexer_q":
            rotations = 1 if self.requests == self.tokens else self.tokens
            return self.tokens * HEADS * (3 * INDEX_DIM + 6) + rotations * 4 * ROPE_DIM
        entry = self.kind.window * DIM * 8 + ROW_BYTES["fp8_ds_mla"] + 4 * ROPE_DIM
        return self.entries * entry + self.tokens * 28

    @property
    def floor_us(self) -> float:
        return self.bytes / GATHER_TBS * 1e-6

    def describe(self) -> dict[str, Any]:
        """What a file of results says about the cell."""
        same = {name: getattr(self, name) for name in ("name", "grid", "heads", "requests", "rows", "bytes")}
        return asdict(self) | same | {"queries": 1, "keys": 0, "floor_us": round(self.floor_us, 6)}


def _ops(choice: Choice) -> Iterator[OpCell]:
    for layer in choice.layers or KINDS:
        for tokens in choice.tokens or TOKENS:
            if not KINDS[layer].decode or tokens <= MOST_DECODES:
                yield OpCell(layer, tokens)


OPS_GRIDS: dict[str, Callable[[Choice], Iterator[OpCell]]] = {OPS_GRID: _ops}


def op_cells_of(grids: tuple[str, ...], choice: Choice) -> list[OpCell]:
    """The cells of the named grids in their order."""
    return [cell for grid in grids for cell in OPS_GRIDS[grid](choice)]
