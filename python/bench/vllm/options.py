"""The command line: `check`, `serve` and `times`, their options and what of them the environment must hold."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

MODES = ("attention", "indexer", "full")
TIMED_MODES = ("flashmla", *MODES, "own")
"""vLLM's own FLASHMLA backend, modes of the plugin, and `attention` with SPARSEMLA_VLLM_OWN=1."""

WARM_STEPS, PROFILED_STEPS = 4, 4
"""Steps of a mode before its times are taken, and those under the profiler."""

DESCRIPTION = """Checks and times of the plugin in vLLM's engine (0.24.0, one GPU of sm_90), on a small DeepSeek-V4 of
random weights with V4-Flash's attention. vLLM and sparsemla are those that Python finds."""

REQUIRED = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process, where its steps can be looked at
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
}

PREFERRED = {
    "VLLM_DEEP_GEMM_WARMUP": "skip",
    "TILELANG_PRINT_ON_COMPILATION": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}
"""Settings that the caller's environment may overrule."""


def at_least(least: int) -> Callable[[str], int]:
    """A type of options. @raises argparse.ArgumentTypeError: a smaller number"""

    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"got {text}, expected {least} or more")
        return int(text)

    return number


def ratios(text: str) -> tuple[int, ...]:
    """Compress ratios separated by commas. @raises argparse.ArgumentTypeError: another than 0, 4, 128"""
    numbers = tuple(int(word) for word in text.split(","))
    for number in numbers:
        if number not in (0, 4, 128):
            raise argparse.ArgumentTypeError(f"got {number}, expected 0, 4 or 128")
    return numbers


def batches(text: str) -> tuple[int, ...]:
    """Counts separated by commas. @raises argparse.ArgumentTypeError: one is below 1"""
    return tuple(at_least(1)(word) for word in text.split(","))


def lengths(text: str) -> tuple[int, ...]:
    """Tokens separated by commas, each once. @raises argparse.ArgumentTypeError: one is below 0"""
    return tuple(dict.fromkeys(at_least(0)(word) for word in text.split(",")))


def timed_modes(text: str) -> tuple[str, ...]:
    """Modes separated by commas, each once. @raises argparse.ArgumentTypeError: another word."""
    words = tuple(dict.fromkeys(text.split(",")))
    for word in words:
        if word not in TIMED_MODES:
            raise argparse.ArgumentTypeError(f"got {word!r}, expected some of {', '.join(TIMED_MODES)}")
    return words


def _number(parser: argparse._ActionsContainer, name: str, default: int, text: str, least: int = 1) -> None:
    parser.add_argument(name, type=at_least(least), default=default, metavar="N", help=f"{text} (default: %(default)s)")


def _switch(parser: argparse._ActionsContainer, name: str, default: int, text: str) -> None:
    parser.add_argument(name, type=int, choices=(0, 1), default=default, help=f"{text} (default: %(default)s)")


