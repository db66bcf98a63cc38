"""What a call takes: on a GPU what it adds to a CUDA graph behind a kernel that reads four times L2."""

from __future__ import annotations

import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

TIMES_L2 = 4
LEAST_SWEPT_BYTES = 64 << 20
PRODUCT = 8192
COPY_BYTES = 1 << 30
CEILING_RUNS = 10


@dataclass(frozen=True)
class Time:
    """Microseconds: the median, and the tenth and ninetieth of a hundred samples."""

    us: float
    p10: float
    p90: float

    @staticmethod
    def of(samples: Sequence[float], base: float) -> Time:
        ordered, last = sorted(samples), len(samples) - 1
        low, high = ordered[round(0.1 * last)], ordered[round(0.9 * last)]
        return Time(statistics.median(ordered) - base, low - base, high - base)


@dataclass(frozen=True)
class Recording:
    """A recorded call: `replay` starts it and waits for its end; `graph` is what a GPU replays."""

    replay: Callable[[], Any]
    graph: torch.cuda.CUDAGraph | None = None


Sides = Mapping[str, Sequence[Recording]]
"""The recordings of each side, one for each set of inputs."""


class Clock(ABC):
    """Records calls and takes their times, those of several sides in turn."""

    device: str

    @abstractmethod
    def stream(self) -> int:
        """What calls are queued on: a cudaStream_t, 0 on a CPU."""

    @abstractmethod
    def record(self, call: Callable[[], Any]) -> Recording:
        """The call as something that can be started again and again."""

    @abstractmethod
    def measure(self, sides: Sides, runs: int) -> dict[str, Time]:
        """The time of each side; its recordings take turns, and sides alternate."""


class WallClock(Clock):
    """Of a CPU: for trying the tool out."""

    device = "cpu"

    def stream(self) -> int:
        return 0

    def record(self, call: Callable[[], Any]) -> Recording:
        return Recording(call)

    def measure(self, sides: Sides, runs: int) -> dict[str, Time]:
        samples: dict[str, list[float]] = {name: [] for name in sides}
        for i in range(runs):
            for name, recordings in sides.items():
                begin = time.perf_counter()
                recordings[i % len(recordings)].replay()
                samples[name].append((time.perf_counter() - begin) * 1e6)
        return {name: Time.of(taken, 0.0) for name, taken in samples.items()}


class GraphClock(Clock):
    """Of a GPU. A sample is the time of a graph of sweep and call, less the median of the graph of the sweep alone.

    Before every sample the sweep runs twice: once to empty L2 of what is still to be written, once to be measured.
    """

    device = "cuda"

    def __init__(self) -> None:
        swept = max(LEAST_SWEPT_BYTES, TIMES_L2 * torch.cuda.get_device_properties(0).L2_cache_size)
        self._swept = torch.randn(swept // 4, device="cuda")
        self._result = torch.empty((), device="cuda")
        self._stream = torch.cuda.Stream()
        self._start, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._idle = self._recorded(None)

    def stream(self) -> int:
        return int(torch.cuda.current_stream().cuda_stream)

    def _work(self, call: Callable[[], Any] | None) -> None:
        torch.amax(self._swept, 0, out=self._result)
        if call is not None:
            call()

    def _recorded(self, call: Callable[[], Any] | None) -> torch.cuda.CUDAGraph:
        torch.cuda.synchronize()  # inputs were made on another stream
        with torch.cuda.stream(self._stream):
            self._work(call)  # whatever a first call loads or asks for is not recorded
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream):
            self._work(call)
        return graph

    def record(self, call: Callable[[], Any]) -> Recording:
        graph = self._recorded(call)

        def replay() -> None:
            graph.replay()
            torch.cuda.synchronize()

        return Recording(replay, graph)

    def _sample(self, graph: torch.cuda.CUDAGraph) -> float:
        self._start.record()
        graph.replay()
        self._end.record()
        self._end.synchronize()
        return float(self._start.elapsed_time(self._end)) * 1e3

    def measure(self, sides: Sides, runs: int) -> dict[str, Time]:
        samples: dict[str, list[float]] = {name: [] for name in sides}
        base = []
        for recordings in sides.values():
            for recording in recordings:
                recording.replay()
        for i in range(runs):
            for name, recordings in sides.items():
                self._sample(self._idle)
                base.append(self._sample(self._idle))
                graph = recordings[i % len(recordings)].graph
                assert graph is not None
                samples[name].append(self._sample(graph))
        idle = statistics.median(base)
        return {name: Time.of(taken, idle) for name, taken in samples.items()}


def make_clock(device: str) -> Clock:
    """@raises RuntimeError: torch's text, where the device cannot be used"""
    return GraphClock() if device == "cuda" else WallClock()


def ceilings(clock: Clock) -> dict[str, float]:
    """What the card does at best in this run: TFLOP/s of a bf16 product of 8192^3, GB/s of a copy of 1 GiB."""
    if clock.device != "cuda":
        return {}
    a, b = (torch.randn(PRODUCT, PRODUCT, device="cuda").bfloat16() for _ in range(2))
    product = torch.empty_like(a)
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda").random_()
    copied = torch.empty_like(source)
    found = clock.measure(
        {
            "product": [clock.record(lambda: torch.matmul(a, b, out=product))],
            "copy": [clock.record(lambda: copied.copy_(source))],
        },
        CEILING_RUNS,
    )
    return {
        "product_tflops": 2 * PRODUCT**3 / found["product"].us * 1e-6,
        "copy_gbs": 2 * COPY_BYTES / found["copy"].us * 1e-3,
    }
