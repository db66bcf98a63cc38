"""The command line of python/bench/vllm, and what it makes of a profile; neither needs vLLM or a GPU."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from kernel_times import (
    COLUMNS,
    OWN_ATTENTION,
    Kernel,
    Launch,
    StepTime,
    append_csv,
    csv_rows,
    is_attention,
    is_path,
    profile_of,
    step_times,
    table,
)
from options import arguments, longest_decode, settings_of
from serve import command_line, faults_of
from small_model import small_config
from workload import LENGTHS, SHARED, mixed_prompts

ROOT = Path(__file__).parents[3]

PRODUCT = "void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, 0u, 1024u, 4096u, {}u, 256u, 128u, 128u>(...)"
SHARED_KERNELS = {
    "flash_unrelated": Kernel(5, 40.0),  # launched alike by all modes, of no known name
    PRODUCT.format(1): Kernel(5, 30.0),  # a linear layer of the same size
    PRODUCT.format(8): Kernel(5, 60.0),
}
PROFILES = {
    "flashmla": {
        **SHARED_KERNELS,
        "flash_fwd_splitkv_mla_fp8_sparse_kernel": Kernel(5, 100.0),
        "get_mla_metadata_kernel": Kernel(3, 20.0),
        "_compute_global_topk_indices_and_lens_kernel": Kernel(2, 7.0),
        "fusedQNormRopeKVRopeQuantInsert": Kernel(5, 11.0),
        "_fused_inv_rope_fp8_quant": Kernel(5, 9.0),
        "quantize": Kernel(10, 50.0),
    },
    "attention": {
        **SHARED_KERNELS,
        "smla::attend<512>": Kernel(5, 40.0),
        "void smla::attention::merge<true>(smla::attention::TileCall)": Kernel(5, 4.0),
        "fusedQNormRopeKVRopeQuantInsert": Kernel(5, 12.0),
        "_fused_inv_rope_fp8_quant": Kernel(5, 9.0),
        "quantize": Kernel(10, 50.0),
    },
    "full": {
        **SHARED_KERNELS,
        "smla::attend<512>": Kernel(5, 50.0),
        "smla::inverse_rope_quant": Kernel(5, 8.0),
        "quantize": Kernel(8, 40.0),
    },
}
TIMES = {
    "flashmla": StepTime(attention=127.0, path=127 + 11 + 9 + 60 + 10, busy=327.0, launches=45),
    "attention": StepTime(attention=44.0, path=44 + 12 + 9 + 60 + 10, busy=245.0, launches=45),
    "full": StepTime(attention=50.0, path=50 + 8 + 60, busy=228.0, launches=33),
}


def test_times_of_modes() -> None:
    assert step_times(PROFILES) == TIMES


def test_a_product_that_only_some_modes_launch_counts_once() -> None:
    own = {"smla::projection": Kernel(5, 70.0)}
    times = step_times({"flashmla": {PRODUCT.format(16): Kernel(5, 90.0)}, "full": own})
    assert times["flashmla"].path == 90.0
    assert times["full"].path == 70.0


@pytest.mark.parametrize("groups", [8, 16])
def test_the_grouped_product_is_of_the_path(groups: int) -> None:
    assert is_path(PRODUCT.format(groups))
    assert not is_path(PRODUCT.format(1))
    assert not is_path(PRODUCT.format(groups).replace("4096u", "2048u"))


@pytest.mark.parametrize(
    "name",
    [
        "void smla::attention::attend<8, 64>(smla::Call)",
        "smla::(anonymous namespace)::attend_hopper<7>",
        "void smla::(anonymous namespace)::attend_small<8>(smla::attention::TileCall)",
        "void smla::attention::merge<true>(smla::attention::TileCall, long)",
        "smla::(anonymous namespace)::global_rows(smla::index_rows::Table, long)",
    ],
)
def test_attention_has_several_kernels(name: str) -> None:
    assert is_attention(name) and is_path(name)


def test_a_kernel_of_the_path_is_none_of_attention() -> None:
    assert not is_attention("void smla::(anonymous namespace)::quantise_back<true>(smla::QuantCall)")
    assert not is_attention("void smla::(anonymous namespace)::select<1024>(smla::attention::merge)")


def kernels_of(sources: Iterable[Path]) -> set[str]:
    """Names of the CUDA kernels that files define."""
    kernel = re.compile(r"__global__ void(?:\s+__launch_bounds__\((?:[^()]|\([^()]*\))*\))?\s+(\w+)\(")
    return {name for source in sources for name in kernel.findall(source.read_text())}


def test_every_kernel_of_attention_is_known() -> None:
    sources = [file for end in ("*.cu", "*.cuh") for file in (ROOT / "src/ops/attention").glob(end)]
    # gather is an op of its own, which no mode calls; of the index family one op is attention's.
    assert kernels_of(sources) - {"gather"} | {"global_rows"} == OWN_ATTENTION
    assert "global_rows" in kernels_of([ROOT / "src/ops/index/sparse_indices_cuda.cu"])


def test_a_kernel_does_not_count_while_it_waits_for_the_one_ahead() -> None:
    launches = [
        Launch("late", 7, 14.0, 20.0),
        Launch("early", 7, 4.0, 12.0),  # began at once and waited 6 us
        Launch("first", 7, 0.0, 10.0),
        Launch("beside", 8, 1.0, 9.0),
        Launch("within", 7, 15.0, 19.0),
    ]
    assert profile_of(launches) == {
        "first": Kernel(1, 10.0),
        "beside": Kernel(1, 8.0),
        "early": Kernel(1, 2.0),
        "late": Kernel(1, 6.0),
        "within": Kernel(1, 0.0),
    }
    assert profile_of([launches[0], Launch("late", 7, 30.0, 40.0)], 2) == {"late": Kernel(1, 8.0)}


def test_a_table_says_how_much_less() -> None:
    lines = table("decode 1 x 2048", TIMES).splitlines()
    assert [line.split()[4] for line in lines] == list(TIMES)
    assert "attention     44.0 us, path    135.0, all    245.0 in 45 launches" in lines[1]
    assert lines[1].endswith("attention 2.89x, path 1.61x less")
    assert "less" not in table("", {"full": TIMES["full"]})


def test_rows_are_those_of_the_kept_file(tmp_path: Path) -> None:
    kept = (ROOT / "data/vllm/h200_2048.csv").read_text().splitlines()
    assert kept[0] == ",".join(COLUMNS)
    file = tmp_path / "times.csv"
    for batch in (1, 16):
        append_csv(file, COLUMNS, csv_rows("decode", 64, batch, TIMES))
    assert file.read_text().splitlines() == [
        kept[0],
        *(
            f"decode,64,{batch},{rest}"
            for batch in (1, 16)
            for rest in ("flashmla,127.0,217.0,327.0,45", "attention,44.0,135.0,245.0,45", "full,50.0,118.0,228.0,33")
        ),
    ]


def test_the_environment_says_what_is_asked() -> None:
    variables = settings_of(arguments(["check", "--mode", "indexer", "--own", "1"]))
    assert variables["SPARSEMLA_VLLM"] == "indexer"
    assert variables["SPARSEMLA_VLLM_OWN"] == "1"
    assert variables["SPARSEMLA_VLLM_PORTABLE"] == variables["SPARSEMLA_VLLM_DETERMINISTIC"] == "0"
    assert variables["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert not {"VLLM_USE_BREAKABLE_CUDAGRAPH", "VLLM_WORKER_MULTIPROC_METHOD"} & set(variables)
    assert settings_of(arguments(["check", "--graphs", "1"]))["VLLM_USE_BREAKABLE_CUDAGRAPH"] == "1"
    assert settings_of(arguments(["check", "--tp", "2"]))["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
    args = arguments(["check", "--processes", "fork"])
    variables = settings_of(args)
    assert (variables["VLLM_WORKER_MULTIPROC_METHOD"], variables["VLLM_ENABLE_V1_MULTIPROCESSING"]) == ("fork", "1")
    assert args.preempt == 0
    assert settings_of(arguments(["serve"]))["VLLM_ENABLE_V1_MULTIPROCESSING"] == "1"


@pytest.mark.parametrize(
    "words, expected",
    [
        (["check"], 1),
        (["check", "--drafts", "1"], 0),
        (["check", "--drafts", "1", "--preempt", "0"], 1),
        (["check", "--drafts", "1", "--async-sched", "1"], 1),
        (["times"], 1),
    ],
)
def test_scheduling_waits_for_each_step_where_drafts_are_preempted(words: list[str], expected: int) -> None:
    assert arguments(words).async_sched == expected


def test_a_server_is_started_with_the_asked_engine(tmp_path: Path) -> None:
    words = command_line(arguments(["serve", "--graphs", "0", "--port", "91", "--heads", "16"]), tmp_path)
    assert words[1:4] == ["-m", "vllm.entrypoints.cli.main", "serve"]
    assert json.loads(Path(words[4], "config.json").read_text())["num_attention_heads"] == 16
    assert "--enforce-eager" in words and "--max-cudagraph-capture-size" not in words
    assert words[words.index("--port") + 1] == "91"


def test_answers_and_log_of_a_server_are_looked_at() -> None:
    args = arguments(["serve", "--tokens", "2"])
    assert not faults_of(args, [[1, 2]], "INFO SparseMLA: version 0.1.0 computes ...")
    assert len(faults_of(args, [[1, 2], [1], [1, 8192]], "INFO vLLM")) == 3


def test_times_are_taken_in_one_engine_with_graphs() -> None:
    args = arguments(["times", "--batches", "1,64", "--modes", "full,flashmla,full"])
    assert args.modes == ("full", "flashmla")
    assert (args.mode, args.graphs, args.prefix, args.seqs) == ("full", 1, 0, 64)
    assert longest_decode(args) == 2048 + 64 + 2 * (4 + 16 + 4) + 1
    variables = settings_of(args)
    assert (variables["SPARSEMLA_VLLM"], variables["VLLM_USE_BREAKABLE_CUDAGRAPH"]) == ("full", "1")


@pytest.mark.parametrize(
    "words, said",
    [
        ([], "required: command"),
        (["check", "--mode", "flashmla"], "invalid choice: 'flashmla'"),
        (["check", "--own", "2"], "--own: invalid choice: 2"),
        (["check", "--heads", "12"], "--heads: got 12, expected a multiple of 8"),
        (["check", "--layers", "0,5"], "--layers: got 5, expected 0, 4 or 128"),
        (
            ["times", "--modes", "flashmla,off"],
            "--modes: got 'off', expected some of flashmla, attention, indexer, full, own",
        ),
        (["times", "--batches", "1,0"], "--batches: got 0, expected 1 or more"),
        (["times", "--context", "10700"], "--max-len: got 10752, expected at least"),
        (["check", "--peers", "0", "--tp", "2"], "--peers: got 0, expected 1 with --tp or --processes"),
        (["times", "--prefills", "64,4096"], "--prefills: got 4096, expected at most --budget, which is 2048"),
        (["times", "--past", "2000", "--prefills", "64"], "--past: got (2000,), expected multiples of --budget"),
        (["times", "--past", "2048", "--prefills", "64"], "--past: expected --prefills, and --async-sched 0"),
        (
            ["times", "--past", "10240", "--prefills", "512", "--async-sched", "0"],
            "--max-len: got 10752, expected more for these --prefills after --past",
        ),
    ],
)
def test_a_wrong_command_line_is_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        arguments(words)
    assert exit_.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("words, said", [(["--help"], "{check,serve,times}"), (["times", "--help"], "--csv FILE")])
def test_help_needs_neither_torch_nor_vllm(words: list[str], said: str) -> None:
    command = [sys.executable, "-S", str(ROOT / "python/bench/vllm"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert said in done.stdout


def test_prompts_of_a_check() -> None:
    prompts = [prompt["prompt_token_ids"] for prompt in mixed_prompts()]
    assert [len(prompt) for prompt in prompts] == list(LENGTHS)
    assert prompts == [prompt["prompt_token_ids"] for prompt in mixed_prompts()]
    begins = [tuple(prompt[:SHARED]) for prompt in prompts if len(prompt) > SHARED]
    shared = max(begins, key=begins.count)
    assert begins.count(shared) == 5
    assert len(set(begins)) == len(begins) - 4


def test_the_model_has_a_compress_ratio_for_each_layer_and_draft() -> None:
    config = small_config((0, 4, 128), 128, "fp8")
    assert config["num_hidden_layers"] == 3
    assert config["compress_ratios"] == [0, 4, 128, 0]
    assert (config["num_attention_heads"], config["o_groups"]) == (128, 16)
