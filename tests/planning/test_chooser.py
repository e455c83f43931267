"""Advice can be copied into params.yaml unchanged."""

from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from clozeline.cli.plan import Need
from clozeline.params.model import FAMILY_NAMES, SIZE_NAMES
from clozeline.params.project import Params
from clozeline.params.reading import read_tree
from clozeline.planning.chooser import as_tree, choices, combine

PARAMS = Path(__file__).parents[2] / "params.yaml"


@cache
def defaults() -> dict[str, Any]:
    tree: dict[str, Any] = read_tree(PARAMS)
    return tree


def laid_over(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in change.items():
        result[key] = laid_over(base[key], value) if isinstance(value, dict) else value
    return result


@pytest.mark.parametrize("needs", [*[(need,) for need in choices()], *permutations(choices(), 2)], ids="-".join)
def test_the_lines_make_a_params_file_that_is_accepted(needs: tuple[str, ...]) -> None:
    params = Params.model_validate(laid_over(defaults(), as_tree(combine(needs).params)))
    choice = choices()[needs[0]]
    assert (params.pretrain.start is None) == (params.tokenize.existing is None), "tokens belong to the start model"
    assert params.pretrain.recipe == ("measured" if params.pretrain.start is None else "domain-adaptation")
    if params.pretrain.start is None:
        assert (params.pretrain.model.family, params.pretrain.model.size) == (choice.family, choice.size)


def test_each_choice_names_existing_rows_of_the_tables() -> None:
    assert set(choices()) == set(Need)
    for choice in (choice for choice in choices().values() if "pretrain.start" not in choice.params):
        assert choice.family in FAMILY_NAMES
        assert choice.size in SIZE_NAMES


def test_the_first_name_wins_and_the_other_is_reported() -> None:
    combined = combine(["efficiency", "accuracy"])
    assert combined.params["pretrain.model.size"] == "mini"
    assert combined.params["pretrain.steps"] == 100_000
    assert "pretrain.model.size" in combined.conflicts["accuracy"]
    assert "pretrain.model.family" not in combined.conflicts["accuracy"]
    assert combine(["accuracy", "efficiency"]).params["pretrain.model.size"] == "base"


def test_a_start_is_chosen_only_with_its_own_tokenizer() -> None:
    combined = combine(["multilingual", "domain"])
    assert "pretrain.start" not in combined.params
    assert set(combined.conflicts["domain"]) == set(choices()["domain"].params)


def test_a_masked_start_keeps_its_objective() -> None:
    combined = combine(["domain", "generation"])
    assert combined.params["pretrain.objective"] == "mlm"
    assert "pretrain.objective" in combined.conflicts["generation"]


def test_a_starting_model_is_trained_by_its_own_recipe_and_not_by_that_of_a_fresh_one() -> None:
    combined = combine(["domain", "accuracy", "long"])
    assert not [key for key in combined.params if key.startswith(("pretrain.optimizer", "pretrain.model.size"))]
    assert {"pretrain.optimizer.learning_rate", "pretrain.steps"} <= set(combined.conflicts["accuracy"])
    assert combined.params["pretrain.max_length"] == 256
