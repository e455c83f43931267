"""Advice follows the figures, and a recommendation can be copied into params.yaml unchanged."""

from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from clozeline.params.pretraining import PretrainParams
from clozeline.params.project import Params
from clozeline.params.reading import read_params, read_tree
from clozeline.planning.advice import Situation, advise, as_tree, choices, combine
from clozeline.planning.costs import TrainingPlan, zoo
from clozeline.planning.timing import Speed

FILE = Path(__file__).parents[2] / "params.yaml"
PARAMS = read_params(FILE).pretrain
GIB = 2**30


def advice_on(
    vocab_size: int = 8192, memory: int = 16 * GIB, seconds_per_token: float = 1e-4, **changes: object
) -> str:
    model = PARAMS.model.model_copy(update={key: changes.pop(key) for key in ("family", "size") if key in changes})
    params: PretrainParams = PARAMS.model_copy(update={"model": model, **changes})
    plan = TrainingPlan.of(params, vocab_size)
    return " ".join(advise(Situation(plan, Speed(seconds_per_token, 0.0, params.batch_tokens), memory)))


def test_each_piece_of_advice_is_given_only_if_it_applies() -> None:
    usual = advice_on(vocab_size=512)
    for changes, told in (
        ({"memory": 2**20}, "does not fit"),
        ({"seconds_per_token": 0.1}, "more than a day"),
        ({"family": "bert"}, "unigram plateau"),
        ({"size": "base"}, "fewer than 20 tokens"),
        ({"optimizer": PARAMS.optimizer.model_copy(update={"learning_rate": 8e-3})}, "high for every size"),
        ({"size": "small"}, "Wider models want less"),
        ({"vocab_size": 64_000}, "`vocab_size`"),
        ({"max_length": 4096}, "attention costs more"),
        ({"family": "deberta-v3"}, "no fused attention"),
        ({"family": "electra", "objective": "rtd"}, "no ONNX export"),
    ):
        assert told in advice_on(**changes)
        assert told not in usual


def test_a_step_fits_exactly_if_all_its_parts_do() -> None:
    total = TrainingPlan.of(PARAMS, 8192).memory.total
    assert "does not fit" not in advice_on(memory=total)
    assert "does not fit" in advice_on(memory=total - 1)


@pytest.mark.slow
def test_the_zoo_has_every_family_in_every_size_and_larger_sizes_are_larger() -> None:
    table = zoo(PARAMS.model, 512)
    families = {family for family, _ in table}
    assert len(table) == 5 * len(families) == 60
    assert table["electra, rtd", "base"][1].total > table["electra", "base"][1].total
    for family in families:
        totals = [table[family, size][1].total for size in ("mini", "tiny", "small", "base", "large")]
        assert totals == sorted(totals)


@cache
def defaults() -> dict[str, Any]:
    tree: dict[str, Any] = read_tree(FILE)
    return tree


def laid_over(base: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in change.items():
        result[key] = laid_over(base[key], value) if isinstance(value, dict) else value
    return result


# Needs, of which one stands for all that continue from another encoder: these have the same keys.
KINDS = [need for need, row in choices().items() if need == "domain" or "pretrain.start" not in row.params]


@pytest.mark.parametrize("needs", [*[(need,) for need in choices()], *permutations(KINDS, 2)], ids="-".join)
def test_the_lines_make_a_params_file_that_is_accepted(needs: tuple[str, ...]) -> None:
    params = Params.model_validate(laid_over(defaults(), as_tree(combine(needs).params)))
    choice = choices()[needs[0]]
    assert (params.pretrain.start is None) == (params.tokenize.existing is None), "tokens belong to the start model"
    assert params.pretrain.recipe == ("measured" if params.pretrain.start is None else "domain-adaptation")
    if params.pretrain.start is None:
        assert (params.pretrain.model.family, params.pretrain.model.size) == (choice.family, choice.size)


def test_the_first_name_wins_and_the_other_is_reported() -> None:
    combined = combine(["efficiency", "accuracy"])
    assert combined.params["pretrain.model.size"] == "mini"
    assert combined.params["pretrain.steps"] == 100_000
    assert "pretrain.model.size" in combined.conflicts["accuracy"]
    assert "pretrain.model.family" not in combined.conflicts["accuracy"]
    assert combine(["accuracy", "efficiency"]).params["pretrain.model.size"] == "base"


def test_a_starting_model_is_trained_by_its_own_recipe_and_not_by_that_of_a_fresh_one() -> None:
    combined = combine(["domain", "accuracy", "long"])
    assert not [key for key in combined.params if key.startswith(("pretrain.optimizer", "pretrain.model.size"))]
    assert {"pretrain.optimizer.learning_rate", "pretrain.steps"} <= set(combined.conflicts["accuracy"])
    assert combined.params["pretrain.max_length"] == 256
