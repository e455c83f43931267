"""Claim: a params.yaml states only what differs, and the rest is the params.yaml that the package carries."""

import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from clozeline.params.reading import default_tree, read_params, with_defaults
from tests.make.params import PROJECT, message


def test_the_defaults_are_the_projects_own_params() -> None:
    own, whole = YAML(typ="safe").load(PROJECT / "params.yaml"), default_tree()
    assert {name: section for name, section in whole.items() if name in own} == own
    assert whole.keys() - own.keys() == {"recipes", "presets"}


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
    path = short(tmp_path, "{data: corpus.lock, preset: sst2, metric: matthews}")
    task = read_params(path).finetune["one"]
    assert (task.kind, task.hub.subset, task.text_field, task.metric) == (
        "classification",
        "sst2",
        "sentence",
        "matthews",
    )


def test_a_preset_of_ones_own_is_taken_by_its_name_and_replaces_keys_of_its_namesake(tmp_path: Path) -> None:
    presets = "presets: {mine: {kind: tagging, tags_field: tags}, sst2: {hub: {dataset: my/copy}}}"
    path = short(tmp_path, f"{{data: x.conll, preset: mine}}\n  two: {{data: my, preset: sst2}}\n{presets}")
    tasks = read_params(path).finetune
    assert (tasks["one"].kind, tasks["one"].tags_field) == ("tagging", "tags")
    assert (tasks["two"].hub.dataset, tasks["two"].hub.revision, tasks["two"].text_field) == (
        "my/copy",
        None,
        "sentence",
    )


def test_a_fault_of_a_preset_is_reported_where_it_was_written(tmp_path: Path) -> None:
    told = message(short(tmp_path, "{data: x.conll, preset: mine}\npresets: {mine: {kind: tagging, tag_column: x}}"))
    assert "`presets.mine.tag_column` cannot be used" in told


def test_a_task_says_its_data_itself_because_dvc_reads_it_there(tmp_path: Path) -> None:
    told = message(short(tmp_path, "{preset: mine}\npresets: {mine: {kind: tagging, data: x.conll}}"))
    assert "`finetune.one.data` cannot be used" in told


@pytest.mark.parametrize(
    ("task", "known"),
    [
        ("{kind: classification, data: x.csv, preset: ss2}", "kind `classification`: glue, cola, sst2"),
        ("{kind: tagging, data: corpus.lock, preset: sst2}", "kind `tagging`: conll2003\n"),
    ],
)
def test_a_preset_that_is_unknown_or_of_another_kind_is_refused(tmp_path: Path, task: str, known: str) -> None:
    told = message(short(tmp_path, task))
    assert "`finetune.one.preset` cannot be used" in told
    assert f"a preset of {known}" in told


def test_the_docs_name_every_preset() -> None:
    page = (PROJECT / "docs" / "tasks.md").read_text(encoding="utf-8")
    listed = page[page.index("The presets are") : page.index("(question_answering)")]
    assert set(re.findall("`([^`]+)`", listed)) == set(default_tree()["presets"]) - {"glue"}
