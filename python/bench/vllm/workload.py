"""Prompts of random tokens, and requests that are run step by step."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from small_model import VOCABULARY

from engine import core_of

Prompt = dict[str, list[int]]

LENGTHS = (
    *(1, 5, 63, 64, 65, 127, 128, 129, 130, 255, 256, 257, 300, 511, 512, 513),
    *(640, 777, 1023, 1025, 1500, 1700, 2047, 2048, 2100, 2600, 3000, 4096, 5000, 8300, 9000, 10100),
)
"""Tokens of the prompts of a check: around blocks, windows, entries and chunks."""

SHARED = 1536
"""Tokens that every second prompt begins with, where it is longer."""

MOST_STEPS = 4000


def _random_tokens(source: random.Random, count: int) -> list[int]:
    return [source.randrange(2, VOCABULARY) for _ in range(count)]


def random_prompts(lengths: Sequence[int], seed: int) -> list[Prompt]:
    """Prompts that have nothing in common."""
    source = random.Random(seed)
    return [{"prompt_token_ids": _random_tokens(source, length)} for length in lengths]


def mixed_prompts() -> list[Prompt]:
    """The prompts of a check, of LENGTHS; some begin with the same tokens."""
    source = random.Random(11)
    shared = _random_tokens(source, SHARED)
    prompts = []
    for index, length in enumerate(LENGTHS):
        own = _random_tokens(source, length)
        prompts.append({"prompt_token_ids": shared + own[SHARED:] if length > SHARED and index % 2 == 0 else own})
    return prompts


def greedy(tokens: int) -> Any:
    """vLLM's sampling parameters: exactly so many tokens, the likeliest each time."""
    from vllm import SamplingParams

    return SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)


@dataclass
class Run:
    """What became of requests that ran together."""

    tokens: list[list[int]]
    steps: int
    cached: int  # prompt tokens that the prefix cache had
    preempted: int  # requests


def run_requests(llm: Any, prompts: Sequence[Prompt], tokens: int, name: str, preempt_at: int | None = None) -> Run:
    """All requests at once to their end; before step `preempt_at` + 1 those that run are preempted and forgotten.

    @raises RuntimeError: they do not end in MOST_STEPS steps
    """
    engine = llm.llm_engine
    begin = time.time()
    made: dict[str, list[int]] = {}
    steps = cached = preempted = 0
    for index, prompt in enumerate(prompts):
        engine.add_request(f"{name}{index}", prompt, greedy(tokens))
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                made[output.request_id] = list(output.outputs[0].token_ids)
                cached += output.num_cached_tokens or 0
        steps += 1
        if steps == preempt_at:
            scheduler = core_of(llm).scheduler
            preempted = len(scheduler.running)
            scheduler.reset_prefix_cache(reset_running_requests=True)
        if steps > MOST_STEPS:
            raise RuntimeError(f"run {name}: requests have not ended after {steps} steps")
    print(
        f"run {name}: {len(prompts)} requests, {steps} steps, {cached} prompt tokens from the prefix cache, "
        f"{preempted} requests preempted, {time.time() - begin:.1f} s",
        flush=True,
    )
    return Run([made[f"{name}{index}"] for index in range(len(prompts))], steps, cached, preempted)
