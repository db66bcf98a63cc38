#!/usr/bin/env python3
"""Checks and times of the plugin in vLLM's engine, on a small DeepSeek-V4 of random weights; docs/vllm.md has results.

    pip install vllm==0.24.0 sparsemla
    python python/bench/vllm check --mode full --own 1 --graphs 1
    python python/bench/vllm times --csv build/vllm_times.csv

`check`: 32 requests of 1 to 10,100 tokens run twice; each attention call is computed here, by FlashMLA and, for sampled
rows, in float32, and each other step that the mode takes over beside vLLM's own kernel. `times`: GPU time of decode
steps, of their attention layers and of a prefill with FLASHMLA and with the plugin's modes in one engine, by torch's
profiler. `serve`: requests over HTTP. The last line is PASS or FAIL with what failed, which the exit status 0 or 1
says as well.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path

from options import arguments

from engine import prepare_environment


def main() -> int:
    args = arguments()
    begin = time.time()
    for file in filter(None, (args.json, getattr(args, "csv", None), getattr(args, "layers_csv", None))):
        Path(file).parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sparsemla-vllm-") as name:
        folder = Path(name)
        prepare_environment(args, folder)
        try:
            # Only now: these import torch and vLLM, which read the environment.
            if args.command == "check":
                from check import run
            elif args.command == "serve":
                from serve import run
            else:
                from times import run
            results, faults = run(args, folder)
            if args.json:
                Path(args.json).write_text(json.dumps({"args": vars(args), "faults": faults, **results}))
        except Exception as error:
            traceback.print_exc()
            faults = [f"{type(error).__name__}: {error}"]
    verdict = f"FAIL {args.command}: {'; '.join(faults)}" if faults else f"PASS {args.command}"
    print(f"{verdict} ({time.time() - begin:.1f} s)", flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # the engine's threads need not be waited for
