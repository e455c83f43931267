"""Claim: a model that cannot be built is refused before anything is run."""

import re
from pathlib import Path

import pytest

from clozeline.params.model import CAUSAL_FAMILIES, FAMILY_NAMES
from clozeline.params.reading import read_params
from tests.make.params import Editor, message, with_values


def shaped(folder: Path, **values: str) -> Path:
    """Write params whose model has numbers in place of a named size; return their path."""
    numbers = {"hidden_size": "128", "num_hidden_layers": "2", "num_attention_heads": "2", "intermediate_size": "256"}
    shape = numbers | {name: values[name] for name in numbers.keys() & values}
    path = with_values(folder, **{name: value for name, value in values.items() if name not in numbers})
    lines = "".join(f"    {name}: {value}\n" for name, value in {"size": "null", **shape}.items())
    path.write_text(re.sub(r"(?m)^    size: mini.*\n", lines, path.read_text(encoding="utf-8")), encoding="utf-8")
    return path


def test_numbers_can_stand_in_place_of_a_named_size(tmp_path: Path) -> None:
    assert read_params(shaped(tmp_path)).pretrain.model.hidden_size == 128


def test_a_size_and_numbers_exclude_each_other_and_one_is_needed(edited: Editor, tmp_path: Path) -> None:
    assert "a `size`, or null and the four numbers" in message(
        edited("    size: mini", "    hidden_size: 9\n    size: mini")
    )
    assert "a `size`, or null and the four numbers" in message(with_values(tmp_path, size="null"))


@pytest.mark.parametrize(
    ("heads", "expected"),
    [("3", "multiple of `num_attention_heads`"), ("128", "an even `hidden_size` / `num_attention_heads`")],
)
def test_heads_that_do_not_divide_the_model_are_refused(tmp_path: Path, heads: str, expected: str) -> None:
    assert expected in message(shaped(tmp_path, num_attention_heads=heads))


def test_learned_positions_allow_heads_of_odd_size(tmp_path: Path) -> None:
    assert read_params(shaped(tmp_path, family="bert", num_attention_heads="128")).pretrain.model.family == "bert"


def test_a_misspelt_family_is_refused_before_anything_runs(edited: Editor) -> None:
    told = message(edited("family: modernbert", "family: modernbrt"))
    assert "`pretrain.model.family` cannot be used" in told
    assert "given:    pretrain.model.family: 'modernbrt'" in told
    assert "one of: modernbert, bert" in told


def test_the_family_names_are_the_rows_of_the_table_of_families() -> None:
    from clozeline.encoder.families import FAMILIES

    assert set(FAMILY_NAMES) == set(FAMILIES)
    assert set(CAUSAL_FAMILIES) == {name for name, row in FAMILIES.items() if "clm" in row.forms}


def test_a_family_without_a_causal_form_is_refused_for_that_objective(edited: Editor) -> None:
    path = edited("objective: mlm ", "objective: clm ")
    path.write_text(path.read_text(encoding="utf-8").replace("family: modernbert", "family: albert"), encoding="utf-8")
    told = message(path)
    assert "pretrain.objective: 'clm', pretrain.model.family: 'albert'" in told
    assert "one of the families modernbert, bert" in told
