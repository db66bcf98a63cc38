"""Modes indexer and full: each other step beside vLLM's own kernel on the same tensors.

Steps are scores and choice, inserted rows, compressor states and entries, index queries, the output projection. What
vLLM wrote is what later steps read, so that each is compared alone. Calls that are recorded into a graph are not.
"""

from __future__ import annotations

from typing import Any

import torch
from attention_check import READY_QUERIES
from cache_rows import row_bytes, row_values
from vllms_indexer import own_indexer

MOST_ERROR, MOST_ERROR_OF_PROJECTION = 5e-3, 2e-2
"""Relative l2 of a call's numbers."""

MOST_STATE_ERROR = 1e-5
MOST_SCORE_GAP = 2e-3
"""What a choice may lose: the gap of scores where it differs, relative to the row's largest score."""


def relative_l2(got: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """float64, of all numbers together."""
    distance = torch.linalg.vector_norm(got.double() - expected.double())
    return distance / torch.linalg.vector_norm(expected.double()).clamp_min(1e-20)


def chosen_mask(choice: torch.Tensor, entries: int) -> torch.Tensor:
    """bool [tokens, entries] of int64 [tokens, k], where -1 is none."""
    mask = torch.zeros(choice.shape[0], entries + 1, dtype=torch.bool, device=choice.device)
    return mask.scatter_(1, torch.where(choice >= 0, choice, entries), True)[:, :-1]


def is_good(row: dict[str, Any]) -> bool:
    """Whether a row of StepCheck.result() is within its bounds."""
    most = MOST_ERROR_OF_PROJECTION if row["kind"] == "output projection" else MOST_ERROR
    return bool(
        not row.get("counts_differ", 0)
        and row.get("largest_gap", 0) <= MOST_SCORE_GAP
        and row.get("l2", 0) <= most
        and row.get("codes_l2", 0) <= MOST_ERROR
        and row.get("largest", 0) <= MOST_STATE_ERROR
    )


class Notes:
    """Sums and largest values by kind and name, kept on a device."""

    def __init__(self, device: str = "cuda") -> None:
        self.device = device
        self._numbers: dict[str, dict[str, torch.Tensor]] = {}

    def add(self, kind: str, **values: Any) -> None:
        for number, value in self._pairs(kind, values):
            number.add_(value)

    def raise_to(self, kind: str, **values: Any) -> None:
        for number, value in self._pairs(kind, values):
            number.copy_(torch.maximum(number, value))

    def _pairs(self, kind: str, values: dict[str, Any]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        numbers = self._numbers.setdefault(kind, {})
        pairs = []
        for name, value in values.items():
            if name not in numbers:
                numbers[name] = torch.zeros((), dtype=torch.float64, device=self.device)
            pairs.append((numbers[name], torch.as_tensor(value, dtype=torch.float64, device=self.device)))
        return pairs

    def rows(self) -> list[dict[str, Any]]:
        return [
            {"kind": kind, **{name: number.item() for name, number in numbers.items()}}
            for kind, numbers in sorted(self._numbers.items())
        ]


def step_metadata() -> dict[str, Any] | None:
    """Metadata of the step by layer; None in a profile run."""
    from vllm.forward_context import get_forward_context

    metadata = get_forward_context().attn_metadata
    return metadata if isinstance(metadata, dict) else None


def recording() -> bool:
    """Whether the current stream is being recorded into a CUDA graph."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


class StepCheck:
    """Stands beside the steps of a process from install() on.

    @param mode: "indexer" or "full"
    @param with_peers: DeepGEMM and CuTe DSL are there to compare with; else only inserted rows are compared
    """

    def __init__(self, mode: str, with_peers: bool = True) -> None:
        self.mode, self.with_peers = mode, with_peers
        self.notes = Notes()

    def install(self) -> None:
        """To be called before a layer is built."""
        if self.with_peers:
            self._beside_choice()
        if self.mode == "full":
            self._beside_insert()
        if self.mode == "full" and self.with_peers:
            self._beside_compressors()
            self._beside_projection()
            self._beside_index_queries()

    def result(self) -> tuple[list[dict[str, Any]], list[str]]:
        """A row for each kind of step, and the kinds that failed."""
        rows = self.notes.rows()
        return rows, [row["kind"] for row in rows if not is_good(row)]

    def _compare_rows(self, kind: str, ours: torch.Tensor, vllms: torch.Tensor) -> None:
        """Rows of the same slots as bytes."""
        self.notes.add(kind, calls=1, rows=ours.shape[0], bytes_differ=(ours != vllms).sum())
        self.notes.raise_to(kind, l2=relative_l2(row_values(ours), row_values(vllms)))

    def _beside_choice(self) -> None:
        from sparsemla.vllm.layer import SparseMlaIndexer
        from vllm.models.deepseek_v4.attention import SparseAttnIndexer

        own_init, own_forward = SparseMlaIndexer.__init__, SparseMlaIndexer.forward
        check = self

        def init(self: Any, kernels: Any, most_entries: int, k_cache: Any, k: int, choice: torch.Tensor) -> None:
            own_init(self, kernels, most_entries, k_cache, k, choice)
            buffer = torch.full_like(choice, -1)
            self.__dict__["vllms"] = own_indexer(SparseAttnIndexer, k_cache, k, most_entries, buffer)

        def forward(self: Any, hidden_states: Any, q_quant: Any, k: Any, weights: Any) -> torch.Tensor:
            made = own_forward(self, hidden_states, q_quant, k, weights)
            self.vllms(hidden_states, q_quant, None, weights)
            metadata = step_metadata()
            if metadata is not None and not recording():
                check.compare_choice(self, q_quant, weights, metadata)
            return made

        SparseMlaIndexer.__init__, SparseMlaIndexer.forward = init, forward

    def compare_choice(self, indexer: Any, q: torch.Tensor, weights: torch.Tensor, metadata: dict[str, Any]) -> None:
        """Both choices as sets; where they differ most, by the float32 scores of what only one of them holds.

        @param q: e4m3 [tokens, heads, 128]
        @param weights: float32 [tokens, heads]
        """
        step = metadata[indexer.k_cache.prefix]
        tokens = step.num_decode_tokens + step.num_prefill_tokens
        ours, vllms = (part.topk_indices_buffer[:tokens].long() for part in (indexer, indexer.vllms))
        entries = max(int(ours.max()), int(vllms.max()), 0) + 1
        by_ours, by_vllms = chosen_mask(ours, entries), chosen_mask(vllms, entries)
        only_ours, only_vllms = by_ours & ~by_vllms, by_vllms & ~by_ours
        differ = only_ours.sum(1)
        counts_differ = ((ours >= 0).sum(1) != (vllms >= 0).sum(1)).sum()
        self.notes.add("choice", calls=1, rows=tokens, chosen=(ours >= 0).sum(), differ=differ.sum())
        self.notes.raise_to("choice", counts_differ=counts_differ, most_of_a_row=differ.max())
        token = int(differ.argmax())
        if differ[token] > 0:
            scores = self._scores(indexer, token, entries, q, weights, metadata)
            gap = scores[only_vllms[token]].max() - scores[only_ours[token]].min()
            # Entries that neither could choose may hold anything.
            self.notes.raise_to("choice", largest_gap=gap / scores[by_ours[token] | by_vllms[token]].abs().max())

    def _scores(
        self, indexer: Any, token: int, entries: int, q: torch.Tensor, weights: torch.Tensor, metadata: dict[str, Any]
    ) -> torch.Tensor:
        """float32 [entries] of a token."""
        window, main = metadata[indexer._window], metadata[indexer._main]
        table = main.block_table[int(window.token_to_req_indices[token])].long()
        block = main.block_size // 4
        entry = torch.arange(entries, device=q.device)
        keys = row_values(row_bytes(indexer.k_cache.kv_cache, table[entry // block] * block + entry % block))
        return (torch.relu(q[token].float() @ keys.T) * weights[token][:, None]).sum(0)

    def _beside_insert(self) -> None:
        from sparsemla.vllm.layer import SparseMlaAttention
        from vllm.models.deepseek_v4.nvidia.flashmla import DeepseekV4FlashMLAAttention as Flash

        own_insert = SparseMlaAttention._fused_qnorm_rope_kv_insert
        check = self

        def insert(self: Any, q: Any, kv: Any, positions: Any, metadata: Any) -> torch.Tensor:
            made = own_insert(self, q, kv, positions, metadata)
            if not isinstance(metadata, dict):
                return made
            compared = not recording()
            if compared:
                cache = self.swa_cache_layer.kv_cache
                slots = metadata[self.swa_cache_layer.prefix].slot_mapping
                slots = slots[slots >= 0]
                ours = row_bytes(cache, slots)
            self.__dict__[READY_QUERIES] = Flash._fused_qnorm_rope_kv_insert(self, q, kv, positions, metadata)
            if compared:
                check._compare_rows("insert", ours, row_bytes(cache, slots))
            return made

        SparseMlaAttention._fused_qnorm_rope_kv_insert = insert

    def _beside_compressors(self) -> None:
        from sparsemla.vllm.layer import SparseMlaCompressor
        from vllm.models.deepseek_v4.compressor import DeepseekCompressor

        own_forward = SparseMlaCompressor.forward
        check = self

        def forward(self: Any, kv_score: Any, positions: Any, rotary_emb: Any) -> None:
            own_forward(self, kv_score, positions, rotary_emb)
            metadata = step_metadata()
            if metadata is None or recording():
                return
            entry_slots, state_slots = (
                metadata[name].slot_mapping for name in (self.k_cache_prefix, self.state_cache.prefix)
            )
            tokens = min(entry_slots.shape[0], state_slots.shape[0])
            entry_slots, state_slots = entry_slots[:tokens], state_slots[:tokens]
            slots = entry_slots[(entry_slots >= 0) & (state_slots >= 0)]
            states = state_slots[state_slots >= 0]
            cache = self._static_forward_context[self.k_cache_prefix].kv_cache
            state = self.state_cache.kv_cache
            place = states // state.shape[1], states % state.shape[1]
            ours, our_state = row_bytes(cache, slots), state[place].clone()
            DeepseekCompressor.forward(self, kv_score, positions, rotary_emb)
            what = f"{self.head_dim} ratio {self.compress_ratio}"
            check.notes.add(f"state {what}", calls=1)
            check.notes.raise_to(
                f"state {what}", largest=(our_state - state[place]).abs().max() if len(states) else 0.0
            )
            if len(slots):
                check._compare_rows(f"entries {what}", ours, row_bytes(cache, slots))

        SparseMlaCompressor.forward = forward

    def _beside_projection(self) -> None:
        from sparsemla.vllm.layer import SparseMlaAttention
        from vllm.models.deepseek_v4.nvidia.flashmla import DeepseekV4FlashMLAAttention as Flash

        own_projection = SparseMlaAttention._o_proj
        check = self

        def project(self: Any, o: Any, positions: Any) -> torch.Tensor:
            made = own_projection(self, o, positions)
            if step_metadata() is not None and not recording():
                vllms = Flash._o_proj(self, o, positions)
                check.notes.add("output projection", calls=1)
                check.notes.raise_to("output projection", l2=relative_l2(made, vllms))
            return made

        SparseMlaAttention._o_proj = project

    def _beside_index_queries(self) -> None:
        from sparsemla.vllm import takeover

        own_maker = takeover.index_queries_or_vllms
        check = self

        def maker(vllms: Any, kernels: Any) -> Any:
            ours = own_maker(vllms, kernels)

            def quantise(*args: Any, **kwargs: Any) -> Any:
                codes, weights = ours(*args, **kwargs)
                if not recording():
                    vllms_codes, vllms_weights = vllms(*args, **kwargs)
                    check.notes.add("index queries", calls=1, rows=codes.shape[0])
                    check.notes.raise_to(
                        "index queries",
                        codes_l2=relative_l2(
                            codes.float() * weights[..., None], vllms_codes.float() * vllms_weights[..., None]
                        ),
                        weights_l2=relative_l2(weights, vllms_weights),
                    )
                return codes, weights

            quantise.__dict__["sparsemla"] = True  # the mark that the plugin looks for
            return quantise

        takeover.index_queries_or_vllms = maker
