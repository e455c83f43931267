"""Claim: a rung of the ladder is a few words, or a section with the same values."""

import pytest

from clozeline.params.delivery import RungParams
from clozeline.params.reading import read_params
from tests.make.params import PROJECT, Editor, message


@pytest.mark.parametrize(
    ("words", "section"),
    [
        ("int7", {"weights": "int7", "exact_share": 0.0, "quantize_embeddings": True}),
        ("int8 exact 0.1", {"weights": "int8", "exact_share": 0.1, "quantize_embeddings": True}),
        ("uint8 embeddings fp32", {"weights": "uint8", "exact_share": 0.0, "quantize_embeddings": False}),
        ("uint8  exact .5 embeddings fp32", {"weights": "uint8", "exact_share": 0.5, "quantize_embeddings": False}),
    ],
)
def test_words_and_a_section_give_the_same_rung(words: str, section: dict[str, object]) -> None:
    assert RungParams.model_validate(words) == RungParams.model_validate(section)


def test_the_ladder_may_hold_sections(edited: Editor) -> None:
    usual = read_params(PROJECT / "params.yaml").export.ladder
    section = "    - {weights: int7, exact_share: 0.0, quantize_embeddings: true}\n"
    assert read_params(edited("    - int7\n", section)).export.ladder == usual


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("int9", "'int7', 'uint8' or 'int8'"),
        ("int7 exact", "such as `int7`, `int7 exact 0.1`"),
        ("int7 exact 1.5", "less than or equal to 1"),
        ("int7 embeddings int8", "such as `int7`, `int7 exact 0.1`"),
    ],
)
def test_other_words_are_refused_with_what_is_expected(edited: Editor, words: str, expected: str) -> None:
    told = message(edited("    - int7\n", f"    - {words}\n"))
    assert "`export.ladder.0" in told
    assert expected in told
