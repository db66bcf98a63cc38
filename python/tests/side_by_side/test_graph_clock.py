"""The clock of a GPU over a made-up torch: what is recorded, what is replayed in which order, what is subtracted."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from side_by_side import clock  # noqa: E402


class FakeGpu:
    """Counts microseconds: a sweep takes 80, a call what it is asked to; graphs hold what ran while recorded."""

    def __init__(self) -> None:
        self.now, self.recording, self.replayed = 0.0, None, []
        fake = self

        class Graph:
            def __init__(self) -> None:
                self.work: list[tuple[str, float]] = []

            def replay(self) -> None:
                fake.replayed.append([name for name, _ in self.work])
                fake.now += sum(us for _, us in self.work)

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing
                self.at = 0.0

            def record(self) -> None:
                self.at = fake.now

            def synchronize(self) -> None:
                pass

            def elapsed_time(self, end: Event) -> float:
                return (end.at - self.at) / 1e3

        @contextmanager
        def graph(made: Graph, stream: Any) -> Any:
            self.recording = made
            yield
            self.recording = None

        @contextmanager
        def stream(_: Any) -> Any:
            yield

        cuda = SimpleNamespace(
            CUDAGraph=Graph,
            Event=Event,
            Stream=lambda: "side stream",
            graph=graph,
            stream=stream,
            synchronize=lambda: None,
            get_device_properties=lambda _: SimpleNamespace(L2_cache_size=50 << 20),
            current_stream=lambda: SimpleNamespace(cuda_stream=7),
        )
        for name in vars(cuda):
            assert hasattr(torch.cuda, name), "torch has no such name"
        self.swept = 0
        self.torch = SimpleNamespace(cuda=cuda, randn=self._randn, empty=lambda *_, **__: None, amax=self._amax)

    def _randn(self, count: int, device: str) -> str:
        self.swept = 4 * count
        return device

    def _amax(self, *_: Any, **__: Any) -> None:
        self.work("sweep", 80.0)

    def work(self, name: str, us: float) -> None:
        if self.recording is not None:
            self.recording.work.append((name, us))


def test_what_a_call_adds_to_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu()
    monkeypatch.setattr(clock, "torch", gpu.torch)
    timer = clock.GraphClock()
    assert gpu.swept == 200 << 20
    ours = [timer.record(lambda us=us: gpu.work(f"ours {us}", us)) for us in (10.0, 12.0)]
    theirs = [timer.record(lambda: gpu.work("theirs", 30.0))]
    gpu.replayed.clear()
    found = timer.measure({"ours": ours, "peer": theirs}, 4)
    assert found["ours"] == clock.Time(11.0, 10.0, 12.0)
    assert found["peer"].us == 30.0
    assert timer.stream() == 7
    warm, samples = gpu.replayed[:3], gpu.replayed[3:]
    assert warm == [["sweep", "ours 10.0"], ["sweep", "ours 12.0"], ["sweep", "theirs"]]
    assert samples[:6] == [["sweep"], ["sweep"], ["sweep", "ours 10.0"], ["sweep"], ["sweep"], ["sweep", "theirs"]]
    assert samples[6:9] == [["sweep"], ["sweep"], ["sweep", "ours 12.0"]]
    assert len(samples) == 4 * 6
