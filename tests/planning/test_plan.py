"""A plan describes the model that will be trained: that of the checkpoint, if training goes on from one."""

from collections.abc import Callable
from pathlib import Path

import pytest

from clozeline.encoder.architecture import Shape
from clozeline.encoder.families import FAMILIES
from clozeline.encoder.families.layout import TokenIds
from clozeline.language import models
from clozeline.params.pretraining import PretrainParams
from clozeline.params.reading import read_params
from clozeline.planning.advice import Situation, advise
from clozeline.planning.costs import ParameterCount, TrainingPlan

PARAMS = read_params(Path(__file__).parents[2] / "params.yaml").pretrain
SHAPE = {"size": None, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
VOCAB_SIZE = 70
SaveFamily = Callable[..., tuple[ParameterCount, PretrainParams]]


@pytest.fixture
def save(tiny_tokenizer: Path, tmp_path: Path) -> SaveFamily:
    """`save(family, pad_id)`: a model's count, and params that go on from it, though they name another family."""

    def save(family: str, pad_id: int = 5) -> tuple[ParameterCount, PretrainParams]:
        shape = PARAMS.model.model_copy(update={**SHAPE, "family": family})
        model = models.build(shape, "mlm", TokenIds(VOCAB_SIZE, pad_id, cls_id=2, sep_id=3), seed=0)
        folder = tmp_path / family
        folder.mkdir()
        models.save(model, tiny_tokenizer, folder)
        return ParameterCount.of(model), PARAMS.model_copy(update={"start": str(folder)})

    return save


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("pad_id", [1, 5])
def test_a_checkpoint_of_any_family_is_planned_with_any_padding_id(family: str, pad_id: int, save: SaveFamily) -> None:
    count, params = save(family, pad_id)
    plan = TrainingPlan.of(params, VOCAB_SIZE)
    assert plan.count == count
    assert plan.shape == Shape(1, 32, 2, 32)
    assert plan.family in {family, family.replace("v3", "v2")}  # v2 and v3 share one class


def test_advice_concerns_the_family_of_the_checkpoint_and_suggests_no_smaller_one(save: SaveFamily) -> None:
    _, params = save("longformer")
    large = params.model_copy(update={"model": params.model.model_copy(update={"size": "large"}), "steps": 1})
    told = " ".join(advise(Situation(TrainingPlan.of(large, VOCAB_SIZE), None, 2**40)))
    assert "no ONNX export" in told
    assert "a smaller size may" not in told
