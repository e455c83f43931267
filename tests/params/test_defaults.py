"""Claim: a params.yaml states only what differs, and the rest is the params.yaml that the package carries."""

import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from clozeline.params import read_params
from clozeline.params.defaults import default_tree, with_defaults
from tests.edited_params import PROJECT, message


def test_the_defaults_are_the_projects_own_params() -> None:
    assert default_tree() == YAML(typ="safe").load(PROJECT / "params.yaml")


def test_a_change_of_the_returned_defaults_changes_no_later_ones() -> None:
    default_tree()["pretrain"]["model"]["size"] = "large"
    assert default_tree()["pretrain"]["model"]["size"] == "mini"


def test_a_short_file_is_completed(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("pretrain: {steps: 500, masking: {unit: word}}\n", encoding="utf-8")
    params, whole = read_params(path), read_params(PROJECT / "params.yaml")
    assert (params.pretrain.steps, params.pretrain.masking.unit) == (500, "word")
    masking = params.pretrain.masking.model_copy(update={"unit": "token"})
    assert params.pretrain.model_copy(update={"steps": 6300, "epochs": 50, "masking": masking}) == whole.pretrain
    assert (params.tokenize, params.finetune, params.export) == (whole.tokenize, whole.finetune, whole.export)


def test_a_budget_replaces_the_one_of_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("pretrain: {epochs: 3}\n", encoding="utf-8")
    params = read_params(path).pretrain
    assert (params.steps, params.tokens, params.epochs) == (None, None, 3)


@pytest.mark.parametrize(
    ("own", "names"),
    [
        ({"export": {"models": {"words": "encoder"}}}, {("export", "models"): {"words"}}),
        ({"finetune": {"mood": {"kind": "classification", "data": "mood.csv"}}}, {("finetune",): {"mood"}}),
        ({"recipes": {"mine": {"steps": 5}}},
         {("recipes",): {"mine", *default_tree()["recipes"]}}),
        ({"finetune_defaults": {"shared": {"epochs": 1}}},
         {("finetune_defaults",): set(default_tree()["finetune_defaults"])}),
    ],
)  # fmt: skip
def test_chosen_names_replace_those_of_the_defaults_except_for_layers(own: Any, names: dict[Any, set[str]]) -> None:
    whole = with_defaults(own)
    for place, expected in names.items():
        found = whole
        for name in place:
            found = found[name]
        assert set(found) == expected


def test_an_own_recipe_replaces_its_namesake_whole() -> None:
    assert with_defaults({"recipes": {"low-resource": {"steps": 9}}})["recipes"]["low-resource"] == {"steps": 9}


def test_a_misspelt_key_of_a_short_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("pretrain: {stepz: 50}\n", encoding="utf-8")
    assert "unknown key `pretrain.stepz`" in message(path)
    assert "rename it to `steps`" in message(path)


def short(folder: Path, tasks: str) -> Path:
    path = folder / "params.yaml"
    path.write_text(f"finetune:\n  one: {tasks}\nexport: {{models: {{encoder: encoder}}}}\n", encoding="utf-8")
    return path


def test_a_task_of_a_short_file_takes_a_preset_by_its_name_and_its_own_values_win(tmp_path: Path) -> None:
    path = short(tmp_path, "{kind: classification, data: corpus.lock, preset: sst2, metric: matthews}")
    task = read_params(path).finetune["one"]
    assert (task.hub.subset, task.text_field, task.metric) == ("sst2", "sentence", "matthews")


@pytest.mark.parametrize(
    "task",
    [
        "{kind: classification, data: x.csv, preset: ss2}",
        "{kind: tagging, data: corpus.lock, preset: sst2}",
        "{kind: classification, data: x.csv, preset: mine}\npresets: {mine: {kind: classification}}",
        "{kind: classification, data: x.csv, preset: sst2}\npresets: {sst2: {kind: classification}}",
    ],
)
def test_a_preset_that_is_not_ours_or_of_another_kind_is_refused(tmp_path: Path, task: str) -> None:
    told = message(short(tmp_path, task))
    assert "`finetune.one.preset` cannot be used" in told
    assert "<<: *NAME" in told


def test_the_docs_name_every_preset() -> None:
    page = (PROJECT / "docs" / "tasks.md").read_text(encoding="utf-8")
    listed = page[page.index("The presets are") : page.index("(question_answering)")]
    assert set(re.findall("`([^`]+)`", listed)) == set(default_tree()["presets"]) - {"glue"}
