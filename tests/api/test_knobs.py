"""Rooms name their own fields; the user reads the keys of params.yaml that set them."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from clozeline.cli import app
from clozeline.params.project import Params
from clozeline.params.reading import _ELSEWHERE, in_params, read_params, renamed
from clozeline.system.errors import ClozelineError, DataError
from tests.make.params import is_knob_of, with_values, without_tasks

PARAMS = Path(__file__).parents[2] / "params.yaml"


def error(do: str, problem: str = "the cup is empty", given: object = "air") -> DataError:
    return DataError(problem, given=given, expected="tea", do=do)


def test_a_field_is_shown_as_its_params_key_and_the_file_follows_the_last_key() -> None:
    preprocess = read_params(PARAMS).preprocess
    told = in_params(
        error("correct `source.path` or `source.pattern`, not `cup`", "`min_characters` of tea", "`source.path`: x"),
        *(PARAMS, "preprocess", preprocess),
    )
    assert type(told) is DataError
    assert told.problem == "`preprocess.min_characters` of tea"
    assert told.given == "`preprocess.source.path`: x"
    assert told.do == "correct `preprocess.source.path` or `preprocess.source.pattern` in params.yaml, not `cup`"


@pytest.mark.parametrize(
    "do", ["pour", "take `cup`", "take `source.cup` or `kind.of`", "`preprocess.source.path` it is"]
)
def test_advice_that_names_no_field_stays_unchanged(do: str) -> None:
    told = in_params(error(do, given=5), PARAMS, "preprocess", read_params(PARAMS).preprocess)
    assert (told.do, told.given) == (do, 5)


def test_advice_names_the_key_that_sets_a_field_also_under_a_null_section() -> None:
    params = read_params(PARAMS)
    task, section = next(iter(params.finetune.items()))
    told = in_params(error("lower `epochs`"), PARAMS, f"finetune.{task}", section)
    assert told.do.startswith("lower `finetune")
    assert told.do.endswith(".epochs` in params.yaml")
    assert params.pretrain.start is None
    assert "`pretrain.start.x`" in in_params(error("`start.x`"), PARAMS, "pretrain", params.pretrain).do


@pytest.mark.parametrize(
    ("told", "key"),
    [
        ("set `gradient_checkpointing: true`", "set `pretrain.gradient_checkpointing: true` in params.yaml"),
        ("set `tie_word_embeddings: false`", "set `pretrain.model.tie_word_embeddings: false` in params.yaml"),
        ("set `stochastic_depth: 0.0`", "set `pretrain.model.stochastic_depth: 0.0` in params.yaml"),
        ("take `existing: a/b`, or less", "take `tokenize.existing: a/b` in params.yaml, or less"),
        ("leave it out of `models`", "leave it out of `export.models` in params.yaml"),
    ],
)
def test_a_value_stays_attached_to_its_key_when_the_key_is_rewritten(told: str, key: str) -> None:
    assert in_params(error(told), PARAMS, "pretrain", read_params(PARAMS).pretrain).do == key


@pytest.mark.parametrize("name", list(_ELSEWHERE.values()))
def test_every_key_of_another_section_exists_in_params(name: str) -> None:
    assert is_knob_of(Params, name)


def test_keys_of_other_sections_are_rewritten_only_in_the_advice() -> None:
    """In the other parts of an error, the name may be a label or a word of the text."""
    told = in_params(error("another", "label `models` has no words"), PARAMS, "pretrain", read_params(PARAMS).pretrain)
    assert told.problem == "label `models` has no words"


def test_other_names_are_shown_as_given() -> None:
    assert renamed(error("see `source.path` and `more`"), {"source.path": "--text"}.get).do == "see `--text` and `more`"


def test_a_stage_reports_the_keys_of_its_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "params.yaml").write_text(PARAMS.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    arguments = ["source=missing", "forgotten=forgotten.lock", "out=data/raw"]
    failed = CliRunner().invoke(app, ["stage", "snapshot", *arguments]).exception
    assert isinstance(failed, ClozelineError)
    assert "correct `preprocess.source.path` in params.yaml (a DVC-tracked" in failed.do


@pytest.mark.parametrize(
    ("knob", "value", "told"),
    [
        ("family", "longformer", "`pretrain.model.stochastic_depth` needs pre-norm layers"),
        (
            "family",
            "my_own:build",
            "`pretrain.model.family: my_own:build` names an encoder of your own that cannot be imported",
        ),
        ("start", "no/such/folder", "`pretrain.start` in params.yaml"),
    ],
)
def test_errors_of_a_training_name_keys_of_params_yaml(
    knob: str, value: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "no/such/folder").mkdir(parents=True)
    without_tasks(with_values(tmp_path, stochastic_depth="0.1", **{knob: value}))
    monkeypatch.chdir(tmp_path)
    failed = CliRunner().invoke(app, ["plan", "--no-timing"]).exception
    assert isinstance(failed, ClozelineError)
    assert told in str(failed)
