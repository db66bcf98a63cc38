"""The command `times`: GPU time of decode steps, of their attention layers and of a prefill, by mode in one engine."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from kernel_times import COLUMNS, Launch, Profile, append_csv, csv_rows, profile_of, step_times, table
from layer_times import COLUMNS as LAYER_COLUMNS
from layer_times import attention_layers, layer_rows, layer_table, times_by_kind
from mode_switch import ModeGraphs, ModeSwitch
from options import PROFILED_STEPS, WARM_STEPS
from workload import greedy, random_prompts

from engine import build_engine, describe


def profiled(run: Callable[[], Any]) -> list[Launch]:
    """Kernels and copies of `run`, by torch's profiler."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    return launches_of(profiler)


def launches_of(profiler: Any) -> list[Launch]:
    """The kernels and copies of a torch.profiler.profile."""
    return [
        Launch(event.name, event.device_resource_id, event.time_range.start, event.time_range.end)
        for event in profiler.events()
        if str(event.device_type).endswith("CUDA")
    ]


def run_steps(engine: Any, count: int) -> None:
    for _ in range(count):
        engine.step()


def time_decode(engine: Any, graphs: ModeGraphs, batch: int, args: argparse.Namespace) -> dict[str, Any]:
    """Decode steps of `batch` requests of args.context tokens and those since: profiles, times of whole attention
    layers and waiting time by mode."""
    names = [f"decode {batch} {index}" for index in range(batch)]
    begin = time.time()
    graphs.use(args.modes[0])
    for name, prompt in zip(names, random_prompts([args.context] * batch, seed=batch)):
        engine.add_request(name, prompt, greedy(args.max_len - args.context - 1))
    started: set[str] = set()
    while len(started) < batch:
        started |= {output.request_id for output in engine.step()}
    torch.cuda.synchronize()
    prefill = time.time() - begin
    profiles: dict[str, Profile] = {}
    layers, wall = {}, {}
    for mode in args.modes:
        graphs.use(mode)
        run_steps(engine, WARM_STEPS)
        torch.cuda.synchronize()
        begin = time.perf_counter()
        run_steps(engine, args.steps)
        torch.cuda.synchronize()
        wall[mode] = (time.perf_counter() - begin) / args.steps * 1e6
        launches = profiled(lambda: run_steps(engine, PROFILED_STEPS))
        profiles[mode] = profile_of(launches, PROFILED_STEPS)
        layers[mode] = times_by_kind(attention_layers(launches), args.layers)
    engine.abort_request(names)
    run_steps(engine, 3)
    print(table(f"decode {batch} x {args.context}", step_times(profiles)))
    for mode, kinds in layers.items():
        print(layer_table(mode, batch, args.context, kinds))
    waits = ", ".join(f"{mode} {us:.0f}" for mode, us in wall.items())
    print(f"  waiting time of a step in us: {waits}; prefill of all {prefill:.1f} s", flush=True)
    return {"kernels": profiles, "layers": layers, "wall_us": wall}


def time_prefill(
    engine: Any, graphs: ModeGraphs, args: argparse.Namespace, tokens: int, past: int = 0
) -> dict[str, Any]:
    """The second prefill of `tokens` tokens, or those of a prompt after its first `past`: profiles by mode."""
    prompt = random_prompts([past + tokens], seed=99)[0]

    def run_to_end() -> None:
        while engine.has_unfinished_requests():
            engine.step()

    profiles = {}
    for mode in args.modes:
        graphs.use(mode)
        for last in (False, True):
            engine.add_request(f"prefill {mode} {past} {tokens} {last}", prompt, greedy(1))
            run_steps(engine, past // args.budget)
            if last:
                profiles[mode] = profile_of(profiled(run_to_end))
            else:
                run_to_end()
    print(table(f"prefill of {tokens}" + (f" after {past}" if past else ""), step_times(profiles)), flush=True)
    return {"kernels": profiles}


def run(args: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Results, and what failed: nothing, for times have no verdict."""
    switch = ModeSwitch()
    switch.install()
    llm = build_engine(args, folder, compilation_config={"cudagraph_capture_sizes": sorted(set(args.batches))})
    describe(llm)
    switch.attach(llm)
    graphs, engine = ModeGraphs(llm, switch), llm.llm_engine
    for mode in args.modes:
        graphs.use(mode)

    def keep(step: str, size: int, found: dict[str, Any]) -> dict[str, Any]:
        rows.extend(csv_rows(step, args.heads, size, step_times(found["kernels"])))
        if args.csv:
            append_csv(Path(args.csv), COLUMNS, rows[-len(args.modes) :])
        for mode, kinds in found.get("layers", {}).items():
            found_rows = layer_rows(args.heads, size, args.context, mode, kinds)
            layer_times.extend(found_rows)
            if args.layers_csv:
                append_csv(Path(args.layers_csv), LAYER_COLUMNS, found_rows)
        return found

    rows: list[tuple[str, ...]] = []
    layer_times: list[tuple[str, ...]] = []
    prefills = [
        keep(f"prefill after {past}" if past else "prefill", tokens, time_prefill(engine, graphs, args, tokens, past))
        for past in args.past
        for tokens in args.prefills or (args.context,)
    ]
    decode = {batch: keep("decode", batch, time_decode(engine, graphs, batch, args)) for batch in args.batches}
    return {"rows": rows, "layers": layer_times, "decode": decode, "prefills": prefills}, []
