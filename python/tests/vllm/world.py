"""A batch as vLLM describes it, on CPU tensors, and plain float32 torch computations of what its layers compute.

The metadata classes have the fields of vLLM's dataclasses (test_contract.py compares the names with vLLM's sources);
the values are made here from request lengths and block tables alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

WINDOW, WINDOW_BLOCK, MAIN_BLOCK, ROW_BYTES, INDEX_BYTES = 128, 64, 256, 584, 132


@dataclass
class SwaMetadata:
    """Fields that the plugin reads of DeepseekSparseSWAMetadata."""

    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    block_size: int
    seq_lens: torch.Tensor
    query_start_loc: torch.Tensor
    query_start_loc_cpu: torch.Tensor
    is_valid_token: torch.Tensor
    token_to_req_indices: torch.Tensor
    decode_swa_indices: torch.Tensor | None
    decode_swa_lens: torch.Tensor | None
    prefill_swa_indices: torch.Tensor | None
    prefill_swa_lens: torch.Tensor | None
    num_decodes: int
    num_prefills: int
    num_decode_tokens: int
    num_prefill_tokens: int


@dataclass
class MainMetadata:
    """Fields that the plugin reads of DeepseekV4FlashMLAMetadata."""

    max_seq_len: int
    slot_mapping: torch.Tensor
    block_table: torch.Tensor
    block_size: int
    c128a_global_decode_topk_indices: torch.Tensor | None = None
    c128a_decode_topk_lens: torch.Tensor | None = None
    c128a_prefill_topk_indices: torch.Tensor | None = None


@dataclass
class IndexChunk:
    """Fields that the plugin reads of DeepseekV32IndexerPrefillChunkMetadata."""

    block_table: torch.Tensor
    cu_seqlen_ks: torch.Tensor
    cu_seqlen_ke: torch.Tensor
    total_seq_lens: int
    token_start: int
    token_end: int


@dataclass
class IndexPrefill:
    """Fields that the plugin reads of DeepseekV32IndexerPrefillMetadata."""

    chunks: list[IndexChunk]


@dataclass
class IndexDecode:
    """Fields that the plugin reads of DeepSeekV32IndexerDecodeMetadata."""

    block_table: torch.Tensor
    seq_lens: torch.Tensor
    requires_padding: bool


@dataclass
class IndexMetadata:
    """Fields that the plugin reads of DeepseekV32IndexerMetadata."""

    max_seq_len: int
    num_decode_tokens: int
    num_prefill_tokens: int
    decode: IndexDecode | None = None
    prefill: IndexPrefill | None = None


@dataclass
class StateMetadata:
    """Fields that the plugin reads of CompressorMetadata."""

    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    token_to_req_indices: torch.Tensor


READ = {
    "DeepseekSparseSWAMetadata": SwaMetadata,
    "DeepseekV4FlashMLAMetadata": MainMetadata,
    "DeepseekV32IndexerPrefillChunkMetadata": IndexChunk,
    "DeepseekV32IndexerPrefillMetadata": IndexPrefill,
    "DeepSeekV32IndexerDecodeMetadata": IndexDecode,
    "DeepseekV32IndexerMetadata": IndexMetadata,
    "CompressorMetadata": StateMetadata,
}
"""vLLM's dataclass -> its stand-in."""


