"""Claim: sections that contradict each other are refused, such as one that reads an output of no stage."""

import re
from pathlib import Path

import pytest

from clozeline.params.reading import read_params
from tests.make.params import PROJECT, Editor, message, with_task, with_values, without_tasks


@pytest.mark.parametrize(
    ("section", "key"),
    [("\nevaluate:", "evaluate"), ("  library:", "finetune.library")],
)
def test_rows_longer_than_the_model_reads_are_refused_with_both_lengths(tmp_path: Path, section: str, key: str) -> None:
    before, found, after = (PROJECT / "params.yaml").read_text(encoding="utf-8").partition(section)
    path = tmp_path / "params.yaml"
    path.write_text(before + found + re.sub(r"max_length: \d+", "max_length: 513", after, count=1), encoding="utf-8")
    told = message(path)
    assert f"given:    {key}.max_length: 513, pretrain.model.max_position_embeddings: 512\n" in told


def causal(folder: Path, *task: str, family: str = "modernbert") -> Path:
    path = with_task(folder, *task) if task else with_values(folder)
    text = path.read_text(encoding="utf-8").replace("objective: mlm ", "objective: clm ")
    path.write_text(text.replace("family: modernbert\n", f"family: {family}\n"), encoding="utf-8")
    return path


def test_the_default_tasks_and_exports_fit_a_causal_model(tmp_path: Path) -> None:
    assert read_params(causal(tmp_path)).export.models["encoder"] == "encoder"


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("tagging", "words after the one that it tags"),
        ("question_answering", "context after a word"),
        ("zero_shot", "fills no masks"),
    ],
)
def test_tasks_that_a_causal_model_cannot_learn_are_refused_by_name(tmp_path: Path, kind: str, why: str) -> None:
    told = message(causal(tmp_path, f"kind: {kind}", "data: some.jsonl"))
    assert f"given:    pretrain.objective: 'clm', finetune.more.kind: '{kind}'\n" in told
    assert "objective `mlm`" in told
    assert why in told


def test_an_entailment_task_is_accepted_with_a_causal_model(tmp_path: Path) -> None:
    path = causal(tmp_path, "kind: zero_shot", "data: some.jsonl", "entailment: {model: some-folder}")
    assert read_params(path).finetune["more"].kind == "zero_shot"


@pytest.mark.parametrize("family", ["bert", "roberta", "electra", "big_bird"])
def test_a_causal_family_that_classifies_at_the_first_token_is_refused(tmp_path: Path, family: str) -> None:
    """The first token of a causal model sees no other, so every text would get the same label."""
    told = message(causal(tmp_path, family=family))
    assert (
        f"pretrain.objective: 'clm', pretrain.model.family: '{family}', finetune.library.kind: 'classification'" in told
    )
    assert "family `modernbert`" in told


def test_exporting_a_discriminator_for_fill_mask_is_refused_but_its_generator_is_accepted(edited: Editor) -> None:
    path = edited("objective: mlm ", "objective: rtd ")
    path.write_text(path.read_text(encoding="utf-8").replace("family: modernbert", "family: electra"), encoding="utf-8")
    told = message(path)
    assert "given:    pretrain.objective: 'rtd', export.models.encoder: 'encoder'\n" in told
    assert "`encoder/generator`" in told
    exported = path.read_text(encoding="utf-8").replace("encoder: encoder", "encoder: encoder/generator")
    path.write_text(exported, encoding="utf-8")
    assert read_params(path).export.models["encoder"] == "encoder/generator"
    path.write_text(exported.replace("objective: rtd ", "objective: mlm "), encoding="utf-8")
    assert "one of: encoder, finetuned/docsearch, finetuned/library\n" in message(path)


def test_a_family_that_cannot_be_exported_is_refused_before_pre_training(tmp_path: Path) -> None:
    path = with_values(tmp_path, family="longformer")
    assert "`export.models: {}`" in message(path)
    assert read_params(without_tasks(path)).pretrain.model.family == "longformer"


def test_an_encoder_of_your_own_may_be_fine_tuned_and_exported(tmp_path: Path) -> None:
    params = read_params(with_values(tmp_path, family="mine:build"))
    assert params.finetune
    assert params.export.models


def test_an_exported_model_must_be_the_output_of_a_stage(edited: Editor) -> None:
    told = message(edited("library: finetuned/library", "library: finetuned/libary"))
    assert "finetuned/library" in told


def test_an_import_needs_another_name_than_an_export_and_its_default_prompt(edited: Editor) -> None:
    entry = (
        "{model: m, revision: null, task: fill-mask, pooling: mean, prompts: {}, default_prompt: query, max_length: 64,"
        " reads_pairs: false, items: i.jsonl, sha256: {}}"
    )
    told = message(edited("imports: {}", f"imports: {{library: {entry}}}"))
    assert "prompts" in told
    told = message(edited("imports: {}", f"imports: {{library: {entry.replace('query', 'null')}}}"))
    assert "different names: both are folders in dist/" in told
