"""Claim: exact match and F1 equal the results of SQuAD's official script.

No library ships the script any more, so its results for these cases are written here: `evaluate-v2.0.py`, as
`transformers.data.metrics.squad_metrics` was up to transformers 4.57. Each F1 can be worked out by hand from the words.
"""

import pytest

from clozeline.records.finetune.scored_items import exact_match, f1, normalized

NORMALIZED = [
    ("", ""),
    ("the", ""),
    ("?!", ""),
    ("The A An tHe", ""),
    ("The U.S.A.", "usa"),
    ("Cat", "cat"),
    (" the  cat\tsat\non\u00a0it ", "cat sat on it"),
    ("mat-like", "matlike"),  # punctuation leaves no space, so the words grow together
    ("another theme, anyone", "another theme anyone"),  # articles are whole words
    ("the-cat", "thecat"),  # punctuation goes first, so this is no article any more
    ("a.", ""),
    ("a—b", "—b"),  # a dash is no ASCII punctuation, and ends a word
    ("“the” cat", "“ ” cat"),
    ("naïve é", "naïve é"),
    ("aïoli", "aïoli"),  # a letter with an accent is part of the word, too
    ("10,000 $5", "10000 5"),
    ("snake_case ~`^|", "snakecase"),
    ("İ ß", "i̇ ß"),  # lower case, not case-folded
]
ONE_ANSWER = [
    # answer, prediction, exact match, F1
    ("", "", 1, 1),
    ("", "house", 0, 0),
    ("house", "", 0, 0),
    ("house", "the", 0, 0),
    ("The House.", "house", 1, 1),
    ("10,000", "10000", 1, 1),
    ("U.S.", "us", 1, 1),
    ("red house", "house", 0, 2 / 3),
    ("house", "red house", 0, 2 / 3),
    ("house", "big red brick house", 0, 2 / 5),
    ("big red brick house", "house here", 0, 1 / 3),
    ("house red", "red house", 0, 1),  # F1 has no order
    ("apple", "apple apple", 0, 2 / 3),  # a word counts as often as answer and prediction share it
    ("apple apple pie", "apple apple apple", 0, 2 / 3),
    ("red house", "blue boat", 0, 0),
    ("mat like", "mat-like", 0, 0),
    ("naïve — café", "naive café", 0, 2 / 5),
    ("the cat and the dog", "a cat", 0, 1 / 2),  # articles count in neither text
]
ANY_NUMBER = [
    # answers, prediction, exact match, F1
    ((), "", 1, 1),
    ((), "the", 1, 1),  # the prediction normalizes to nothing, too
    ((), "house", 0, 0),
    (("red house", "house"), "the house", 1, 1),
    (("house", "red house"), "the house", 1, 1),
    (("red house", "old brick house"), "house", 0, 2 / 3),
    (("old brick house", "red house"), "house", 0, 2 / 3),
    (("red house", "blue boat"), "red boat", 0, 1 / 2),  # the nearest answer, not the words of all
    (("the", "house"), "", 0, 0),  # an answer of which nothing is left counts only alone
    (("house", "a", "?"), "the", 0, 0),
    (("the",), "", 1, 1),
    (("the", "?"), "an", 1, 1),
    (("the",), "house", 0, 0),
]


@pytest.mark.parametrize(("text", "expected"), NORMALIZED)
def test_texts_are_normalized_as_in_the_squad_script(text: str, expected: str) -> None:
    assert normalized(text) == expected


@pytest.mark.parametrize(("answer", "said", "exact", "overlap"), ONE_ANSWER)
def test_figures_with_one_right_answer_equal_those_of_the_squad_script(
    answer: str, said: str, exact: int, overlap: float
) -> None:
    assert exact_match([answer], said) == exact
    assert f1([answer], said) == pytest.approx(overlap)


@pytest.mark.parametrize(("answers", "said", "exact", "overlap"), ANY_NUMBER)
def test_figures_with_several_right_answers_equal_those_of_the_squad_script(
    answers: tuple[str, ...], said: str, exact: int, overlap: float
) -> None:
    assert exact_match(answers, said) == exact
    assert f1(answers, said) == pytest.approx(overlap)
