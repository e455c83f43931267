"""The configuration registered for a family decides the inputs and outputs of its graph."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from optimum.exporters.tasks import TasksManager
from transformers import BertConfig

from clozeline.exporting.to_onnx import BACKEND, FAMILIES, OfPairs, configuration_of, export_onnx
from clozeline.exporting.trained import TrainedModel, open_trained
from clozeline.inference.open_model import MASKS_ONLY

TEXTS = ["input_ids", "attention_mask"]


class WithoutMask(OfPairs):
    @property
    def inputs(self) -> dict[str, dict[int, str]]:
        return {name: axes for name, axes in super().inputs.items() if name != "attention_mask"}


class OfAnotherOutput(OfPairs):
    @property
    def outputs(self) -> dict[str, dict[int, str]]:
        return {"tags": {0: "batch"}}


class OfNoExample(OfPairs):
    DUMMY_INPUT_GENERATOR_CLASSES = ()


@pytest.fixture(scope="module")
def tagger(small_tagger: Path) -> TrainedModel:
    return open_trained(small_tagger)


@pytest.fixture
def registered(request: pytest.FixtureRequest, tagger: TrainedModel) -> Iterator[None]:
    """Register BERT's taggers as the parameter says, and restore their registration afterwards."""
    register = TasksManager.create_register(BACKEND, overwrite_existing=True)
    register("bert", "token-classification")(request.param)
    yield
    register("bert", "token-classification")(FAMILIES["bert"])


@pytest.mark.parametrize(
    ("registered", "told"),
    [
        (WithoutMask, "attention_mask"),
        (OfAnotherOutput, "tags"),
        (OfNoExample, 'dummy input for "input_ids"'),
    ],
    indirect=["registered"],
)
@pytest.mark.usefixtures("registered")
def test_a_broken_registration_fails_the_export(tagger: TrainedModel, told: str, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=told):
        export_onnx(tagger, 23, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_a_family_that_is_not_registered_has_no_configuration() -> None:
    with pytest.raises(KeyError, match="deberta is not supported"):
        configuration_of("deberta", "fill-mask", BertConfig())


@pytest.mark.parametrize(
    ("family", "changes", "inputs"),
    [
        *((family, {}, [*TEXTS, "token_type_ids", MASKS_ONLY]) for family in ("albert", "bert", "electra")),
        *((family, {}, [*TEXTS, MASKS_ONLY]) for family in ("distilbert", "modernbert", "roberta", "xlm-roberta")),
        ("deberta-v2", {"type_vocab_size": 0}, TEXTS),
        ("deberta-v2", {"type_vocab_size": 2}, [*TEXTS, "token_type_ids"]),
        ("big_bird", {}, TEXTS),
        ("mpnet", {}, TEXTS),
    ],
)
def test_a_masked_language_model_has_the_optional_inputs_of_its_family(
    family: str, changes: dict[str, int], inputs: list[str]
) -> None:
    configuration = configuration_of(family, "fill-mask", BertConfig(**changes))
    example = configuration.generate_dummy_inputs(sequence_length=7)
    assert list(configuration.inputs) == list(example) == inputs
    assert {tuple(tensor.shape) for name, tensor in example.items() if name != MASKS_ONLY} == {(2, 7)}
