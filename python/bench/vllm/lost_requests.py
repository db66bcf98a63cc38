#!/usr/bin/env python3
"""Whether vLLM's scheduler ends all requests after it preempted them, without a model: outputs are made up.

    python python/bench/vllm/lost_requests.py --drafts 1

A trial has four requests of 12 tokens, which are preempted in the middle, as `reset_prefix_cache` does it. Printed is
in how many trials a request never ended, by the share of drafts that are accepted. vLLM 0.24.0 needs a GPU for its
configuration alone; nothing runs on it.
"""

from __future__ import annotations

import argparse
import logging
import random
import tempfile
from pathlib import Path
from typing import Any

from small_model import small_config, write_model

TOKENS, MOST_STEPS = 12, 400
PROMPTS = (5, 100, 700, 1200)


def configuration(folder: Path, drafts: int, asynchronous: bool) -> Any:
    """vLLM's own, of the small model."""
    from vllm.engine.arg_utils import EngineArgs

    config = EngineArgs(
        model=write_model(folder, small_config((0, 4, 128), 64, "fp8")),
        skip_tokenizer_init=True,
        load_format="dummy",
        max_model_len=2048,
        max_num_seqs=len(PROMPTS),
        max_num_batched_tokens=512,
        kv_cache_dtype="fp8",
        block_size=256,
        enforce_eager=True,
        async_scheduling=asynchronous,
        kv_cache_memory_bytes=1 << 30,
        speculative_config={"method": "mtp", "num_speculative_tokens": drafts} if drafts else None,
    ).create_engine_config()
    config.cache_config.num_gpu_blocks = 1000
    return config


def new_scheduler(config: Any) -> Any:
    """The scheduler that the engine would have, over one plain cache."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    spec = FullAttentionSpec(block_size=256, num_kv_heads=1, head_size=64, dtype=torch.bfloat16)
    caches = KVCacheConfig(num_blocks=1000, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
    return config.scheduler_config.get_scheduler_cls()(
        vllm_config=config,
        kv_cache_config=caches,
        structured_output_manager=StructuredOutputManager(config),
        block_size=256,
        log_stats=False,
    )


def all_end(config: Any, seed: int, accepted: float, preempt: bool) -> bool:
    """One trial. @param accepted: the chance of each draft"""
    from vllm import SamplingParams
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
    from vllm.v1.request import Request

    hash_of = get_hash_fn_by_name("sha256")
    init_none_hash(hash_of)
    source, scheduler = random.Random(seed), new_scheduler(config)
    drafts, asynchronous = config.num_speculative_tokens, config.scheduler_config.async_scheduling
    sampling = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
    requests = [
        Request(f"{i}", list(range(2, 2 + source.choice(PROMPTS))), sampling, None, block_hasher=hasher)
        for i, hasher in enumerate([get_request_block_hasher(256, hash_of)] * len(PROMPTS))
    ]
    for request in requests:
        scheduler.add_request(request)
    preempt_at = source.randrange(4, 14) if preempt else 0
    flying: list[tuple[Any, set[str]]] = []  # steps whose outputs are to come, and requests that get tokens by them
    for step in range(1, MOST_STEPS):
        made = scheduler.schedule()
        if made.total_num_scheduled_tokens:
            going = {name for name in made.num_scheduled_tokens if not scheduler.requests[name].is_prefill_chunk}
            flying.append((made, going))
        if flying and (len(flying) > asynchronous or not made.total_num_scheduled_tokens):
            done, going = flying.pop(0)
            names = list(done.num_scheduled_tokens)
            tokens = []
            for name in names:
                given = len(done.scheduled_spec_decode_tokens.get(name, ()))
                kept = sum(source.random() < accepted for _ in range(given))
                tokens.append([7] * (1 + kept) if name in going else [])
            places = {name: i for i, name in enumerate(names)}
            scheduler.update_from_output(done, ModelRunnerOutput(names, places, tokens, None, {}, []))
            if drafts and not asynchronous:
                scheduler.update_draft_token_ids(DraftTokenIds(names, [[9] * drafts for _ in names]))
        if step == preempt_at:
            scheduler.reset_prefix_cache(reset_running_requests=True)
        if all(request.is_finished() for request in requests):
            return True
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--drafts", type=int, default=1, help="drafts of the MTP layer (default: %(default)s)")
    parser.add_argument("--trials", type=int, default=40, help="(default: %(default)s)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        for asynchronous in (True, False):
            config = configuration(Path(name) / "model", args.drafts, asynchronous)
            logging.disable(logging.CRITICAL)
            for preempt in (True, False):
                for accepted in (0.0, 0.3, 1.0) if args.drafts else (0.0,):
                    lost = sum(not all_end(config, seed, accepted, preempt) for seed in range(args.trials))
                    how = f"{'a' if asynchronous else ''}synchronous, {'' if preempt else 'not '}preempted"
                    print(f"{how}, {accepted:.0%} of drafts accepted: {lost} of {args.trials} trials lost a request")


if __name__ == "__main__":
    main()
