"""`Config`: the defaults of params.yaml, edited key by key."""

import pickle
from pathlib import Path

import pytest

from clozeline import Config, ParamsError, read_params
from clozeline.params.project import Params

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def config() -> Config:
    return Config()


def test_the_defaults_are_those_of_params_yaml(config: Config) -> None:
    assert config.checked == read_params(PROJECT / "params.yaml")


def test_every_section_is_listed(config: Config) -> None:
    assert set(dir(config)) == set(Params.model_fields)


def test_a_value_is_set_and_read_as_an_attribute_or_as_an_item(config: Config) -> None:
    config.pretrain.steps = 500
    config["pretrain"]["schedule"]["warmup_fraction"] = 0.2
    assert (config.pretrain.steps, config.checked.pretrain.steps) == (500, 500)
    assert config.checked.pretrain.schedule.warmup_fraction == 0.2


def test_a_mapping_is_laid_over_a_section(config: Config) -> None:
    before = config.checked.pretrain.model
    config["pretrain"]["model"] = {"dropout": 0.2}
    assert config.checked.pretrain.model == before.model_copy(update={"dropout": 0.2})


def test_a_mapping_replaces_the_names_that_a_user_chooses(config: Config) -> None:
    config["export"]["models"] = {"encoder": "encoder"}
    config["finetune"] = {}
    assert config.checked.export.models == {"encoder": "encoder"}
    assert config.checked.finetune == {}


def test_a_key_that_the_recipe_sets_can_be_changed(config: Config) -> None:
    config.pretrain.recipe = "low-resource"
    config.pretrain.masking.mask_rate = 0.25
    assert config.pretrain.masking.mask_rate == 0.25
    assert config.checked.pretrain.masking.mask_rate == 0.25
    assert config.checked.pretrain.masking.final_mask_rate is None, "set by the recipe"


def test_a_key_of_a_task_is_set_for_this_task_alone(config: Config) -> None:
    others = config.checked.finetune["docsearch"]
    config["finetune"]["library"]["optimizer"]["learning_rate"] = 1e-3
    assert config.checked.finetune["library"].optimizer.learning_rate == 1e-3
    assert config.checked.finetune["docsearch"] == others


@pytest.mark.parametrize(
    ("place", "key", "value", "told"),
    [
        ("pretrain", "stpes", 3, "rename it to `steps`"),
        ("pretrain", "steps", "many", "a whole number"),
        ("pretrain", "steps", True, "a number"),
        ("pretrain", "steps", -1, "greater than or equal to 0"),
        ("pretrain", "recipe", "strnge", "a key of `recipes`"),
        ("pretrain.model", "family", "bart", "modernbert"),
        ("finetune", "mine", {"kind": "classification", "data": "a.csv", "epocs": 3}, "rename it to `epochs`"),
        ("pretrain", "masking", {"mask_rate": 2.0}, "less than 1"),
    ],
)
def test_a_wrong_value_is_refused_where_it_is_set(
    config: Config, place: str, key: str, value: object, told: str
) -> None:
    section = config
    for name in place.split("."):
        section = section[name]
    before = config.checked
    with pytest.raises(ParamsError) as caught:
        setattr(section, key, value)
    assert told in str(caught.value)
    assert f"{place}.{key}" in str(caught.value)
    assert config.checked == before


def test_keys_that_contradict_each_other_are_reported_when_the_params_are_used(config: Config) -> None:
    config["pretrain"]["steps"] = config["pretrain"]["epochs"] = None
    with pytest.raises(ParamsError, match="a budget: set at least one"):
        _ = config.checked
    config.pretrain.tokens = 100
    assert config.checked.pretrain.tokens == 100


@pytest.mark.parametrize("recipe", ["measured", "mine"])
def test_a_budget_replaces_that_of_another_sort(config: Config, recipe: str) -> None:
    config["recipes"]["mine"] = {"steps": 1500}
    config.pretrain.recipe = recipe
    config.pretrain.epochs = 3
    assert (config.checked.pretrain.steps, config.checked.pretrain.epochs) == (None, 3)


def test_an_unknown_key_cannot_be_read(config: Config) -> None:
    with pytest.raises(AttributeError, match="`pretrain` has no key `stpes`"):
        _ = config.pretrain.stpes  # type: ignore[attr-defined]  # that is the point


def test_a_copy_is_independent(config: Config) -> None:
    other = config.copy()
    other.pretrain.steps = 7000
    assert config.pretrain.steps != 7000


def test_a_written_config_is_read_back_equal(config: Config, tmp_path: Path) -> None:
    config.pretrain.recipe = "low-resource"
    config.pretrain.steps = 7000
    config["finetune"]["mine"] = {"kind": "tagging", "data": "a.jsonl", "epochs": 2}
    config.write(tmp_path / "params.yaml")
    assert read_params(tmp_path / "params.yaml") == config.checked
    assert Config(tmp_path / "params.yaml").checked == config.checked


def test_a_section_shows_its_values(config: Config) -> None:
    assert "warmup_fraction: 0.0238" in repr(config.pretrain.schedule)
    assert "pretrain" in repr(config)


def test_another_process_gets_the_same_params(config: Config) -> None:
    config.pretrain.steps = 500
    sent, section = pickle.loads(pickle.dumps((config, config.pretrain.schedule)))  # noqa: S301  # our own bytes
    assert isinstance(sent, Config)
    assert sent.checked == config.checked
    assert repr(section) == repr(config.pretrain.schedule)