def _add_engine(parser: argparse.ArgumentParser, budget: int) -> None:
    """Options of both commands."""
    group = parser.add_argument_group("the model and its engine")
    _number(group, "--heads", 64, "attention heads, a multiple of 8")
    group.add_argument(
        "--layers",
        type=ratios,
        default=(0, 4, 128, 4, 128),
        metavar="RATIOS",
        help="compress ratio of each layer, 0 for window attention (default: 0,4,128,4,128)",
    )
    group.add_argument("--experts", default="fp8", help="format of the experts, fp8 or fp4 (default: %(default)s)")
    group.add_argument("--moe", default="triton", help="vLLM's backend of the experts (default: %(default)s)")
    _number(group, "--budget", budget, "tokens of a step at most")
    _number(group, "--seqs", 32, "requests of a step at most")
    _number(group, "--max-len", 10752, "tokens of a request at most")
    _number(group, "--kv-gib", 8, "GiB of the caches")
    group.add_argument(
        "--async-sched",
        type=int,
        choices=(0, 1),
        help="vLLM's asynchronous scheduling (default: 1; 0 where requests with drafts are preempted)",
    )
    group = parser.add_argument_group("the plugin")
    _switch(group, "--own", 0, "SPARSEMLA_VLLM_OWN: nothing is left to FlashMLA and DeepGEMM")
    _switch(group, "--portable", 0, "SPARSEMLA_VLLM_PORTABLE")
    _switch(group, "--deterministic", 0, "SPARSEMLA_VLLM_DETERMINISTIC")
    parser.add_argument("--json", metavar="FILE", help="write all results to this file")


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; `words` without the program's name. Exits with 2 where it is wrong."""
    parser = argparse.ArgumentParser(prog="python python/bench/vllm", description=DESCRIPTION)
    commands = parser.add_subparsers(dest="command", required=True)

    check = commands.add_parser("check", help="each call of attention beside FlashMLA's and float32")
    check.add_argument("--mode", choices=MODES, default="attention", help="SPARSEMLA_VLLM (default: %(default)s)")
    _switch(check, "--graphs", 0, "FULL and breakable CUDA graphs instead of the eager engine")
    _switch(check, "--prefix", 1, "the prefix cache")
    _switch(check, "--preempt", 1, "preempt all running requests once")
    _number(check, "--tokens", 12, "tokens that a request generates")
    _number(check, "--drafts", 0, "drafts of the MTP layer", least=0)
    _number(check, "--tp", 1, "GPUs of tensor parallel")
    check.add_argument(
        "--processes",
        choices=("none", "fork", "spawn"),
        default="none",
        help="how the engine gets a process of its own; then nothing is preempted (default: %(default)s)",
    )
    _switch(check, "--peers", 1, "0 for a vLLM without FlashMLA, DeepGEMM and CuTe DSL: float32 alone is compared with")
    _add_engine(check, budget=512)

    serve = commands.add_parser("serve", help="`vllm serve`: requests of tokens through its HTTP interface")
    serve.add_argument("--mode", choices=MODES, default="attention", help="SPARSEMLA_VLLM (default: %(default)s)")
    _switch(serve, "--graphs", 1, "FULL and breakable CUDA graphs instead of the eager engine")
    _switch(serve, "--prefix", 1, "the prefix cache")
    _number(serve, "--tokens", 12, "tokens that a request generates")
    _number(serve, "--port", 8765, "the server's port")
    _number(serve, "--wait", 180, "seconds until the server must answer")
    _add_engine(serve, budget=512)

    times = commands.add_parser("times", help="GPU time of decode steps and of a prefill in each mode")
    times.add_argument(
        "--modes",
        type=timed_modes,
        default=("flashmla", "attention", "full"),
        metavar="MODES",
        help=f"some of {','.join(TIMED_MODES)} (default: flashmla,attention,full)",
    )
    times.add_argument(
        "--batches",
        type=batches,
        default=(1, 16, 64, 128),
        metavar="COUNTS",
        help="requests of decode steps (default: 1,16,64,128)",
    )
    _number(times, "--context", 2048, "tokens of each request before decode")
    times.add_argument(
        "--prefills",
        type=batches,
        default=(),
        metavar="COUNTS",
        help="tokens of the prefills, each at most --budget (default: --context)",
    )
    times.add_argument(
        "--past",
        type=lengths,
        default=(0,),
        metavar="COUNTS",
        help="tokens of the prompt before those of --prefills, multiples of --budget (default: 0)",
    )
    _number(times, "--steps", 16, "steps whose waiting time is taken")
    times.add_argument("--csv", metavar="FILE", help="add rows to this file; a new one begins with the columns' names")
    times.add_argument(
        "--layers-csv",
        metavar="FILE",
        help="add rows of whole attention layers of the decode steps to this file, hyper-connections left out",
    )
    _add_engine(times, budget=2048)

    args = parser.parse_args(words)
    if args.heads % 8:
        parser.error(f"--heads: got {args.heads}, expected a multiple of 8")
    if args.command == "check":
        if not args.peers and (args.tp > 1 or args.processes != "none"):
            parser.error("--peers: got 0, expected 1 with --tp or --processes")
        if args.processes != "none":
            args.preempt = 0  # the scheduler is in the other process
    if args.async_sched is None:
        # vLLM 0.24.0 drops num_output_placeholders frames after a preemption; with drafts these are more than it made.
        args.async_sched = int(not (args.command == "check" and args.drafts and args.preempt))
    if args.command == "times":
        args.mode, args.graphs, args.prefix = "full", 1, 0
        args.seqs = max(args.seqs, *args.batches)
        if any(past % args.budget for past in args.past):
            parser.error(f"--past: got {args.past}, expected multiples of --budget, which is {args.budget}")
        if any(args.past) and (args.async_sched or not args.prefills):
            parser.error("--past: expected --prefills, and --async-sched 0, whose steps end one by one")
        if args.prefills and max(args.prefills) > args.budget:
            parser.error(f"--prefills: got {max(args.prefills)}, expected at most --budget, which is {args.budget}")
        if max(args.past) + max(args.prefills, default=0) >= args.max_len:
            parser.error(f"--max-len: got {args.max_len}, expected more for these --prefills after --past")
        longest = longest_decode(args)
        if longest > args.max_len:
            parser.error(f"--max-len: got {args.max_len}, expected at least {longest} for this context and these steps")
    return args


def longest_decode(args: argparse.Namespace) -> int:
    """Tokens of the request that is first when the last mode is timed: it decodes while others are prefilled."""
    prefills = max(args.batches) * -(-args.context // args.budget)
    return args.context + prefills + len(args.modes) * (WARM_STEPS + args.steps + PROFILED_STEPS) + 1


def settings_of(args: argparse.Namespace) -> dict[str, str]:
    """The variables that must be set before vLLM is imported."""
    variables = {
        **REQUIRED,
        "SPARSEMLA_VLLM": args.mode,
        "SPARSEMLA_VLLM_OWN": str(args.own),
        "SPARSEMLA_VLLM_PORTABLE": str(args.portable),
        "SPARSEMLA_VLLM_DETERMINISTIC": str(args.deterministic),
    }
    if args.graphs:
        variables["VLLM_USE_BREAKABLE_CUDAGRAPH"] = "1"  # vLLM sets it too late for an engine in this process
    processes = getattr(args, "processes", "none")
    if getattr(args, "tp", 1) > 1 or processes != "none":
        # Functions of the checks go to the other processes.
        variables |= {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1", "NCCL_NVLS_ENABLE": "0"}
        variables["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn" if processes == "none" else processes
    if processes != "none" or args.command == "serve":
        variables["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
    return variables
