"""Values of params.yaml change in its text, and nothing else does."""

import pickle
import shutil
from pathlib import Path

import pytest

from clozeline import Config
from clozeline.params.editing import assignments, changes_in, edit
from clozeline.params.project import Params
from clozeline.params.reading import read_params
from clozeline.system.errors import ParamsError
from tests.conftest import PROJECT


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return Path(shutil.copy(PROJECT / "params.yaml", tmp_path))


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("finetune.library.epochs=5", "    epochs: 5"),
        ("finetune.library.optimizer.learning_rate=1e-3", "    optimizer: {learning_rate: 0.001}"),
        ("finetune.docsearch.optimizer.kind=lamb", "    optimizer: {learning_rate: 4.0e-3, kind: lamb}"),
        ("export.models={encoder: encoder}", "  models: {encoder: encoder}"),
        (
            "preprocess.source.label_field='a: b'",
            f"    label_field: 'a: b'{' ' * 8}# ... and field of its label; null: no labels",
        ),
        ("presets.sst2.metric=f1", "presets: {sst2: {metric: f1}}"),
    ],
)
def test_a_key_is_written_where_it_belongs(path: Path, setting: str, line: str) -> None:
    before = path.read_text(encoding="utf-8").splitlines()
    assert len(edit(path, assignments([setting]), "--set")) == 1
    assert [line for line in path.read_text(encoding="utf-8").splitlines() if line not in before] == [line]
    assert edit(path, assignments([setting]), "--set") == [], "it is there already"


def test_a_short_file_gets_missing_keys_and_an_alias_is_replaced_where_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    short = "pretrain:\n  max_length: &length 32  # short\nfinetune: {}\n"
    path.write_text(f"{short}export: {{models: {{it: encoder}}}}\nevaluate: {{max_length: *length}}\n")
    edit(path, assignments(["pretrain.steps=500", "tokenize.vocab_size=99", "evaluate.max_length=30"]), "--set")
    assert path.read_text() == (
        "pretrain:\n  max_length: &length 32  # short\n  steps: 500\nfinetune: {}\n"
        "export: {models: {it: encoder}}\nevaluate: {max_length: 30}\ntokenize: {vocab_size: 99}\n"
    )


def test_a_budget_replaces_that_of_another_sort_and_a_key_of_the_recipe_is_changed_there(path: Path) -> None:
    for settings, said in (
        (["pretrain.epochs=2.5"], ["pretrain.epochs: 50 → 2.5", "pretrain.steps: 6300 → null"]),
        (["pretrain.steps=50"], ["pretrain.steps: null → 50", "pretrain.epochs: 2.5 → null"]),
        (["pretrain.steps=40", "pretrain.tokens=50"], ["pretrain.steps: 50 → 40", "pretrain.tokens: null → 50"]),
    ):
        assert edit(path, assignments(settings), "--set") == said
    settings = ["pretrain.recipe=low-resource", "pretrain.model.head_dropout=0.3"]
    assert edit(path, assignments(settings), "--set")[1] == "recipes.low-resource.model.head_dropout: 0.15 → 0.3"
    assert read_params(path).pretrain.model.head_dropout == 0.3


def test_a_setting_that_cannot_be_used_is_refused_and_nothing_is_written(path: Path) -> None:
    for setting, said in (
        ("pretrain.stepz=1", "rename it to `steps`"),
        ("pretrain.steps=many", "a whole number"),
        ("pretrain.steps", "KEY=VALUE"),
        ("seed=[1", "is not YAML"),
        ("seed.inner=1", "seed"),
    ):
        with pytest.raises(ParamsError) as caught:
            edit(path, assignments(["pretrain.batch_tokens=1024", setting]), "--set")
        assert said in str(caught.value)
        assert path.read_bytes() == (PROJECT / "params.yaml").read_bytes()


