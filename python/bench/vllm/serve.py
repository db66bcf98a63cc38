"""The command `serve`: `vllm serve` with the plugin on, and requests of tokens through its HTTP interface."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from small_model import VOCABULARY, small_config, write_model
from workload import random_prompts

from engine import expose_plugin, extend_path

PROMPTS = (5, 200, 1500, 3000)
"""Tokens of the prompts; each is sent twice, the second time with its prefix in the cache."""

SENTENCE = "SparseMLA: version"
"""Begins what the plugin says in the log when it has taken something over."""


def command_line(args: argparse.Namespace, folder: Path) -> list[str]:
    """How the server is started."""
    switches = ["--enable-prefix-caching"] if args.prefix else ["--no-enable-prefix-caching"]
    switches += [] if args.graphs else ["--enforce-eager"]
    options: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": args.port,
        "served-model-name": "small",
        "load-format": "dummy",
        "max-model-len": args.max_len,
        "max-num-seqs": args.seqs,
        "max-num-batched-tokens": args.budget,
        "kv-cache-dtype": "fp8",
        "block-size": 256,
        "kv-cache-memory-bytes": args.kv_gib << 30,
        "gpu-memory-utilization": 0.5,
        "moe-backend": args.moe,
    }
    if args.graphs:
        options["max-cudagraph-capture-size"] = min(args.seqs, 16)
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    model = write_model(folder / "model", small_config(args.layers, args.heads, args.experts))
    start = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", model]
    return [*start, "--skip-tokenizer-init", "--tokens-only", *switches, *words]


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """Sends JSON and returns the answer's. @raises urllib.error.URLError: the server refuses"""
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        parsed: dict[str, Any] = json.load(answer)
    return parsed


def wait_until_up(url: str, server: subprocess.Popen[bytes], seconds: int) -> None:
    """@raises RuntimeError: the server has ended, or does not answer in time"""
    end = time.time() + seconds
    while time.time() < end:
        if server.poll() is not None:
            raise RuntimeError(f"vllm serve has ended with status {server.returncode}")
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    raise RuntimeError(f"vllm serve did not answer in {seconds} s")


def ask(url: str, args: argparse.Namespace, run: str) -> list[list[int]]:
    """Tokens of PROMPTS, one request after the other."""
    answers = []
    for prompt in random_prompts(PROMPTS, seed=5):
        begin = time.time()
        sampling = {"temperature": 0.0, "max_tokens": args.tokens, "ignore_eos": True}
        answer = post(
            f"{url}/inference/v1/generate",
            {"model": "small", "token_ids": prompt["prompt_token_ids"], "sampling_params": sampling},
        )
        answers.append(list(answer["choices"][0]["token_ids"]))
        length = len(prompt["prompt_token_ids"])
        print(f"{run}: {length} tokens, then {answers[-1]} in {time.time() - begin:.2f} s", flush=True)
    return answers


def faults_of(args: argparse.Namespace, answers: list[list[int]], log: str) -> list[str]:
    """What is wrong with answers and with the server's log, in words."""
    faults = []
    for index, tokens in enumerate(answers):
        if len(tokens) != args.tokens or not all(0 <= token < VOCABULARY for token in tokens):
            faults.append(f"answer {index}: got {tokens}, expected {args.tokens} tokens below {VOCABULARY}")
    if SENTENCE not in log:
        faults.append(f"the log has no line with {SENTENCE!r}")
    return faults


def run(args: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Results, and what failed."""
    extend_path(Path(__file__).parent)
    expose_plugin(folder, "weights", "worker_checks:register_weights")
    url, path = f"http://127.0.0.1:{args.port}", folder / "serve.log"
    answers: list[list[int]] = []
    begin = time.time()
    with path.open("wb") as log:
        server = subprocess.Popen(
            command_line(args, folder), stdout=log, stderr=subprocess.STDOUT, env=dict(os.environ)
        )
        try:
            wait_until_up(url, server, args.wait)
            print(f"server up in {time.time() - begin:.1f} s", flush=True)
            answers = ask(url, args, "first") + ask(url, args, "second")
        finally:
            server.terminate()
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
            text = path.read_text(errors="replace")
            print(text[-20000:], flush=True)
    return {"tokens": answers}, faults_of(args, answers, text)
