"""Advice follows the figures."""

from pathlib import Path
from typing import Any

import pytest

from clozeline.params.pretraining import PretrainParams
from clozeline.params.reading import read_params
from clozeline.planning.advice import Situation, advise
from clozeline.planning.costs import TrainingPlan, zoo
from clozeline.planning.timing import Speed

PARAMS = read_params(Path(__file__).parents[2] / "params.yaml").pretrain
GIB = 2**30


def advice_on(
    vocab_size: int = 8192, memory: int = 16 * GIB, seconds_per_token: float = 1e-4, **changes: object
) -> str:
    model = PARAMS.model.model_copy(update={key: changes.pop(key) for key in ("family", "size") if key in changes})
    params: PretrainParams = PARAMS.model_copy(update={"model": model, **changes})
    plan = TrainingPlan.of(params, vocab_size)
    return " ".join(advise(Situation(plan, Speed(seconds_per_token, 0.0, params.batch_tokens), memory)))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"memory": 2**20}, "does not fit"),
        ({"seconds_per_token": 0.1}, "more than a day"),
        ({"family": "bert"}, "unigram plateau"),
        ({"size": "base"}, "fewer than 20 tokens"),
        ({"optimizer": PARAMS.optimizer.model_copy(update={"learning_rate": 8e-3})}, "high for every size"),
        ({"size": "small"}, "Wider models want less"),
        ({"vocab_size": 64_000}, "`vocab_size`"),
        ({"max_length": 4096}, "attention costs more"),
        ({"family": "deberta-v3"}, "no fused attention"),
        ({"family": "longformer"}, "no ONNX export"),
        ({"family": "electra", "objective": "rtd"}, "no ONNX export"),
    ],
)
def test_each_piece_of_advice_is_given_only_if_it_applies(changes: dict[str, Any], told: str) -> None:
    assert told in advice_on(**changes)
    assert told not in advice_on(vocab_size=512)


def test_the_rate_of_another_optimizer_is_not_judged_by_that_of_adamw() -> None:
    muon = PARAMS.optimizer.model_copy(update={"kind": "muon", "learning_rate": 8e-3})
    assert "high for every size" not in advice_on(optimizer=muon)


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
