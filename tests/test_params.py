import re
from collections.abc import Callable
from pathlib import Path

import pytest

from clozeline.errors import ParamsError
from clozeline.params import Params, read_params

PROJECT = Path(__file__).parents[1]
Editor = Callable[[str, str], Path]


@pytest.fixture
def edited(tmp_path: Path) -> Editor:
    """`edited(old, new)`: a copy of the project's params.yaml with one replacement."""

    def edit(old: str, new: str) -> Path:
        text = (PROJECT / "params.yaml").read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in params.yaml"
        path = tmp_path / "params.yaml"
        path.write_text(text.replace(old, new), encoding="utf-8")
        return path

    return edit


def message(path: Path) -> str:
    with pytest.raises(ParamsError) as caught:
        read_params(path)
    return str(caught.value)


def test_the_projects_own_params_are_read() -> None:
    params = read_params(PROJECT / "params.yaml")
    assert params.finetune["library"].kind == "classification"


def test_a_misspelt_key_is_named_with_the_right_spelling(edited: Editor) -> None:
    told = message(edited("    mask_rate:", "    mask_rat:"))
    assert "params.yaml: unknown key `pretrain.masking.mask_rat`" in told
    assert "rename it to `mask_rate`" in told


def test_a_misspelt_key_of_a_task_is_named_too(edited: Editor) -> None:
    told = message(edited("    max_per_class:", "    max_per_clas:"))
    assert "`finetune.library.max_per_clas`" in told
    assert "rename it to `max_per_class`" in told


def test_a_missing_key_is_named(edited: Editor) -> None:
    assert "`evaluate.num_folds` cannot be used" in message(edited("  num_folds:", "  # num_folds:"))


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("mask_rate", "20", "less than 1"),
        ("vocab_size", "10", "greater than or equal to 64"),
        ("learning_rate", "-1", "greater than 0"),
        ("num_hidden_layers", "two", "valid integer"),
        ("min_characters", "99999", "above `max_characters`"),
        ("keep_share", "0.5", "must be 1"),
        ("num_attention_heads", "3", "multiple of `num_attention_heads`"),
    ],
)
def test_a_value_that_cannot_be_used_is_told_with_its_key_and_what_is_expected(
    tmp_path: Path, key: str, value: str, expected: str
) -> None:
    text = (PROJECT / "params.yaml").read_text(encoding="utf-8")
    path = tmp_path / "params.yaml"
    path.write_text(re.sub(rf"(?m)^( +{key}:) \S+", rf"\1 {value}", text, count=1), encoding="utf-8")
    told = message(path)
    assert expected in told
    assert str(path) in told


def test_a_budget_must_be_steps_or_tokens_and_not_both(edited: Editor) -> None:
    assert "set one and leave the other null" in message(edited("  tokens: null", "  tokens: 1000"))


def test_an_exported_model_must_be_one_that_is_made(edited: Editor) -> None:
    told = message(edited("library: finetuned/library", "library: finetuned/libary"))
    assert "finetuned/library" in told


def test_a_file_that_is_not_yaml_is_told_with_its_line(edited: Editor) -> None:
    assert "line" in message(edited("seed:", "seed: [1"))


def test_a_missing_file_is_told_with_where_it_was_looked_for(tmp_path: Path) -> None:
    assert str(tmp_path.resolve()) in message(tmp_path / "params.yaml")


def test_scientific_notation_without_a_dot_is_a_number(edited: Editor) -> None:
    params = read_params(edited("    epsilon: 1.0e-6", "    epsilon: 1e-6"))
    assert params.pretrain.optimizer.epsilon == 1e-6


def test_params_cannot_be_changed_after_reading() -> None:
    params: Params = read_params(PROJECT / "params.yaml")
    with pytest.raises(ValueError, match="frozen"):
        params.seed = 1