def strided_cache(blocks: int, rows: int, row_bytes: int, generator: torch.Generator) -> torch.Tensor:
    """uint8 [blocks, rows, row_bytes], a view of wider blocks, as vLLM's packed pool has them."""
    page = rows * row_bytes
    pool = torch.randint(0, 256, (blocks, (page + 575) // 576 * 576 + 1152), dtype=torch.uint8, generator=generator)
    return pool[:, 576 : 576 + page].unflatten(1, (rows, row_bytes))


def slots_of(table_row: torch.Tensor, positions: torch.Tensor, block: int) -> torch.Tensor:
    return table_row[positions // block].long() * block + positions % block


def flat(cache: torch.Tensor) -> torch.Tensor:
    """[blocks, bytes of a block] of the same memory"""
    return cache.as_strided(
        (cache.shape[0], cache.shape[1] * cache.shape[2]), (cache.stride(0), 1), cache.storage_offset()
    )


def places(cache: torch.Tensor, slots: torch.Tensor, count: int, first: int, each: int) -> tuple[torch.Tensor, ...]:
    """Where `count` bytes of every slot lie in flat(cache), a slot's first at first + each * its row in the block."""
    size = cache.shape[1]
    return (slots // size)[:, None], first + (slots % size * each)[:, None] + torch.arange(count)


def put_rows(cache: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> None:
    """fp8_ds_mla rows of fp32 [n, 512]: 448 e4m3 in groups of 64 with a power-of-two scale, then 64 bf16"""
    memory, scales_at = flat(cache), cache.shape[1] * 576
    groups = rows[:, :448].unflatten(1, (7, 64))
    exponent = torch.ceil(torch.log2(groups.abs().amax(2).clamp(min=1e-4) / 448))
    codes = (groups / torch.exp2(exponent)[..., None]).clamp(-448, 448).to(torch.float8_e4m3fn).flatten(1)
    rope = rows[:, 448:].to(torch.bfloat16).contiguous().view(torch.uint8)
    memory[places(cache, slots, 576, 0, 576)] = torch.cat([codes.view(torch.uint8), rope], 1)
    scales = torch.cat([(exponent + 127).to(torch.uint8), torch.zeros(len(rows), 1, dtype=torch.uint8)], 1)
    memory[places(cache, slots, 8, scales_at, 8)] = scales


def get_rows(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """fp32 [n, 512] of fp8_ds_mla rows"""
    memory, scales_at = flat(cache), cache.shape[1] * 576
    data = memory[places(cache, slots, 576, 0, 576)]
    scale = torch.exp2(memory[places(cache, slots, 7, scales_at, 8)].float() - 127)
    nope = data[:, :448].contiguous().view(torch.float8_e4m3fn).float().unflatten(1, (7, 64)) * scale[..., None]
    return torch.cat([nope.flatten(1), data[:, 448:].contiguous().view(torch.bfloat16).float()], 1)


def put_index_rows(cache: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> None:
    """index_fp8 rows of fp32 [n, 128]: e4m3 with one fp32 scale"""
    memory, scales_at = flat(cache), cache.shape[1] * 128
    scale = torch.exp2(torch.ceil(torch.log2(rows.abs().amax(1, keepdim=True).clamp(min=1e-4) / 448)))
    memory[places(cache, slots, 128, 0, 128)] = (rows / scale).to(torch.float8_e4m3fn).view(torch.uint8)
    memory[places(cache, slots, 4, scales_at, 4)] = scale.view(torch.uint8)


def get_index_rows(cache: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """fp32 [n, 128]"""
    memory, scales_at = flat(cache), cache.shape[1] * 128
    codes = memory[places(cache, slots, 128, 0, 128)].view(torch.float8_e4m3fn).float()
    return codes * memory[places(cache, slots, 4, scales_at, 4)].view(torch.float32)


@dataclass
class World:
    """Requests of one step, decodes first.

    @param seq_lens: tokens of each request after the step
    @param query_lens: tokens of each request in the step
    @param decodes: requests that are decodes
    @param padding: tokens of a graph behind the real ones
    """

    seq_lens: list[int]
    query_lens: list[int]
    decodes: int
    ratio: int = 4
    padding: int = 0
    seed: int = 1
    max_model_len: int = 2048
    generator: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.generator = torch.Generator().manual_seed(self.seed)
        requests = len(self.seq_lens)
        self.requests = requests
        self.tokens = sum(self.query_lens)
        starts = [0]
        for n in self.query_lens:
            starts.append(starts[-1] + n)
        self.query_start_loc = torch.tensor(starts, dtype=torch.int32)
        self.request_of = torch.cat([torch.full((n,), r) for r, n in enumerate(self.query_lens)]).int()
        self.positions = torch.cat([torch.arange(s - q, s) for s, q in zip(self.seq_lens, self.query_lens)])
        self.window_table = self._table(WINDOW_BLOCK)
        self.main_table = self._table(MAIN_BLOCK)
        self.window_cache = strided_cache(int(self.window_table.max()) + 1, WINDOW_BLOCK, ROW_BYTES, self.generator)
        per = MAIN_BLOCK // self.ratio
        self.main_cache = strided_cache(int(self.main_table.max()) + 1, per, ROW_BYTES, self.generator)
        self.index_cache = strided_cache(int(self.main_table.max()) + 1, per, INDEX_BYTES, self.generator)
        for r, n in enumerate(self.seq_lens):
            first = max(n - self.query_lens[r] - WINDOW, 0)
            put_rows(
                self.window_cache,
                slots_of(self.window_table[r], torch.arange(first, n), WINDOW_BLOCK),
                self.randn(n - first, 512),
            )
            entries = n // self.ratio if self.ratio > 1 else 0
            if entries:
                slots = slots_of(self.main_table[r], torch.arange(entries), per)
                put_rows(self.main_cache, slots, self.randn(entries, 512))
                put_index_rows(self.index_cache, slots, self.randn(entries, 128))

    def randn(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator)

    def _table(self, block: int) -> torch.Tensor:
        columns = (self.max_model_len + block - 1) // block
        used = [(n + block - 1) // block for n in self.seq_lens]
        order = (torch.randperm(sum(used) + 4, generator=self.generator)[: sum(used)] + 1).tolist()
        table = torch.zeros(len(used), columns, dtype=torch.int32)
        for r, n in enumerate(used):
            table[r, :n] = torch.tensor(order[:n])
            order = order[n:]
        return table

    def window_slots(self, token: int) -> torch.Tensor:
        r, p = int(self.request_of[token]), int(self.positions[token])
        return slots_of(self.window_table[r], torch.arange(max(p - WINDOW + 1, 0), p + 1), WINDOW_BLOCK)

    def entry_slots(self, token: int, local: torch.Tensor) -> torch.Tensor:
        return slots_of(self.main_table[int(self.request_of[token])], local.long(), MAIN_BLOCK // self.ratio)

    @property
    def decode_tokens(self) -> int:
        return sum(self.query_lens[: self.decodes])

    def swa(self, width: int = WINDOW) -> SwaMetadata:
        """The window's metadata; with padding, rows of a graph behind the real ones hold what was there before."""
        total, d = self.tokens + self.padding, self.decode_tokens
        indices = torch.full((total, 1, width), -1, dtype=torch.int32)
        lens = torch.zeros(total, dtype=torch.int32)
        slots = torch.full((total,), -1, dtype=torch.int64)
        for t in range(self.tokens):
            w = self.window_slots(t)
            indices[t, 0, : len(w)] = w.int()
            lens[t] = len(w)
            slots[t] = w[-1]
        if self.padding:
            indices[self.tokens :] = 7
        owner = torch.full((total,), 2, dtype=torch.int32)
        owner[: self.tokens] = self.request_of
        last = d + (self.padding if d == self.tokens else 0)
        return SwaMetadata(
            block_table=self.window_table,
            slot_mapping=slots,
            block_size=WINDOW_BLOCK,
            seq_lens=torch.tensor(self.seq_lens, dtype=torch.int32),
            query_start_loc=self.query_start_loc,
            query_start_loc_cpu=self.query_start_loc,
            is_valid_token=slots >= 0,
            token_to_req_indices=owner[: self.tokens],
            decode_swa_indices=indices[:last],
            decode_swa_lens=lens[:last],
            prefill_swa_indices=indices[d : self.tokens] if self.tokens > d else None,
            prefill_swa_lens=lens[d : self.tokens] if self.tokens > d else None,
            num_decodes=self.decodes,
            num_prefills=self.requests - self.decodes,
            num_decode_tokens=last,
            num_prefill_tokens=self.tokens - d,
        )

    def main(self) -> MainMetadata:
        made = MainMetadata(max(self.seq_lens), torch.empty(0), self.main_table, MAIN_BLOCK)
        if self.ratio == 128:
            width, d = 128, self.decode_tokens
            whole = torch.full((self.tokens + self.padding, 1, width + 64), -1, dtype=torch.int32)
            lens = torch.zeros(self.tokens + self.padding, dtype=torch.int32)
            local = torch.full((self.tokens - d, width), -1, dtype=torch.int32)
            for t in range(self.tokens):
                n = (int(self.positions[t]) + 1) // 128
                lens[t] = n
                whole[t, 0, :n] = self.entry_slots(t, torch.arange(n)).int()
                if t >= d:
                    local[t - d, :n] = torch.arange(n, dtype=torch.int32)
            last = d + (self.padding if d == self.tokens else 0)
            made.c128a_global_decode_topk_indices = whole[:last, :, :width]
            made.c128a_decode_topk_lens = lens[:last]
            made.c128a_prefill_topk_indices = local
        return made

    def index_step(self, native: bool = True, chunk_tokens: int = 1 << 30) -> IndexMetadata:
        """Decodes with one row a request and token (native) or a table row of their own; prefills in chunks."""
        d = self.decode_tokens
        lens = self.query_lens[: self.decodes]
        decode = prefill = None
        if self.decodes:
            seen = (self.positions[:d].int() + 1) // self.ratio
            if len(set(lens)) > 1 and native:
                longest = max(lens)
                padded = torch.tensor(
                    [
                        [max(s - longest + j + 1, 0) // self.ratio for j in range(longest)]
                        for s in self.seq_lens[: self.decodes]
                    ]
                )
                decode = IndexDecode(self.main_table[: self.decodes], padded.int(), True)
            elif native:
                decode = IndexDecode(self.main_table[: self.decodes], seen.view(self.decodes, -1), False)
            else:
                decode = IndexDecode(self.main_table[self.request_of[:d].long()], seen.view(-1, 1), False)
        if self.tokens > d:
            chunks = []
            for r in range(self.decodes, self.requests):
                entries = self.seq_lens[r] // self.ratio
                if entries == 0:
                    continue
                first, last = int(self.query_start_loc[r]), int(self.query_start_loc[r + 1])
                for start in range(first, last, chunk_tokens):
                    stop = min(start + chunk_tokens, last)
                    ke = (self.positions[start:stop].int() + 1) // self.ratio
                    chunks.append(
                        IndexChunk(self.main_table[r : r + 1], torch.zeros_like(ke), ke, entries, start, stop)
                    )
            prefill = IndexPrefill(chunks)
        return IndexMetadata(max(self.seq_lens), d, self.tokens - d, decode, prefill)


def exact_attention(q: torch.Tensor, keys: torch.Tensor, sink: torch.Tensor, scale: float) -> torch.Tensor:
    """fp32 [heads, 512]: softmax over the keys and a sink that has no value"""
    scores = q.float() @ keys.T * scale
    largest = torch.maximum(scores.amax(-1), sink)
    weights = torch.exp(scores - largest[:, None])
    return (weights @ keys) / (weights.sum(-1) + torch.exp(sink - largest))[:, None]


def relative_l2(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(got.float() - expected) / torch.linalg.vector_norm(expected).clamp(min=1e-20))


def rope_table(length: int) -> torch.Tensor:
    """[length, 64] fp32: cosines, then sines"""
    angles = torch.arange(length)[:, None] * torch.exp2(-torch.arange(32) / 3)[None]
    return torch.cat([angles.cos(), angles.sin()], 1)


def rotate(x: torch.Tensor, row: torch.Tensor, back: bool = False) -> torch.Tensor:
    """The last 64 numbers of fp32 [..., d] rotated pair by pair"""
    c, s = row[:32], row[32:] * (-1 if back else 1)
    tail = x[..., -64:].unflatten(-1, (32, 2))
    turned = torch.stack([tail[..., 0] * c - tail[..., 1] * s, tail[..., 1] * c + tail[..., 0] * s], -1).flatten(-2)
    return torch.cat([x[..., :-64], turned], -1)
