"""The entry point, settings, the choice of a layer's class, and what is refused with which sentence."""

from __future__ import annotations

import importlib
import logging
import sys
from typing import Any

import pytest
import sparsemla.vllm as plugin
from sparsemla.vllm import report
from sparsemla.vllm.kernels import Kernels
from sparsemla.vllm.settings import Mode, Settings, read_settings
from stand_in import DeepseekV4FlashInferMLAAttention, DeepseekV4FlashMLAAttention, Vllm, config


@pytest.fixture(autouse=True)
def everything_is_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "_said", set())


def test_entry_point_names_models_and_imports_none(vllm_stand_in: Vllm) -> None:
    plugin.register()
    plugin.register()
    assert vllm_stand_in.registry.models == {
        "DeepseekV4ForCausalLM": "sparsemla.vllm.models:DeepseekV4ForCausalLM",
        "DeepSeekV4MTPModel": "sparsemla.vllm.models:DeepSeekV4MTP",
        "DeepseekV41ForCausalLM": "sparsemla.vllm.refused_models:DeepseekV41ForCausalLM",
        "LlamaForCausalLM": "vLLM's",
    }
    assert not {"sparsemla.vllm.models", "sparsemla.vllm.layer", "sparsemla.vllm.takeover"} & set(sys.modules)


