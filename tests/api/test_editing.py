"""Values of params.yaml change in its text, and nothing else does."""

import shutil
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from clozeline.params.editing import assignments, changes_in, edit
from clozeline.params.reading import read_params
from clozeline.system.errors import ParamsError

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return Path(shutil.copy(PROJECT / "params.yaml", tmp_path))


def changed_lines(path: Path) -> list[str]:
    before = (PROJECT / "params.yaml").read_text(encoding="utf-8").splitlines()
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line not in before]


def test_a_value_changes_and_its_comment_stays_in_its_column(path: Path) -> None:
    assert edit(path, assignments(["pretrain.batch_tokens=512"]), "--set") == ["pretrain.batch_tokens: 2048 → 512"]
    (line,) = changed_lines(path)
    (before,) = [
        one for one in (PROJECT / "params.yaml").read_text().splitlines() if one.startswith("  batch_tokens: 2048")
    ]
    assert line.split("#") == [before.split("#")[0].replace("2048", "512 "), before.split("#")[1]]
    assert read_params(path).pretrain.batch_tokens == 512


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("finetune.library.epochs=5", "    epochs: 5"),
        ("finetune.library.optimizer.learning_rate=1e-3", "    optimizer: {learning_rate: 0.001}"),
        ("finetune.docsearch.optimizer.kind=lamb", "    optimizer: {learning_rate: 4.0e-3, kind: lamb}"),
        ("export.models={encoder: encoder}", "  models: {encoder: encoder}"),
        (
            "preprocess.source.label_field='a: b'",
            "    label_field: 'a: b'        # ... and field of its label; null: no labels",
        ),
        (
            "presets.sst2.metric=f1",
            "presets: {sst2: {metric: f1}}",
        ),
    ],
)
def test_a_key_is_written_where_it_belongs(path: Path, setting: str, line: str) -> None:
    assert len(edit(path, assignments([setting]), "--set")) == 1
    assert changed_lines(path) == [line]


def test_a_value_that_is_an_alias_is_replaced_there_and_not_at_its_anchor(path: Path) -> None:
    text = (
        path.read_text(encoding="utf-8")
        .replace("max_length: 192", "max_length: *length")
        .replace("  max_length: 64               # tokens per row", "  max_length: &length 64       # tokens per row")
    )
    path.write_text(text, encoding="utf-8")
    edit(path, assignments(["finetune.library.max_length=100"]), "--set")
    params = read_params(path)
    assert (params.finetune["library"].max_length, params.pretrain.max_length) == (100, 64)


def test_a_key_that_the_recipe_sets_is_changed_in_the_recipe(path: Path) -> None:
    settings = ["pretrain.recipe=low-resource", "pretrain.model.head_dropout=0.3"]
    assert edit(path, assignments(settings), "--set")[1] == "recipes.low-resource.model.head_dropout: 0.15 → 0.3"
    assert read_params(path).pretrain.model.head_dropout == 0.3


def test_a_budget_replaces_that_of_another_sort(path: Path) -> None:
    assert edit(path, assignments(["pretrain.epochs=2.5"]), "--set") == [
        "pretrain.epochs: 50 → 2.5",
        "pretrain.steps: 6300 → null",
    ]
    assert edit(path, assignments(["pretrain.steps=50"]), "--set")[1:] == ["pretrain.epochs: 2.5 → null"]
    assert edit(path, assignments(["pretrain.steps=40", "pretrain.tokens=50"]), "--set") == [
        "pretrain.steps: 50 → 40",
        "pretrain.tokens: null → 50",
    ]


def test_a_short_file_gets_the_key_that_it_leaves_to_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text(
        "seed: 7\npretrain:\n  max_length: 32  # short\nfinetune: {}\nexport: {models: {encoder: encoder}}\n"
    )
    assert edit(path, assignments(["pretrain.steps=500", "tokenize.vocab_size=99"]), "--set") == [
        "pretrain.steps: 6300 → 500",
        "tokenize.vocab_size: 8192 → 99",
    ]
    assert path.read_text() == (
        "seed: 7\npretrain:\n  max_length: 32  # short\n  steps: 500\nfinetune: {}\n"
        "export: {models: {encoder: encoder}}\ntokenize: {vocab_size: 99}\n"
    )


def test_a_value_that_is_already_there_changes_nothing(path: Path) -> None:
    assert edit(path, assignments(["pretrain.optimizer.learning_rate=0.004"]), "--set") == []
    assert path.read_bytes() == (PROJECT / "params.yaml").read_bytes()


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("pretrain.stepz=1", "rename it to `steps`"),
        ("pretrain.steps=-4", "pretrain.steps: -4"),
        ("pretrain.steps=many", "a whole number"),
        ("pretrain.model.hidden_size=96", "a `size`, or null and the four numbers"),
        ("pretrain.steps", "KEY=VALUE"),
        ("=3", "KEY=VALUE"),
        ("seed=[1", "is not YAML"),
        ("seed.inner=1", "seed"),
    ],
)
def test_a_setting_that_cannot_be_used_is_refused_and_nothing_is_written(path: Path, setting: str, said: str) -> None:
    with pytest.raises(ParamsError) as caught:
        edit(path, assignments(["pretrain.batch_tokens=1024", setting]), "--set")
    assert said in str(caught.value)
    assert path.read_bytes() == (PROJECT / "params.yaml").read_bytes()


def test_a_file_is_laid_over_sections_and_replaces_what_the_user_names(path: Path, tmp_path: Path) -> None:
    config = tmp_path / "mine.yaml"
    config.write_text(
        "pretrain: {masking: {unit: word}, recipe: low-resource}\nfinetune: {}\nexport: {models: {it: encoder}}\n"
    )
    edit(path, changes_in(config), config.name)
    params = read_params(path)
    assert (params.pretrain.masking.unit, params.pretrain.masking.mask_rate) == ("word", 0.2)
    assert (params.finetune, params.export.models) == ({}, {"it": "encoder"})
    assert YAML(typ="safe").load(path)["pretrain"]["optimizer"]["learning_rate"] == 4e-3


@pytest.mark.parametrize(
    ("content", "said"), [("- one\n", "not sections of params.yaml"), ("a: [", "is not YAML"), (None, "there is no")]
)
def test_a_file_that_holds_no_params_is_refused(tmp_path: Path, content: str | None, said: str) -> None:
    config = tmp_path / "mine.yaml"
    if content:
        config.write_text(content)
    with pytest.raises(ParamsError, match=said):
        changes_in(config)