def test_a_file_is_laid_over_sections_and_replaces_what_the_user_names(path: Path, tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    for content, said in ((None, "there is no"), ("- one\n", "not sections of params.yaml"), ("a: [", "is not YAML")):
        if content:
            config.write_text(content)
        with pytest.raises(ParamsError, match=said):
            changes_in(config)
    config.write_text(
        "pretrain: {masking: {unit: word}, recipe: low-resource}\nfinetune: {}\nexport: {models: {it: encoder}}\n"
    )
    edit(path, changes_in(config), config.name)
    params = read_params(path)
    assert (params.pretrain.masking.unit, params.pretrain.masking.mask_rate) == ("word", 0.2)
    assert (params.finetune, params.export.models) == ({}, {"it": "encoder"})


@pytest.fixture
def config() -> Config:
    return Config()


def test_the_defaults_are_those_of_params_yaml(config: Config) -> None:
    assert config.checked == read_params(PROJECT / "params.yaml")
    assert set(dir(config)) == set(Params.model_fields)
    assert "warmup_fraction: 0.0238" in repr(config.pretrain.schedule)
    assert "pretrain" in repr(config)


def test_a_value_is_set_and_read_as_an_attribute_or_as_an_item(config: Config) -> None:
    before = config.checked
    config.pretrain.steps = 500
    config["pretrain"]["model"] = {"dropout": 0.2}  # laid over the section
    config["export"]["models"] = {"encoder": "encoder"}  # a user chose these names
    config["finetune"]["library"]["optimizer"]["learning_rate"] = 1e-3
    after = config.checked
    assert (config.pretrain.steps, after.pretrain.steps) == (500, 500)
    assert after.pretrain.model == before.pretrain.model.model_copy(update={"dropout": 0.2})
    assert after.export.models == {"encoder": "encoder"}
    assert after.finetune["library"].optimizer.learning_rate == 1e-3
    assert after.finetune["docsearch"] == before.finetune["docsearch"]
    with pytest.raises(AttributeError, match="`pretrain` has no key `stpes`"):
        _ = config.pretrain.stpes  # type: ignore[attr-defined]  # that is the point


def test_a_key_that_the_recipe_sets_can_be_changed_and_a_budget_replaces_that_of_another_sort(config: Config) -> None:
    config.pretrain.recipe = "low-resource"
    config.pretrain.masking.mask_rate = 0.25
    assert config.pretrain.masking.mask_rate == config.checked.pretrain.masking.mask_rate == 0.25
    assert config.checked.pretrain.masking.final_mask_rate is None, "set by the recipe"
    with pytest.raises(ParamsError, match=r"`recipes.low-resource.masking.mask_rate` cannot be used"):
        config.pretrain.masking.mask_rate = 2.0
    config["recipes"]["mine"] = {"steps": 1500}
    config.pretrain.recipe = "mine"
    config.pretrain.epochs = 3
    assert (config.checked.pretrain.steps, config.checked.pretrain.epochs) == (None, 3)


def test_a_wrong_value_is_refused_where_it_is_set(config: Config) -> None:
    for place, key, value, told in (
        ("pretrain", "stpes", 3, "rename it to `steps`"),
        ("pretrain", "steps", "many", "a whole number"),
        ("pretrain.model", "family", "bart", "modernbert"),
        ("finetune", "mine", {"kind": "classification", "data": "a.csv", "epocs": 3}, "rename it to `epochs`"),
        ("pretrain", "masking", {"mask_rate": 2.0}, "less than 1"),
    ):
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


def test_a_config_survives_a_file_and_another_process_and_a_copy_is_independent(config: Config, tmp_path: Path) -> None:
    config.copy().pretrain.steps = 500
    assert config.pretrain.steps != 500
    config.pretrain.recipe = "low-resource"
    config.pretrain.steps = 7000
    config["finetune"]["mine"] = {"kind": "tagging", "data": "a.jsonl", "epochs": 2}
    config.write(tmp_path / "params.yaml")
    assert read_params(tmp_path / "params.yaml") == Config(tmp_path / "params.yaml").checked == config.checked
    sent, section = pickle.loads(pickle.dumps((config, config.pretrain.schedule)))  # noqa: S301  # our own bytes
    assert isinstance(sent, Config)
    assert sent.checked == config.checked
    assert repr(section) == repr(config.pretrain.schedule)
