"""Claim: a setting of a pre-training that is impossible or has no effect is reported before its first step."""

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from clozeline.params.pretraining import PretrainParams
from clozeline.pretraining import job as pretraining
from clozeline.pretraining.job import Pretraining
from clozeline.system.errors import ArtifactError, ParamsError

Prepare = Callable[..., Pretraining]


@pytest.fixture
def prepare(tiny_tokens: Path, tiny_tokenizer: Path, tiny_pretraining: PretrainParams, tmp_path: Path) -> Prepare:
    def prepare(seed: int = 1, tokenizer: Path = tiny_tokenizer, **changes: object) -> Pretraining:
        params = tiny_pretraining.model_copy(update=changes)
        return pretraining.prepare(params, seed=seed, tokens=tiny_tokens, tokenizer=tokenizer, work=tmp_path / "work")

    return prepare


def test_tokens_of_another_tokenizer_are_refused(prepare: Prepare, tiny_tokenizer: Path, tmp_path: Path) -> None:
    """The tokenizer has as many tokens, but two have swapped ids; no other check would notice."""
    other = shutil.copytree(tiny_tokenizer, tmp_path / "other")
    facts = json.loads((other / "tokenizer.json").read_text(encoding="utf-8"))
    facts["model"]["vocab"] |= {"w5": 6, "w6": 5}
    (other / "tokenizer.json").write_text(json.dumps(facts), encoding="utf-8")
    with pytest.raises(ArtifactError) as caught:
        prepare(tokenizer=other)
    assert "were not made with this tokenizer" in str(caught.value)
    assert str(other / "tokenizer.json") in str(caught.value)


def test_a_missing_tokenizer_is_reported_before_the_training(prepare: Prepare, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"no file .*nowhere"):
        prepare(tokenizer=tmp_path / "nowhere")


def test_a_budget_in_epochs_reads_the_batches_so_often(prepare: Prepare) -> None:
    def steps(epochs: float) -> int:
        return prepare(steps=None, epochs=epochs).loop.total_steps

    in_one = steps(1)
    assert in_one > 2
    assert (steps(3), steps(1e-9)) == (3 * in_one, 1)


def test_a_negative_seed_is_refused(prepare: Prepare) -> None:
    with pytest.raises(ParamsError, match=r"(?s)seed.*-1"):
        prepare(seed=-1)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"unit": "word"}, "unit word"),
        ({"protected_tokens": ("w5", "w6")}, "protected_tokens w5, w6"),
        ({}, ""),
    ],
)
def test_masking_params_ignored_by_causal_training_are_reported(
    prepare: Prepare,
    tiny_pretraining: PretrainParams,
    changes: dict[str, object],
    told: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    masking = tiny_pretraining.masking.model_copy(update=changes)
    with caplog.at_level(logging.WARNING):
        prepare(masking=masking)
        assert not caplog.records, "masked training has no such warning"
        prepare(masking=masking, objective="clm")
    assert ("no effect" in caplog.text) == bool(told)
    assert told in caplog.text
