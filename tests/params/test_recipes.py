"""Claim: a recipe overrides keys of `pretrain`; an error about one of its values names where it is written."""

from operator import attrgetter
from pathlib import Path

import pytest

from clozeline.params.pretraining import laid_over
from clozeline.params.reading import default_tree, read_params
from clozeline.records.record import leaves
from tests.make.params import message, with_values


def recipe_names() -> list[str]:
    return list(default_tree()["recipes"])


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


@pytest.mark.parametrize(
    ("recipe", "mask_rate", "shares", "head_dropout"),
    [
        ("standard", 0.15, (0.8, 0.1, 0.1), 0.1),
        ("low-resource", 0.2, (0.9, 0.05, 0.05), 0.15),
        ("domain-adaptation", 0.1, (0.9, 0.05, 0.05), 0.05),
    ],
)
def test_a_recipe_has_the_masks_and_the_dropout_that_its_name_stands_for(
    tmp_path: Path, recipe: str, mask_rate: float, shares: tuple[float, ...], head_dropout: float
) -> None:
    params = read_params(with_values(tmp_path, recipe=recipe)).pretrain
    masking = params.masking
    assert (masking.mask_rate, masking.final_mask_rate) == (mask_rate, None)
    assert (masking.mask_share, masking.random_share, masking.keep_share) == shares
    assert params.model.head_dropout == head_dropout
    assert (params.schedule.decay, params.schedule.warmup_fraction) == ("cosine", 0.1)


def test_domain_adaptation_alone_lowers_the_rate_of_the_family(tmp_path: Path) -> None:
    params = {name: read_params(with_values(tmp_path, recipe=name)).pretrain for name in recipe_names()}
    rate = params["measured"].optimizer.learning_rate
    assert params["standard"].optimizer.learning_rate == params["low-resource"].optimizer.learning_rate == rate
    adapted = params["domain-adaptation"].optimizer
    assert (adapted.learning_rate, adapted.weight_decay) == (1e-5, 0.001)


@pytest.mark.parametrize(
    ("recipe", "rows", "length", "rate", "beta2"),
    [
        ("bert", 256, 512, 1e-4, 0.999),  # Devlin et al. 2018, appendix A.2
        ("roberta", 8192, 512, 6e-4, 0.98),  # Liu et al. 2019, table 9
        ("24-hour-bert", 4096, 128, 2e-3, 0.98),  # Izsak et al. 2021, section 4
    ],
)
def test_a_published_recipe_has_its_published_values(
    tmp_path: Path, recipe: str, rows: int, length: int, rate: float, beta2: float
) -> None:
    params = read_params(with_values(tmp_path, recipe=recipe)).pretrain
    optimizer = params.optimizer
    assert (params.batch_tokens, params.max_length) == (rows * length, length)
    assert (optimizer.kind, optimizer.learning_rate) == ("adamw", rate)
    assert (optimizer.beta1, optimizer.beta2, optimizer.epsilon, optimizer.weight_decay) == (0.9, beta2, 1e-6, 0.01)
    assert (params.masking.mask_rate, params.masking.final_mask_rate) == (0.15, None)
    assert (params.model.dropout, params.model.attention_dropout) == (0.1, 0.1)
    assert (params.schedule.decay, params.schedule.final_fraction) == ("linear", 0.0)


def with_recipes(folder: Path, recipes: str, chosen: str = "measured") -> Path:
    path = with_values(folder, recipe=chosen)
    path.write_text(f"{path.read_text(encoding='utf-8')}\nrecipes: {recipes}\n", encoding="utf-8")
    return path


def test_a_recipe_of_ones_own_is_chosen_by_its_name(tmp_path: Path) -> None:
    params = read_params(with_recipes(tmp_path, "{mine: {masking: {mask_rate: 0.25}}}", "mine"))
    assert (params.pretrain.masking.mask_rate, params.pretrain.masking.final_mask_rate) == (0.25, 0.15)
    assert set(params.recipes) == {"mine", *recipe_names()}


def test_values_under_the_name_of_a_recipe_are_laid_over_it(tmp_path: Path) -> None:
    path = with_recipes(tmp_path, "{low-resource: {masking: {mask_rate: 0.25}}}", "low-resource")
    masking = read_params(path).pretrain.masking
    assert (masking.mask_rate, masking.mask_share) == (0.25, 0.9)


def test_an_unknown_key_in_an_unused_recipe_is_refused(tmp_path: Path) -> None:
    told = message(with_recipes(tmp_path, "{domain-adaptation: {masking: {mask_rat: 0.1}}}"))
    assert "unknown key `recipes.domain-adaptation.masking.mask_rat`" in told
    assert "given:    mask_rat: 0.1\n" in told
    assert "rename it to `mask_rate`" in told


def test_a_wrong_value_in_a_recipe_is_reported_where_it_was_written(tmp_path: Path) -> None:
    told = message(with_recipes(tmp_path, "{domain-adaptation: {masking: {mask_rate: 10}}}", "domain-adaptation"))
    assert "`recipes.domain-adaptation.masking.mask_rate` cannot be used" in told
