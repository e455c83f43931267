"""Claim: budgets and objectives that do not go together are refused with all their keys."""

from pathlib import Path

import pytest

from clozeline.params.reading import read_params
from tests.make.params import Editor, message, with_values


def test_zero_steps_require_a_start_checkpoint(tmp_path: Path) -> None:
    assert "`start` beside `steps: 0`" in message(with_values(tmp_path, steps="0"))
    assert read_params(with_values(tmp_path, steps="0", start="bert-base-uncased")).pretrain.steps == 0


NO_BUDGET = {"steps": "null", "tokens": "null", "epochs": "null"}


@pytest.mark.parametrize("values", [{"steps": "7"}, {"tokens": "1000"}, {"epochs": "3"}, {"steps": "7", "epochs": "3"}])
def test_a_budget_is_in_steps_or_tokens_or_epochs_or_in_several(tmp_path: Path, values: dict[str, str]) -> None:
    params = read_params(with_values(tmp_path, **{**NO_BUDGET, **values})).pretrain
    found = {name: getattr(params, name) for name in NO_BUDGET}
    assert found == {**dict.fromkeys(NO_BUDGET), **{name: int(value) for name, value in values.items()}}


def test_a_training_without_a_budget_is_refused(tmp_path: Path) -> None:
    assert "a budget: set at least one" in message(with_values(tmp_path, **NO_BUDGET))


def test_only_electra_accepts_the_replaced_token_objective(edited: Editor) -> None:
    told = message(edited("objective: mlm ", "objective: rtd "))
    assert "given:    pretrain.objective: 'rtd', pretrain.model.family: 'modernbert', pretrain.start: null\n" in told
    assert "family `electra`" in told


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("generator_fraction: 0.25", "generator_fraction: 1.5", "less than or equal to 1"),
        ("generator_fraction: 0.25", "generator_fraction: 0", "greater than 0"),
        ("discriminator_weight: 50.0", "discriminator_weight: 0", "greater than 0"),
    ],
)
def test_an_impossible_generator_discriminator_pair_is_refused(
    edited: Editor, old: str, new: str, expected: str
) -> None:
    assert expected in message(edited(old, new))


def test_settings_of_continued_training_are_refused_for_other_training(tmp_path: Path) -> None:
    assert "`replay_fraction` is for `start: champion`" in message(with_values(tmp_path, replay_fraction="0.5"))
    params = read_params(with_values(tmp_path, start="champion", replay_fraction="0.5")).pretrain
    assert (params.start, params.replay_fraction) == ("champion", 0.5)
    told = message(with_values(tmp_path, start="champion", start_revision="abc"))
    assert "`start_revision` names a state of a folder or hub name" in told


def test_the_champion_is_a_start_only_if_the_encoder_is_released(tmp_path: Path) -> None:
    path = with_values(tmp_path, start="champion")
    path.write_text(path.read_text().replace("    encoder: encoder\n", ""))
    assert "the encoder in `export.models`" in message(path)


def test_a_tokenizer_other_than_the_champions_is_refused(tmp_path: Path) -> None:
    path = with_values(tmp_path, start="champion")
    path.write_text(
        path.read_text()
        .replace("  existing: null", "  existing: elsewhere")
        .replace("algorithm: wordpiece", "algorithm: existing")
    )
    assert "the tokenizer is the champion's" in message(path)
