"""The index chain's inputs, its check, the adapter over a fake, and a whole run, on a CPU."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sparsemla")

from fake_vllm_indexer import peer as fake_peer  # noqa: E402
from side_by_side import run as runner  # noqa: E402
from side_by_side.clock import Recording, WallClock  # noqa: E402
from side_by_side.fault import Fault  # noqa: E402
from side_by_side.index import run as index_run  # noqa: E402
from side_by_side.index.cells import IndexCell  # noqa: E402
from side_by_side.index.inputs import IndexCall, IndexInputs, judge  # noqa: E402
from side_by_side.index.peer import load_index_peer  # noqa: E402
from side_by_side.library import Library  # noqa: E402
from side_by_side.options import arguments  # noqa: E402

FAKE = str(Path(__file__).with_name("fake_vllm_indexer.py"))
CELLS = [
    IndexCell("index", 2, 1, 700),
    IndexCell("index", 3, 2, 100),
    IndexCell("index", 33, 2, 513),
    IndexCell("index_prefill", 1, 7, 600),
    IndexCell("index_prefill", 1, 9, 2),
]


def calls_of(cell: IndexCell, sets: int = 2) -> list[IndexCall]:
    return IndexInputs([cell], sets, "cpu", 1, 1 << 28).calls(cell, sets)


def options(**members: object) -> runner.argparse.Namespace:
    return runner.argparse.Namespace(**({"impl": "", "deterministic": False, "runs": 1, "sets": 2} | members))


@pytest.mark.parametrize("cell", CELLS, ids=lambda c: c.name)
def test_inputs_are_what_the_cell_says(cell: IndexCell) -> None:
    calls = calls_of(cell)
    blocks = torch.cat([call.table.reshape(-1) for call in calls])
    assert blocks.unique().numel() == 2 * cell.requests * cell.columns, "requests or sets share rows"
    for call in calls:
        assert call.q.shape == (cell.tokens, 64, 128) and call.table.shape == (cell.requests, cell.columns)
        assert call.row_to_req.tolist() == [t // cell.queries for t in range(cell.tokens)]
        assert call.lens.tolist() == [cell.visible(t % cell.queries) for t in range(cell.tokens)]
        last = call.expected(cell.tokens - 1)
        assert last.shape == (cell.entries,) and bool(torch.isfinite(last).all()) and last.unique().numel() > 1


def test_a_cache_too_small_for_a_set() -> None:
    with pytest.raises(Fault, match=r"a set has 22 blocks of 64 rows, the cache \d+"):
        IndexInputs([CELLS[0]], 2, "cpu", 1, 100_000).calls(CELLS[0], 2)
    inputs = IndexInputs([CELLS[0]], 4, "cpu", 1, 70 * 8640)
    assert len(inputs.calls(CELLS[0], 4)) == 3, "as many sets as there is room for"


def test_judging_a_choice() -> None:
    scores = torch.tensor([5.0, 1.0, 4.0, 4.0, 3.999, -7.0], dtype=torch.float64)

    def found(*chosen: int) -> tuple[int, int]:
        judged = judge(torch.tensor(chosen, dtype=torch.int32), scores)
        return judged.wrong, judged.other

    assert found(2, 0) == (0, 0)
    assert found(0, 3) == (0, 1), "a tie goes to the lower entry"
    assert found(0, 4) == (0, 1), "near ties are none that count"
    assert found(0, 1) == (1, 1)
    assert found(1, 5) == (2, 2)
    assert found(0, 0)[0] == 1 and found(0, 6)[0] == 1 and found(0, -2)[0] == 1 and found(0, -1)[0] == 1
    assert found(5, 4, 3, 2, 1, 0, -1) == (0, 0) and found(5, 4, 3, 2, 1, 0, 0)[0] > 0
    assert judge(torch.tensor([0, 1]), scores).passed_over == pytest.approx(3 / 7)
    assert judge(torch.tensor([-1, -1]), scores[:0]).wrong == 0
    assert judge(torch.tensor([index_run.UNWRITTEN] * 2), scores).wrong >= 2


@pytest.mark.parametrize("cell", CELLS, ids=lambda c: c.name)
def test_a_cell_beside_the_fake(cell: IndexCell) -> None:
    peer, fakes = fake_peer()
    bench = index_run.IndexBench(options(), Library(None), peer, WallClock())
    row = bench.measure(cell, IndexInputs([cell], 2, "cpu", 1, 1 << 28))
    assert "failure" not in row and "peer_failure" not in row
    assert set(row["sides"]) == {
        *("ours", "ours_two_ops", "ours_scores", "peer", "peer_uncleared", "peer_scores"),
    }
    for name, side in row["sides"].items():
        assert side["error"] < 1e-5 and side["us"] > 0
        assert side.get("set_wrong", 0) == 0 and side["checked"] >= (2 if name.endswith("scores") else 4)
    chosen = {"index/33/2/513": "persistent_topk"}.get(cell.name, "cooperative_topk")
    assert fakes.ops.called == {"top_k_per_row_prefill" if cell.prefill else chosen}
    assert fakes.gemm.plans == (0 if cell.prefill else 2), "made before the time is taken"


def test_a_wrong_choice_of_the_peer_is_reported_alone() -> None:
    cell = CELLS[0]
    bench = index_run.IndexBench(options(), Library(None), fake_peer(shift=1)[0], WallClock())
    row = bench.measure(cell, IndexInputs([cell], 2, "cpu", 1, 1 << 28))
    assert "failure" not in row and row["sides"]["peer"]["set_wrong"] > 0 and row["sides"]["ours"]["set_wrong"] == 0


def test_a_wrong_choice_of_ours_fails_its_cell() -> None:
    cell = CELLS[0]

    class Wrong(Library):
        def plan(self, op, scalars, device, implementation, deterministic):  # type: ignore[no-untyped-def]
            plan = super().plan(op, scalars, device, implementation, deterministic)
            if op == "indexer_topk":
                bind = plan.bind
                plan.bind = lambda members, *rest: bind(members | {"weights": members["weights"].neg()}, *rest)
            return plan

    bench = index_run.IndexBench(options(), Wrong(None), None, WallClock())
    row = bench.measure(cell, IndexInputs([cell], 2, "cpu", 1, 1 << 28))
    assert row["failure"].startswith("ours: {'checked': 4, 'set_wrong': ")


def test_a_check_of_nothing_is_no_pass() -> None:
    assert index_run._fails(index_run.Reference([]).check(index_run.IndexSide({}, [], [torch.zeros(1)])))
    assert index_run._fails({"checked": 1, "error": math.nan}) and not index_run._fails({"checked": 1, "error": 0.0})


def test_scores_that_are_not_written_are_nan() -> None:
    call = calls_of(CELLS[0], 1)[0]
    scores = torch.zeros(2, 700)
    side = index_run.IndexSide({}, [Recording(lambda: scores[0].fill_(1.0))], [], [[scores]])
    assert math.isnan(index_run.Reference([call]).check(side)["error"])


def test_a_refusal_fails_its_cell_alone() -> None:
    bench = index_run.IndexBench(options(impl="sm90"), Library(None), None, WallClock())
    row = bench.measure(CELLS[0], IndexInputs(CELLS[:1], 2, "cpu", 1, 1 << 28))
    assert row["failure"].startswith("Fault: ") and row["sides"] == {}


@pytest.mark.parametrize("name", ["kit", "broken"])
def test_a_whole_run(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = tmp_path / name, tmp_path / "out.json"
    folder.mkdir()
    words = ["run", "--device", "cpu", "--peer", str(folder), "--adapter", FAKE, "--json", str(out), "--runs", "2"]
    words += ["--grid", "index,index_prefill", "--batches", "1", "--pools", "600", "--tokens", "3", "--sets", "2"]
    status = runner.run(arguments(words))
    found, said = json.loads(out.read_text()), capsys.readouterr()
    assert [row["name"] for row in found["rows"]] == ["index/1/1/600", "index/1/2/600", "index_prefill/3/600"]
    if name == "broken":
        assert status == 1 and "side_by_side: index/1/1/600: RuntimeError: no kernel for this card" in said.err
        assert all(set(row["sides"]) == {"ours", "ours_two_ops", "ours_scores"} for row in found["rows"])
        return
    assert status == 0 and found["peer"]["name"] == "DeepGEMM 2.8.1 and vLLM's top-k"
    assert "index chain, prefill, peer/ours: " in said.out and "[3/3, " in said.out


def test_folders_that_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(Fault, match="does not exist"):
        load_index_peer(str(tmp_path / "none"), None)
    with pytest.raises(Fault, match=r"has 0 files _C\*\.so, expected one"):
        load_index_peer(str(tmp_path), None)
    (tmp_path / "_C.so").write_text("")
    (tmp_path / "deep_gemm").mkdir()
    (tmp_path / "deep_gemm" / "__init__.py").write_text("")
    with pytest.raises(Fault, match=r"--peer: .* with torch "):
        load_index_peer(str(tmp_path), None)
