"""A release records the settings that its encoder was trained with, not those of the day."""

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from clozeline.orchestration.checks import locked_architecture
from clozeline.params.reading import read_params
from clozeline.records.record import Lock
from tests.make.params import with_values

PROJECT = Path(__file__).parents[2]


@pytest.mark.parametrize("recipe", ["measured", "continue"])
def test_the_lock_gives_the_architecture_of_the_training_that_ran(tmp_path: Path, recipe: str) -> None:
    path = with_values(tmp_path, recipe=recipe)
    tree = YAML(typ="safe").load(path.read_text(encoding="utf-8"))
    tree["recipes"] = {recipe: {"model": {"max_position_embeddings": 2048, "dropout": 0.2}}}
    with path.open("w", encoding="utf-8") as file:
        YAML().dump(tree, file)
    params = {f"recipes.{recipe}": tree["recipes"][recipe], "pretrain.recipe": recipe}
    sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    params |= {"pretrain.objective": tree["pretrain"]["objective"]}
    params |= {"pretrain.model": dict.fromkeys(sizes) | tree["pretrain"]["model"]}
    stage = {"cmd": "train", "params": {"params.yaml": params}, "outs": [{"path": "models/encoder"}]}
    settings = locked_architecture(Lock.model_validate({"stages": {"pretrain": stage}}))
    assert settings == read_params(path).pretrain.architecture
    assert settings["model.max_position_embeddings"] == 2048


def test_an_encoder_that_no_stage_trained_has_no_locked_architecture() -> None:
    assert locked_architecture(Lock(stages={})) == {}
