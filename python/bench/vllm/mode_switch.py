"""FLASHMLA and the plugin's modes in one engine, one after the other, each with CUDA graphs of its own.

The engine is built in mode full. A mode puts vLLM's own methods back where it takes nothing over, so that its kernels
are those of an engine that was started in it.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from vllms_indexer import own_indexer

from engine import layers_of, runner_of


class ModeSwitch:
    """install() before the engine is built, attach() after it, then use()."""

    def install(self) -> None:
        """Makes layers that can be switched, and keeps what vLLM's own are."""
        from sparsemla.vllm.layer import SparseMlaAttention, SparseMlaIndexer
        from vllm.forward_context import get_forward_context
        from vllm.models.deepseek_v4 import attention
        from vllm.models.deepseek_v4.nvidia.flashmla import DeepseekV4FlashMLAAttention as Flash

        # 64 or 128 heads in all modes, as FlashMLA takes them.
        SparseMlaAttention.get_padded_num_q_heads = Flash.get_padded_num_q_heads
        vllms_indexer = attention.SparseAttnIndexer
        init, forward, forward_mqa = SparseMlaIndexer.__init__, SparseMlaIndexer.forward, SparseMlaAttention.forward_mqa

        def profiling() -> bool:
            return not isinstance(get_forward_context().attn_metadata, dict)

        def init_both(self: Any, kernels: Any, most_entries: int, k_cache: Any, k: int, choice: Any) -> None:
            init(self, kernels, most_entries, k_cache, k, choice)
            self.__dict__["vllms"] = own_indexer(vllms_indexer, k_cache, k, most_entries, choice)

        # In a profile run vLLM's own take their workspaces, too.
        def forward_both(self: Any, hidden_states: Any, q_quant: Any, k: Any, weights: Any) -> Any:
            if profiling():
                self.vllms(hidden_states, q_quant, k, weights)
            return forward(self, hidden_states, q_quant, k, weights)

        def forward_mqa_both(self: Any, q: Any, kv: Any, positions: Any, output: Any) -> None:
            if profiling():
                Flash.forward_mqa(self, q, kv, positions, output)
            forward_mqa(self, q, kv, positions, output)

        SparseMlaIndexer.__init__, SparseMlaIndexer.forward = init_both, forward_both
        SparseMlaAttention.forward_mqa = forward_mqa_both
        self._vllms_index_queries = attention.fused_indexer_q_rope_quant
        self._forward_mqa = forward_mqa_both
        self._insert = SparseMlaAttention._fused_qnorm_rope_kv_insert
        self._project = SparseMlaAttention._o_proj

    def attach(self, llm: Any) -> None:
        """Takes the engine's layers, which are in mode full."""
        from vllm.models.deepseek_v4 import attention

        self._layers = layers_of(llm)
        self._indexers = {id(at): at.indexer.indexer_op for at in self._layers if at.indexer is not None}
        self._index_queries = attention.fused_indexer_q_rope_quant
        self._may_leave_prefill = {id(at): at._may_leave_prefill for at in self._layers}

    def use(self, mode: str) -> None:
        """The next steps run in one of TIMED_MODES; recorded graphs stay as they are."""
        from sparsemla.vllm.layer import SparseMlaCompressor
        from sparsemla.vllm.settings import Mode, read_settings
        from vllm.models.deepseek_v4 import attention
        from vllm.models.deepseek_v4.compressor import DeepseekCompressor
        from vllm.models.deepseek_v4.nvidia.flashmla import DeepseekV4FlashMLAAttention as Flash

        full, flash = mode == "full", mode == "flashmla"
        attention.fused_indexer_q_rope_quant = self._index_queries if full else self._vllms_index_queries
        layer_class = type(self._layers[0])
        settings = read_settings()
        attention_alone = mode in ("flashmla", "own")
        layer_class.settings = dataclasses.replace(
            settings, mode=Mode.ATTENTION if attention_alone else Mode(mode), own=settings.own or mode == "own"
        )
        layer_class.forward_mqa = Flash.forward_mqa if flash else self._forward_mqa
        layer_class._o_proj = self._project if full else Flash._o_proj
        layer_class._fused_qnorm_rope_kv_insert = self._insert if full else Flash._fused_qnorm_rope_kv_insert
        for layer in self._layers:
            layer._may_leave_prefill = self._may_leave_prefill[id(layer)] and layer.settings.leaves_prefill()
            indexer = layer.indexer
            for compressor in (layer.compressor, None if indexer is None else indexer.compressor):
                if compressor is not None:
                    compressor.__class__ = SparseMlaCompressor if full else DeepseekCompressor
            if indexer is not None:
                ours = self._indexers[id(layer)]
                indexer._modules["indexer_op"] = ours if mode in ("indexer", "full") else ours.vllms


class ModeGraphs:
    """A set of recorded graphs for each mode."""

    def __init__(self, llm: Any, switch: ModeSwitch) -> None:
        from vllm.compilation.breakable_cudagraph import BreakableCUDAGraphWrapper

        self._switch, self._runner = switch, runner_of(llm)
        self._wrapper_class = BreakableCUDAGraphWrapper
        if not self._wrappers():
            raise RuntimeError("no breakable graphs: VLLM_USE_BREAKABLE_CUDAGRAPH must be 1 before vLLM is imported")
        # The engine's first graphs are kept: the memory pool of all graphs must stay in use.
        self.first = [wrapper.entries for wrapper in self._wrappers()]
        self._sets: dict[str, dict[int, Any]] = {}

    def _wrappers(self) -> list[Any]:
        return list(self._wrapper_class._all_instances)

    def use(self, mode: str) -> None:
        """Switches to a mode; its graphs are recorded the first time."""
        self._switch.use(mode)
        for wrapper in self._wrappers():
            wrapper.entries = self._sets.get(mode, {}).get(id(wrapper), {})
        if mode not in self._sets:
            begin = time.time()
            self._runner.capture_model()
            self._sets[mode] = {id(wrapper): wrapper.entries for wrapper in self._wrappers()}
            print(f"graphs of mode {mode} recorded in {time.time() - begin:.1f} s", flush=True)
