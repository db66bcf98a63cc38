"""What a profile's kernels mean: times of attention and of the path around it, for modes that ran the same steps."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class Kernel(NamedTuple):
    """Launches of one kernel in a step, and their time."""

    launches: float
    us: float


Profile = Mapping[str, Kernel]
"""Kernel's name -> what it took."""


class Launch(NamedTuple):
    """One launch of a kernel: its stream's number, and when it began and ended in microseconds."""

    name: str
    stream: int
    begin: float
    end: float


ATTENTION = ("flash_fwd", "sparse_attn_fwd", "get_mla_metadata", "_combine_topk", "dequant", "_compute_global_topk")
"""Parts of vLLM's names: attention, its planner, the gather of rows and the translation of the choice."""

OWN_ATTENTION = {
    *("attend", "attend_hopper", "attend_small", "merge", "merge_by_length"),
    *("mark_rows", "count_rows", "rank_blocks", "list_rows", "widen_rows", "global_rows"),
}
"""The same among this library's kernels, by the functions' names."""

OWN_KERNEL = re.compile(r"(?:void )?smla::(?:\w+::|\(anonymous namespace\)::)*(\w+)")

PATH = (
    *ATTENTION,
    "smla::",
    *("QNormRopeKVRope", "CompressNormRope", "SparseAttnCompress", "SparseAttnNormRope"),
    *("_save_partial_states", "_fused_kv_compress", "IndexerQ", "mqa_logits", "gather_indexer"),
    *("topk_cs", "persistent_topk", "cooperative_topk", "top_k_per_row"),
    *("_compute_swa", "_build_c128a", "_compressed_slot", "_build_prefill", "_compute_prefill"),
    *("_fused_inv_rope", "einsum", "bhr"),
)
"""Parts of names: attention, index building, inserts, compressors, indexer, inverse RoPE."""

GROUPED_PRODUCT = re.compile(r"sm90_fp8_gemm_1d2d\w*<[^,]*, \d+u?, 1024u?, 4096u?, (8|16)u?,")
"""DeepGEMM's product of wo_a: 1024 outputs, 4096 inputs, 8 or 16 groups."""


@dataclass(frozen=True)
class StepTime:
    """Microseconds of a step on the GPU; `busy` is that of all kernels."""

    attention: float
    path: float
    busy: float
    launches: float


def profile_of(launches: Iterable[Launch], steps: int = 1) -> Profile:
    """What each kernel took, for each of `steps` steps.

    A kernel that is launched before the one ahead of it in its stream has ended (PDL) waits for that one: its time
    begins where that one ended.
    """
    taken: dict[str, list[float]] = {}
    ended: dict[int, float] = {}
    for launch in sorted(launches, key=lambda launch: (launch.begin, launch.end)):
        begin = max(launch.begin, ended.get(launch.stream, launch.begin))
        ended[launch.stream] = max(launch.end, begin)
        sums = taken.setdefault(launch.name, [0, 0.0])
        sums[0] += 1
        sums[1] += max(launch.end - begin, 0.0)
    return {name: Kernel(count / steps, us / steps) for name, (count, us) in taken.items()}


def is_attention(name: str) -> bool:
    own = OWN_KERNEL.match(name)
    return own[1] in OWN_ATTENTION if own else any(part in name for part in ATTENTION)


def is_path(name: str) -> bool:
    return any(part in name for part in PATH) or GROUPED_PRODUCT.search(name) is not None


def step_times(profiles: Mapping[str, Profile]) -> dict[str, StepTime]:
    """Times of each mode.

    The path is the kernels that are known by name and, of others, the share of launches that a mode has beyond the mode
    with the fewest: products of the output projection that have a general kernel's name.
    """
    names = {name for profile in profiles.values() for name in profile}
    fewest = {name: min(p[name].launches if name in p else 0 for p in profiles.values()) for name in names}
    return {
        mode: StepTime(
            attention=sum(kernel.us for name, kernel in profile.items() if is_attention(name)),
            path=sum(
                kernel.us if is_path(name) else kernel.us * (kernel.launches - fewest[name]) / kernel.launches
                for name, kernel in profile.items()
            ),
            busy=sum(kernel.us for kernel in profile.values()),
            launches=sum(kernel.launches for kernel in profile.values()),
        )
        for mode, profile in profiles.items()
    }


def table(what: str, times: Mapping[str, StepTime]) -> str:
    """A line for each mode; ratios are vLLM's own to it."""
    base = times.get("flashmla")
    lines = []
    for mode, time in times.items():
        line = (
            f"{what:24s} {mode:9s} attention {time.attention:8.1f} us, path {time.path:8.1f}, "
            f"all {time.busy:8.1f} in {time.launches:.0f} launches"
        )
        if base is not None:
            ratios = base.attention / max(time.attention, 1e-9), base.path / max(time.path, 1e-9)
            line += f"; attention {ratios[0]:.2f}x, path {ratios[1]:.2f}x less"
        lines.append(line)
    return "\n".join(lines)


COLUMNS = ("step", "heads", "requests_or_tokens", "mode", "attention_us", "path_us", "gpu_us", "launches")


def csv_rows(step: str, heads: int, size: int, times: Mapping[str, StepTime]) -> list[tuple[str, ...]]:
    """Rows of COLUMNS. @param size: requests of a decode step, tokens of a prefill"""
    return [
        (
            *(step, str(heads), str(size), mode),
            *(f"{us:.1f}" for us in (time.attention, time.path, time.busy)),
            f"{time.launches:.0f}",
        )
        for mode, time in times.items()
    ]


def append_csv(path: Path, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Adds rows; a new file begins with the columns' names."""
    begin = [] if path.exists() else [columns]
    with path.open("a", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([*begin, *rows])
