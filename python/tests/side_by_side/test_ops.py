"""The grid of the ops around attention: its cells, inputs and check, the adapter over a fake, and a whole run."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from fake_vllm_ops import peer as fake_peer  # noqa: E402
from side_by_side import run as runner  # noqa: E402
from side_by_side.attention.cells import Choice  # noqa: E402
from side_by_side.clock import WallClock  # noqa: E402
from side_by_side.fault import Fault, in_one_line  # noqa: E402
from side_by_side.library import Library  # noqa: E402
from side_by_side.ops import run as ops_run  # noqa: E402
from side_by_side.ops.cells import KINDS, OpCell, op_cells_of  # noqa: E402
from side_by_side.ops.inputs import OpInputs, Output, rotated  # noqa: E402
from side_by_side.ops.peer import load_op_peer  # noqa: E402
from side_by_side.options import arguments, chosen_cells  # noqa: E402

FAKE = str(Path(__file__).with_name("fake_vllm_ops.py"))
TOOLS = str(Path(__file__).parents[3] / "tools")
CELLS = [OpCell(layer, tokens) for layer in KINDS for tokens in (1, 9)]


def options(**members: object) -> runner.argparse.Namespace:
    return runner.argparse.Namespace(**({"impl": "", "deterministic": False, "runs": 1, "sets": 2} | members))


def test_cells_are_those_of_the_published_peers() -> None:
    found = op_cells_of(("ops",), Choice())
    published = (Path(__file__).parents[3] / "data/peers/ops.csv").read_text()
    assert len(found) == len({cell.name for cell in found}) == 2 * 3 + 4 * 5
    assert all(f"\n{cell.layer},{cell.tokens}," in published for cell in found)


def test_what_is_pooled() -> None:
    decode = OpCell("compress_c4_main_decode_all_boundary", 64)
    assert (decode.requests, decode.end, decode.entries) == (64, 8, 64)
    prompt = OpCell("compress_c128_main_prefill_two_stage", 2048)
    assert (prompt.requests, prompt.end, prompt.entries) == (1, 2176, 16)
    assert decode.bytes == 64 * (8 * 512 * 8 + 584 + 256 + 28)


def test_a_rotation_keeps_lengths_and_turns_pairs() -> None:
    x = torch.arange(66, dtype=torch.float64)
    quarter = torch.cat([torch.zeros(32), torch.ones(32)])
    turned = rotated(x, quarter)
    assert turned[:2].tolist() == [0, 1] and turned[2:6].tolist() == [-3, 2, -5, 4]


@pytest.mark.parametrize("cell", CELLS, ids=lambda c: c.name)
def test_the_fake_and_float64_agree(cell: OpCell) -> None:
    adapter, fakes = fake_peer()
    call = OpInputs("cpu", 1).calls(cell, 1)[0]
    output = call.output()
    output.spoil()
    assert bool(torch.isnan(call.read(output)).any()), "an output that nobody wrote is seen"
    made = adapter.prepare(call, output)
    assert made is not None
    made[0]()
    found = call.read(output)
    assert found.shape[0] == (cell.entries if cell.kind.ratio else cell.tokens) and len(fakes.called) == 1
    for row in range(found.shape[0]):
        assert ops_run.relative(found[row], call.expected(row)) < ops_run.WRONG[cell.kind.op]


def test_results_that_nobody_wrote_are_wrong() -> None:
    call = OpInputs("cpu", 1).calls(CELLS[-1], 1)[0]
    side = ops_run.OpSide({})
    side.record(WallClock(), lambda: None, call.output())
    found = ops_run.check(side, [call])
    assert found["nan"] and math.isnan(found["error"]) and ops_run.is_wrong(found, "gather_rows")


def test_spoiling_reaches_all_tensors() -> None:
    output = Output({"a": torch.zeros(2, 2), "b": torch.zeros(2, 2, dtype=torch.bfloat16)})
    output.spoil()
    assert all(bool(torch.isnan(t).all()) for t in output.tensors.values())


def test_a_long_error_keeps_both_ends() -> None:
    text = in_one_line(ValueError("begin " + "x " * 400 + "end"))
    assert text.startswith("ValueError: begin ") and text.endswith(" end") and len(text) < 320


def test_ops_are_measured_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(chosen_cells(arguments(["run", "--grid", "ops", "--tokens", "3"]))) == 6
    words = ["--layers", "dequant_gather", "--tokens", "3,4"]
    found = chosen_cells(arguments(["run", "--grid", "ops", *words]))
    assert [cell.name for cell in found] == ["ops/dequant_gather/3", "ops/dequant_gather/4"]
    for words, text in (
        (["--grid", "ops,decode"], "--grid: got ops,decode, expected ops alone or without it"),
        (["--grid", "ops", "--layers", "swa"], "--layers: got swa, expected some of compress_c4_main_decode"),
        (["--layers", "dequant_gather"], "--layers: got dequant_gather, expected some of swa, c4a_32k"),
        (["--grid", "ops", "--impl2", "cuda"], "--impl2: got one with the grid ops"),
    ):
        with pytest.raises(SystemExit):
            arguments(["run", *words])
        assert text in capsys.readouterr().err


@pytest.fixture
def library() -> Library:
    pytest.importorskip("sparsemla")
    return Library(None)


@pytest.mark.parametrize("cell", CELLS, ids=lambda c: c.name)
def test_both_sides_of_a_cell(cell: OpCell, library: Library) -> None:
    row = ops_run.OpsBench(options(), library, fake_peer()[0], WallClock()).measure(cell, OpInputs("cpu", 1))
    assert "failure" not in row and "peer_failure" not in row and row["peer_error"] < ops_run.UNLIKE
    assert set(row["sides"]) == {"ours", "peer"} and row["sides"]["ours"]["nan"] == 0


@pytest.mark.parametrize("cell", CELLS[1::2], ids=lambda c: c.name)
def test_a_wrong_peer_is_not_compared(cell: OpCell, library: Library) -> None:
    row = ops_run.OpsBench(options(), library, fake_peer(1.2)[0], WallClock()).measure(cell, OpInputs("cpu", 1))
    assert "failure" not in row and row["peer_failure"].startswith("peer: 0 NaN, error ")
    assert set(row["sides"]) == {"ours", "wrong_peer"} and row["peer_error"] > 0.1


def test_a_refusal_fails_its_cell_alone(library: Library) -> None:
    row = ops_run.OpsBench(options(impl="none"), library, None, WallClock()).measure(CELLS[0], OpInputs("cpu", 1))
    assert row["failure"].startswith("Fault: ") and row["sides"] == {}


@pytest.mark.parametrize("name", ["kit", "broken"])
def test_a_whole_run(name: str, library: Library, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = tmp_path / name, tmp_path / "out.json"
    folder.mkdir()
    words = ["run", "--device", "cpu", "--peer", str(folder), "--adapter", FAKE, "--json", str(out), "--runs", "2"]
    status = runner.run(arguments([*words, "--grid", "ops", "--tokens", "5", "--sets", "2"]))
    found, said = json.loads(out.read_text()), capsys.readouterr()
    assert [row["layer"] for row in found["rows"]] == list(KINDS)
    if name == "broken":
        assert status == 1 and "ValueError: no kernel for this card" in said.err
        assert all(set(row["sides"]) == {"ours"} for row in found["rows"])
        return
    assert status == 0 and found["peer"]["name"] == "vLLM's CuTe DSL kernels, compiled by 4.8.0"
    assert "ops, peer/ours: " in said.out and "[6/6, " in said.out


WHEEL = {
    "sparse_attn_compress_cutedsl": "_SPARSE_ATTN_COMPRESSOR_CUTEDSL_KERNEL = 1",
    "dequant_gather_k_cutedsl": "from vllm.cute_utils import two\n_DEQUANT_GATHER_K_CACHE_CUTEDSL_KERNEL = two",
    "fused_indexer_q_cutedsl": """