def test_entry_point_does_nothing_when_off(vllm_stand_in: Vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARSEMLA_VLLM", "off")
    plugin.register()
    assert set(vllm_stand_in.registry.models.values()) == {"vLLM's"}


def test_settings_are_words_of_the_environment() -> None:
    assert read_settings({}) == Settings(Mode.ATTENTION)
    assert read_settings({"SPARSEMLA_VLLM": " Full "}).mode is Mode.FULL
    made = read_settings({"SPARSEMLA_VLLM_PORTABLE": "1", "SPARSEMLA_VLLM_DETERMINISTIC": "1"})
    assert (made.portable, made.deterministic) == (True, True)
    with pytest.raises(ValueError, match="SPARSEMLA_VLLM: got 'fast', expected one of off, attention, indexer, full"):
        read_settings({"SPARSEMLA_VLLM": "fast"})
    with pytest.raises(ValueError, match="SPARSEMLA_VLLM_PORTABLE: got 'yes', expected 0 or 1"):
        read_settings({"SPARSEMLA_VLLM_PORTABLE": "yes"})


def test_models_are_vllms_own_after_the_choice_is_replaced(vllm_stand_in: Vllm) -> None:
    before = vllm_stand_in.model._select_dsv4_attn_cls
    models = importlib.import_module("sparsemla.vllm.models")
    assert (models.DeepseekV4ForCausalLM, models.DeepSeekV4MTP) == ("the model", "the draft")
    replaced = vllm_stand_in.model._select_dsv4_attn_cls
    assert replaced.__wrapped__ is before
    importlib.import_module("sparsemla.vllm.takeover").install()
    assert vllm_stand_in.model._select_dsv4_attn_cls is replaced
    with pytest.raises(AttributeError):
        _ = models.NoSuchModel


def test_v41_stays_vllms_and_the_log_says_so(vllm_stand_in: Vllm, caplog: pytest.LogCaptureFixture) -> None:
    models = importlib.import_module("sparsemla.vllm.refused_models")
    assert models.DeepseekV41ForCausalLM == "the other model"
    assert "its attention stays vLLM's" in caplog.text


def choose(vllm: Vllm, settings: Settings, device: str = "cpu", **changes: Any) -> type:
    takeover = importlib.import_module("sparsemla.vllm.takeover")
    made: type = takeover.chooser(vllm.model._select_dsv4_attn_cls, settings, device)(config(**changes))
    return made


@pytest.mark.parametrize("mode", [Mode.ATTENTION, Mode.INDEXER, Mode.FULL])
def test_the_layer_is_ours_and_the_log_says_what_by_which(
    vllm_stand_in: Vllm, caplog: pytest.LogCaptureFixture, mode: Mode
) -> None:
    with caplog.at_level(logging.INFO):
        made: Any = choose(vllm_stand_in, Settings(mode))
        assert choose(vllm_stand_in, Settings(mode)) is made
    assert issubclass(made, DeepseekV4FlashMLAAttention)
    assert made is not DeepseekV4FlashMLAAttention
    assert made.settings.mode is mode
    assert [made.get_padded_num_q_heads(n) for n in (1, 16, 20, 128)] == (
        [1, 16, 20, 128] if mode is Mode.FULL else [8, 16, 32, 128]
    )
    with pytest.raises(ValueError, match="heads: got 129, expected at most 128"):
        made.get_padded_num_q_heads(129)
    assert caplog.text.count("attention") >= 1
    assert f"SPARSEMLA_VLLM={mode.value}" in caplog.text
    assert "kernels" in caplog.text
    assert len(caplog.records) == 1


REFUSED = {
    "decode_context_parallel_size is 2": {"decode_context_parallel_size": 2},
    "prefill_context_parallel_size is 4": {"prefill_context_parallel_size": 4},
    "the cache dtype is bfloat16, and fp8_ds_mla rows are expected": {"cache_dtype": "bfloat16"},
    "heads have 576 numbers of which 64 are rotated": {"head_dim": 576},
    "there are 256 heads a rank, and 1 to 128 are expected": {"num_attention_heads": 256},
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_is_not_taken_over_stays_vllms(
    vllm_stand_in: Vllm, caplog: pytest.LogCaptureFixture, sentence: str
) -> None:
    assert choose(vllm_stand_in, Settings(Mode.FULL), **REFUSED[sentence]) is DeepseekV4FlashMLAAttention
    assert f"attention stays DeepseekV4FlashMLAAttention: {sentence}" in caplog.text
    assert vllm_stand_in.attention.fused_indexer_q_rope_quant() == "vLLM's"


def test_plain_rows_stay_vllms(vllm_stand_in: Vllm, caplog: pytest.LogCaptureFixture) -> None:
    vllm_stand_in.chosen = DeepseekV4FlashInferMLAAttention
    assert choose(vllm_stand_in, Settings()) is DeepseekV4FlashInferMLAAttention
    assert "DeepseekV4FlashInferMLAAttention keeps plain rows" in caplog.text


def test_a_machine_without_kernels_stays_vllms(vllm_stand_in: Vllm, caplog: pytest.LogCaptureFixture) -> None:
    import sparsemla

    if sparsemla.built_with_cuda():
        pytest.skip("this build has CUDA, and whether a GPU is there is not asked here")
    assert choose(vllm_stand_in, Settings(), device="cuda") is DeepseekV4FlashMLAAttention
    assert "this build has no CUDA" in caplog.text
    assert len(caplog.text.splitlines()) == 1


def test_off_asks_nothing(vllm_stand_in: Vllm) -> None:
    assert choose(vllm_stand_in, Settings(Mode.OFF), device="no device") is DeepseekV4FlashMLAAttention


def test_index_queries_are_ours_in_mode_full_alone(vllm_stand_in: Vllm) -> None:
    vllms = vllm_stand_in.attention.fused_indexer_q_rope_quant
    choose(vllm_stand_in, Settings(Mode.INDEXER))
    assert vllm_stand_in.attention.fused_indexer_q_rope_quant is vllms
    choose(vllm_stand_in, Settings(Mode.FULL))
    ours = vllm_stand_in.attention.fused_indexer_q_rope_quant
    choose(vllm_stand_in, Settings(Mode.FULL))
    assert vllm_stand_in.attention.fused_indexer_q_rope_quant is ours
    assert ours.__wrapped__ is vllms


def test_plans_of_an_absent_flashmla_are_empty(vllm_stand_in: Vllm) -> None:
    choose(vllm_stand_in, Settings(Mode.FULL))
    assert vllm_stand_in.sparse_swa.get_mla_metadata()[0] == "plan"
    vllm_stand_in.flashmla_available = False
    choose(vllm_stand_in, Settings(Mode.FULL, deterministic=True))
    assert type(vllm_stand_in.sparse_swa.get_mla_metadata()[0]) is object


def test_plans_are_kept_up_to_a_number() -> None:
    kernels = Kernels(kept_plans=2)
    plans = [kernels.plan("topk", {"rows": n, "width": 8, "k": 4}, "cpu") for n in (1, 2, 1, 3, 1, 2)]
    assert plans[0] is plans[2] is plans[4]
    assert plans[1] is not plans[5]
    assert kernels.used["topk"] == plans[0].implementation
