"""The runner on a CPU: inputs, the binding of this library, FlashMLA's adapter over a fake, and a whole run."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sparsemla")

from fake_flashmla import FakeOps  # noqa: E402
from side_by_side import run as runner  # noqa: E402
from side_by_side.attention import run as attention_run  # noqa: E402
from side_by_side.attention.cells import MIXED, Cell, Choice, cells_of  # noqa: E402
from side_by_side.attention.inputs import Call, Inputs, RowCache  # noqa: E402
from side_by_side.attention.peer import FlashMla, load_peer  # noqa: E402
from side_by_side.clock import Time, WallClock  # noqa: E402
from side_by_side.fault import Fault  # noqa: E402
from side_by_side.library import Library  # noqa: E402
from side_by_side.options import arguments  # noqa: E402

ROOT = Path(__file__).parents[3]
FAKE = str(Path(__file__).with_name("fake_flashmla.py"))


def calls_of(cell: Cell, sets: int = 2) -> list[Call]:
    return Inputs([cell], sets, "cpu", 1, 1 << 28).calls(cell, sets)


def cells(grid: str, **choice: tuple[object, ...]) -> list[Cell]:
    return cells_of((grid,), Choice(**choice))  # type: ignore[arg-type]


SMALL = {"heads": (3,), "layers": ("swa", "c4a_32k", "c128_8k"), "batches": (2,)}
CELLS = [
    *cells("decode", **SMALL),
    *cells("rows", heads=(3,), layers=("c128_8k",), batches=(2,)),
    *cells("queries", heads=(3,), layers=("c4a_32k", "c128_8k"), batches=(2,), queries=(3,)),
    *cells("unequal", heads=(3,), batches=(3,)),
    *cells("prefill", heads=(3,), keys=(200,), pools=(300,), tokens=(5,)),
]


@pytest.mark.parametrize("cell", CELLS, ids=lambda c: c.name)
def test_inputs_are_what_the_cell_says(cell: Cell) -> None:
    calls = calls_of(cell)
    slots: list[set[int]] = []
    for call in calls:
        assert call.q.shape == (cell.tokens, 3, 512)
        assert [s.indices.shape for s in call.scopes] == [(cell.tokens, w) for w in (128, cell.named) if w]
        for scope, kind in zip(call.scopes, ("window", "entries")):
            lists = []
            for token in range(cell.tokens):
                request = token // cell.queries
                count = 128 if kind == "window" else cell.named_of(request)
                assert int(scope.lens[token]) == count
                named = scope.indices[token, :count].tolist()
                assert (
                    len(set(named)) == count and min(named) >= 0 and max(named) < scope.cache.blocks * scope.cache.page
                )
                assert set(scope.indices[token, count:].tolist()) <= {-1}
                lists.append(set(named))
            distinct = set().union(*lists)
            if kind == "entries":
                slots.append(distinct)
            if not cell.shared or cell.queries == 1:
                assert len(distinct) == sum(map(len, lists)), "requests share rows"
    if slots:
        assert not slots[0] & slots[1], "sets share rows"


def test_shared_rows_are_those_of_each_query() -> None:
    for cell in cells("queries", heads=(3,), layers=("swa", "c128_8k"), batches=(2,), queries=(3,)):
        assert cell.shares_lists == cell.shared
        if not cell.shared:
            continue
        for scope in calls_of(cell)[0].scopes:
            rows, first = scope.shared(3)
            assert rows.shape == (2, scope.indices.shape[1] + (2 if scope.indices.shape[1] == 128 else 0))
            for token in range(6):
                begin, length = int(first[token]), int(scope.lens[token])
                assert torch.equal(rows[token // 3, begin : begin + length], scope.indices[token, :length])


def test_queries_of_a_request_slide() -> None:
    (cell,) = cells("queries", heads=(3,), layers=("c128_8k",), batches=(2,), queries=(2,))[1:]
    call = calls_of(cell, 1)[0]
    window, entries = (scope.indices for scope in call.scopes)
    assert window[0, 1:].tolist() == window[1, :-1].tolist()
    assert entries[0].tolist() == entries[1].tolist()
    assert not set(entries[1].tolist()) & set(entries[2].tolist())


@pytest.mark.parametrize("cell", CELLS, ids=lambda c: c.name)
def test_the_library_agrees_with_float64(cell: Cell) -> None:
    call = calls_of(cell, 1)[0]
    prepared, about = attention_run.prepare_ours(Library(None), WallClock(), call, "ref", False)
    prepared.run()
    assert about["implementation"] == "ref"
    assert prepared.lse is not None
    for token in range(cell.tokens):
        o, lse = call.expected(token)
        assert torch.linalg.norm(prepared.output[token].double() - o) <= 2.2e-3 * torch.linalg.norm(o)
        assert (prepared.lse[token].double() - lse).abs().max() <= 1e-6 * lse.abs().clamp(min=1).max()


@pytest.mark.parametrize("new", [False, True])
@pytest.mark.parametrize("heads", [8, 64, 100])
def test_the_adapter_of_flashmla(new: bool, heads: int) -> None:
    ops = FakeOps(new)
    peer = FlashMla(ops)
    padded = 64 if heads <= 64 else 128
    for cell in (replace(CELLS[2], heads=heads), replace(CELLS[-1], heads=heads), replace(CELLS[0], heads=heads)):
        call = calls_of(cell, 1)[0]
        prepared = peer.prepare(call)
        assert prepared is not None
        prepared.output.fill_(float("nan"))
        prepared.run()
        assert prepared.output.shape == (cell.tokens, heads, 512)
        for token in range(cell.tokens):
            o, _ = call.expected(token)
            # Gathered rows are rounded to bf16, and so are outputs.
            assert torch.linalg.norm(prepared.output[token].double() - o) <= 4e-3 * torch.linalg.norm(o)
    assert ops.schedules == 2, "made before the time is taken, once a step"
    assert [shape[2] for shape in ops.decodes] == [padded] * 4
    assert [shape[1] for shape in ops.prefills] == [heads if new and heads in (8, 64) else padded]


def test_the_adapter_pads_lists_and_leaves_other_rows() -> None:
    peer = FlashMla(FakeOps(True))
    unequal = next(c for c in CELLS if c.layer == MIXED)
    call = calls_of(unequal, 1)[0]
    call.scopes[1].indices = call.scopes[1].indices[:, :-3].contiguous()
    call.scopes[1].lens.clamp_(max=unequal.named - 3)
    prepared = peer.prepare(call)
    assert prepared is not None
    prepared.run()
    narrow = next(c for c in CELLS if c.rows == "bf16")
    assert peer.prepare(calls_of(narrow, 1)[0]) is None


@pytest.mark.parametrize("format", ["fp8_ds_mla", "bf16", "fp8_per_tensor"])
def test_rows_are_as_the_library_reads_them(format: str) -> None:
    import sparsemla as sm

    cache = RowCache.make(format, 3, 5, "cpu", torch.Generator().manual_seed(3))
    slots = torch.arange(15)
    if format != "fp8_per_tensor":
        out = torch.empty(1, 15, 512, dtype=torch.bfloat16)
        sm.ops.gather_rows(
            cache=sm.Cache(cache.memory, format, 3),
            seq_lens=torch.tensor([15], dtype=torch.int32),
            block_table=torch.arange(5, dtype=torch.int32)[None],
            out=out,
        )
        assert torch.equal(out[0], cache.decode(slots).bfloat16())
    values = cache.decode(slots)
    assert 0.8 < float(values.std()) < 1.5
    assert bool(torch.isfinite(values).all())


def test_a_wrong_output_fails_its_cell() -> None:
    cell = CELLS[0]
    args = runner.argparse.Namespace(impl="ref", impl2=None, deterministic=False, runs=1, sets=1)

    class Wrong(Library):
        def plan(self, op, scalars, device, implementation, deterministic):  # type: ignore[no-untyped-def]
            scalars["scale"] *= 2
            return super().plan(op, scalars, device, implementation, deterministic)

    inputs = Inputs([cell], 1, "cpu", 1, 1 << 28)
    row = attention_run.Bench(args, Wrong(None), None, WallClock()).measure(cell, inputs)
    assert row["failure"].startswith("ours: 0 NaN, error ")
    row = attention_run.Bench(args, Library(None), None, WallClock()).measure(
        cell, Inputs([cell], 1, "cpu", 1, 1 << 28)
    )
    assert "failure" not in row and row["sides"]["ours"]["nan"] == 0


def test_a_refusal_fails_its_cell_alone() -> None:
    args = runner.argparse.Namespace(impl="cuda", impl2=None, deterministic=False, runs=1, sets=1)
    cell = CELLS[0]
    row = attention_run.Bench(args, Library(None), None, WallClock()).measure(
        cell, Inputs([cell], 1, "cpu", 1, 1 << 28)
    )
    assert "cuda" in row["failure"] and row["sides"] == {}


def test_a_cache_too_small_for_a_request() -> None:
    cell = next(c for c in CELLS if c.layer == "c4a_32k")
    with pytest.raises(Fault, match=r"a request has 128 blocks of 64 rows, the cache \d+"):
        Inputs([cell], 1, "cpu", 1, 1 << 20).calls(cell, 1)


def test_the_limit_leaves_cells() -> None:
    shown: list[int] = []
    args = runner.argparse.Namespace(impl="cpu", impl2=None, deterministic=False, runs=1, sets=1)
    bench = attention_run.Bench(args, Library(None), None, WallClock())
    inputs = Inputs(CELLS[:3], 1, "cpu", 1, 1 << 28)
    left = runner.measure_all(CELLS[:3], bench, inputs, 0.0, lambda row, index: shown.append(index))
    assert len(shown) + len(left) == 3 and left


def test_times_are_medians_less_the_base() -> None:
    assert Time.of([float(i) for i in range(11)], 2.0) == Time(3.0, -1.0, 7.0)


def side_by_side(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "tools/side_by_side"), *words], capture_output=True, text=True, check=False
    )


def test_a_whole_run(tmp_path: Path) -> None:
    peer, out = tmp_path / "flashmla.so", tmp_path / "folder" / "out.json"
    peer.write_text("")
    words = ["run", "--device", "cpu", "--peer", str(peer), "--adapter", FAKE, "--json", str(out), "--runs", "2"]
    words += ["--grid", "decode,prefill,rows", "--heads", "8", "--layers", "swa,c128_8k", "--batches", "1"]
    words += ["--keys", "200", "--pools", "300", "--tokens", "3", "--sets", "2", "--note", "a note"]
    done = side_by_side(*words, "--impl", "ref", "--impl2", "cpu", "--deterministic")
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["note"] == "a note" and found["peer"]["name"] == "FlashMLA" and found["not_run"] == []
    assert len(found["rows"]) == 2 + 1 + 6
    for row in found["rows"]:
        expected = {"ours", "ours2"} | ({"peer"} if row["rows"] == "fp8_ds_mla" else set())
        assert set(row["sides"]) == expected
        assert all(side["us"] > 0 and side["error"] < 4e-3 for side in row["sides"].values())
    assert "[9/9, " in done.stdout and "decode/8/c128_8k/1: ours " in done.stdout
    assert "peer: FlashMLA (" in done.stdout and "workspace: at most 64 MiB: 9 of 9 cells" in done.stdout
    assert side_by_side("table", str(out)).stdout in done.stdout


def test_a_run_with_a_failed_cell_says_so(tmp_path: Path) -> None:
    words = ["run", "--device", "cpu", "--heads", "8", "--layers", "swa", "--batches", "1", "--impl", "cuda"]
    done = side_by_side(*words)
    assert done.returncode == 1
    assert "side_by_side: decode/8/swa/1: Fault:" in done.stderr and "cuda" in done.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--lib", "/no/file.so"], "--lib: /no/file.so is no file"),
        (["--lib", FAKE], "--lib: "),
        (["--lib", "{libc}"], "has no smla_plan_create"),
        (["--peer", "/no/file.so"], "--peer: /no/file.so is no file"),
        (["--peer", FAKE], "--peer: "),
        (["--peer", FAKE, "--adapter", "/no/file.py"], "--adapter: /no/file.py is no file"),
        (["--peer", FAKE, "--adapter", "{empty}"], "has no function load(path)"),
    ],
)
def test_files_that_cannot_be_loaded(words: list[str], text: str, tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("")
    places = {"{libc}": str(Path(torch.__file__).parent / "lib" / "libc10.so"), "{empty}": str(tmp_path / "empty.py")}
    with pytest.raises(Fault) as fault:
        runner.run(arguments(["run", "--device", "cpu", "--heads", "8", *[places.get(w, w) for w in words]]))
    assert text in str(fault.value)


def test_what_cannot_be_loaded_is_told_without_a_trace() -> None:
    done = side_by_side("run", "--device", "cpu", "--lib", "/no/file.so")
    assert done.returncode == 1
    assert done.stderr == "side_by_side: --lib: /no/file.so is no file\n"


def test_an_adapter_is_told_its_path() -> None:
    assert load_peer(FAKE, FAKE).name == "slow"
