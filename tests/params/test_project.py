"""Claim: sections that contradict each other are refused, such as one that reads what no other makes."""

import re
from pathlib import Path

import pytest

from clozeline.params import read_params
from tests.edited_params import PROJECT, Editor, message


@pytest.mark.parametrize(
    ("section", "key"),
    [("  num_folds:", "evaluate"), ("  library:", "finetune.library")],
)
def test_rows_longer_than_the_model_reads_are_refused_with_both_lengths(tmp_path: Path, section: str, key: str) -> None:
    before, found, after = (PROJECT / "params.yaml").read_text(encoding="utf-8").partition(section)
    path = tmp_path / "params.yaml"
    path.write_text(before + found + re.sub(r"max_length: \d+", "max_length: 513", after, count=1), encoding="utf-8")
    told = message(path)
    assert f"given:    {key}.max_length: 513, pretrain.model.max_position_embeddings: 512\n" in told


def test_an_evaluation_batch_holds_a_row_at_least(edited: Editor) -> None:
    told = message(edited("  batch_tokens: 8192", "  batch_tokens: 63"))
    assert "given:    evaluate.batch_tokens: 63, evaluate.max_length: 64\n" in told


def test_a_causal_model_is_not_exported_to_fill_masks(edited: Editor) -> None:
    told = message(edited("objective: mlm ", "objective: clm "))
    assert "given:    pretrain.objective: 'clm', export.models.encoder: 'encoder'\n" in told
    assert "leave it out of `export.models`" in told


def test_a_discriminator_is_not_exported_to_fill_masks_but_its_generator_is(edited: Editor) -> None:
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


def test_an_exported_model_must_be_one_that_is_made(edited: Editor) -> None:
    told = message(edited("library: finetuned/library", "library: finetuned/libary"))
    assert "finetuned/library" in told