from quack.compile_utils import make_fake_tensor
from vllm.model_executor.warmup.jit_warmup import kernel_launcher
from vllm.model_executor.warmup.jit_warmup_cutedsl_helper import VllmCuTeDSLJitKernel

class Kernel(VllmCuTeDSLJitKernel["Kernel.CompileKey"]):
    @staticmethod
    def kernel(key):
        return lambda *given: (key, given)

    def warmup_inputs(self, key):
        return (make_fake_tensor(type("D", (), {"width": 16}), (key, 128), 16),)

    @kernel_launcher
    def __call__(self, *, number, result=None):
        return (number % 2, (number,)) if result is None else (number % 2, (number,), result)

_INDEXER_Q_FP8_KERNEL = Kernel()
""",
}
COMPILER = """
__version__ = "9"
compiled, ran = [], []

class cute:
    class runtime:
        make_fake_stream = staticmethod(lambda **words: "stream")
        make_fake_tensor = staticmethod(lambda dtype, shape, stride, assumed_align: (shape, stride, assumed_align))

    sym_int64 = staticmethod(lambda divisibility: f"n{divisibility}")

    @staticmethod
    def compile(entry, *given, options):
        compiled.append((entry(*given), options))
        return lambda *arguments: ran.append(arguments)
"""


def test_kernels_are_loaded_without_vllm_and_compiled_once_a_key(tmp_path: Path) -> None:
    ops = tmp_path / "vllm/models/deepseek_v4/nvidia/ops"
    ops.mkdir(parents=True)
    (tmp_path / "vllm/__init__.py").write_text("raise RuntimeError('vLLM itself is not imported')")
    with pytest.raises(Fault, match=r"has no vllm/models/deepseek_v4/nvidia/ops/sparse_attn_compress_cutedsl\.py"):
        load_op_peer(str(tmp_path), None)
    for name, text in WHEEL.items():
        (ops / f"{name}.py").write_text(text)
    (tmp_path / "vllm/cute_utils").mkdir()
    (tmp_path / "vllm/cute_utils/__init__.py").write_text("two = 2")
    (tmp_path / "python/nvidia_cutlass_dsl/dsl_packages").mkdir(parents=True)
    (tmp_path / "python/nvidia_cutlass_dsl/dsl_packages/cutlass.py").write_text(COMPILER)
    script = f"""
import sys
from pathlib import Path
sys.path.insert(0, {TOOLS!r})
from side_by_side.ops.vllm import load_kernels
kernels = load_kernels(Path({str(tmp_path)!r}))
import cutlass
assert (kernels.compress, kernels.gather, kernels.compiler) == (1, 2, "9")
assert [kernels.index_queries(number=n) for n in (1, 2, 3)] == [None] * 3
assert kernels.index_queries(number=5, result="r") == "r"
expected = [((key, (((key, 128), ("n16", 1), 32), "stream")), "--enable-tvm-ffi") for key in (1, 0)]
assert cutlass.compiled == expected, cutlass.compiled
assert cutlass.ran == [(1,), (2,), (3,), (5,)]
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_folders_that_cannot_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(Fault, match="does not exist"):
        load_op_peer(str(tmp_path / "none"), None)
