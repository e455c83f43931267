"""Claim: a recipe overrides keys of `pretrain`; an error about one of its values names where it is written."""

from operator import attrgetter
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from clozeline.artifacts.lock import leaves
from clozeline.params import read_params
from clozeline.params.recipes import laid_over
from tests.edited_params import PROJECT, Editor, message, with_values


def recipe_names() -> list[str]:
    return list(YAML(typ="safe").load(PROJECT / "params.yaml")["recipes"])


@pytest.mark.parametrize("recipe", recipe_names())
def test_a_recipe_overrides_values_of_pretrain(tmp_path: Path, recipe: str) -> None:
    params = read_params(with_values(tmp_path, recipe=recipe))
    for key, value in leaves(params.recipes[recipe]):
        assert attrgetter(key)(params.pretrain) == value
    assert params.pretrain.recipe == recipe


def test_a_partial_section_keeps_the_other_values_of_the_base() -> None:
    beneath = {"masking": {"mask_rate": 0.3, "unit": "word"}, "seed": 1}
    laid = laid_over(beneath, {"masking": {"mask_rate": 0.1}})
    assert laid == {"masking": {"mask_rate": 0.1, "unit": "word"}, "seed": 1}
    assert beneath["masking"] == {"mask_rate": 0.3, "unit": "word"}, "the original values stay unchanged"


def test_each_recipe_sets_the_values_its_name_implies(tmp_path: Path) -> None:
    rates = {name: read_params(with_values(tmp_path, recipe=name)).pretrain for name in recipe_names()}
    assert rates["low-resource"].masking.mask_rate == 0.2
    assert rates["low-resource"].model.dropout > rates["standard"].model.dropout
    assert rates["domain-adaptation"].masking.mask_rate == 0.1
    assert rates["domain-adaptation"].optimizer.learning_rate < rates["standard"].optimizer.learning_rate


def test_an_unknown_key_in_an_unused_recipe_is_refused(edited: Editor) -> None:
    told = message(edited("masking: {mask_rate: 0.1,", "masking: {mask_rat: 0.1,"))
    assert "unknown key `recipes.domain-adaptation.masking.mask_rat`" in told
    assert "given:    mask_rat: 0.1\n" in told
    assert "rename it to `mask_rate`" in told


def test_a_wrong_value_in_a_recipe_is_reported_where_it_was_written(edited: Editor) -> None:
    path = edited("masking: {mask_rate: 0.1,", "masking: {mask_rate: 10,")
    path.write_text(path.read_text().replace("recipe: standard", "recipe: domain-adaptation"), encoding="utf-8")
    told = message(path)
    assert "`recipes.domain-adaptation.masking.mask_rate` cannot be used" in told
