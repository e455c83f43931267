"""Claim: exact match and F1 are those of SQuAD's official script, as transformers ships it."""

import random

import pytest
from transformers.data.metrics.squad_metrics import compute_exact, compute_f1, normalize_answer, squad_evaluate
from transformers.data.processors.squad import SquadExample

from clozeline.tasks.question_answering.scores import exact_match, f1, normalized

ADVERSARIAL = [
    ("", ""),
    ("", "something"),
    ("something", ""),
    ("the", "a"),
    ("The U.S.A.", "usa"),
    ("an apple, an apple", "Apple"),
    ("10,000", "10000"),
    ("naïve — café", "naive café"),
    ("the  cat\tsat", "cat sat the"),
]


def cases() -> list[tuple[str, str]]:
    draw = random.Random(4)
    words = ["the", "a", "an", "cat", "Cat.", "sat", "on", "U.S.", "mat-like", "3,000", "—", "ı"]

    def drawn() -> str:
        return " ".join(draw.choice(words) for _ in range(draw.randint(0, 6)))

    return ADVERSARIAL + [(drawn(), drawn()) for _ in range(500)]


def test_texts_are_made_alike_as_the_script_makes_them() -> None:
    for text, _ in cases():
        assert normalized(text) == normalize_answer(text)


def test_figures_of_one_answer_are_those_of_the_script() -> None:
    for answer, said in cases():
        if normalize_answer(answer) or not answer:
            assert f1([answer], said) == pytest.approx(compute_f1(answer, said))
            assert exact_match([answer], said) == compute_exact(answer, said)


def test_the_nearest_of_several_answers_counts() -> None:
    assert f1(["red house", "house"], "house") == 1
    assert exact_match(["red house", "house"], "the house") == 1


def test_without_answers_nothing_is_right_and_anything_wrong() -> None:
    assert (f1([], ""), exact_match([], "")) == (1, 1)
    assert (f1([], "house"), exact_match([], "house")) == (0, 0)


def test_an_answer_of_which_nothing_is_left_counts_only_alone() -> None:
    assert f1(["the", "house"], "") == 0
    assert f1(["the"], "") == 1


def test_totals_over_many_questions_are_those_of_the_script() -> None:
    """Several answers, none, and answers of which nothing is left, among them."""
    draw = random.Random(6)
    texts = [text for text, _ in cases() if text.strip()]
    asked = [tuple(draw.sample(texts, draw.randint(0, 3))) for _ in range(300)]
    said = [draw.choice([*answers, draw.choice(texts), ""]) for answers in asked]
    examples = [
        SquadExample(str(n), "q", "c", None, None, "t", [{"text": text} for text in answers], not answers)
        for n, answers in enumerate(asked)
    ]
    theirs = squad_evaluate(examples, {str(n): text for n, text in enumerate(said)})
    pairs = list(zip(asked, said, strict=True))
    assert 100 * sum(f1(*pair) for pair in pairs) / 300 == pytest.approx(theirs["f1"])
    assert 100 * sum(exact_match(*pair) for pair in pairs) / 300 == pytest.approx(theirs["exact"])
    assert 10 < theirs["exact"] < theirs["f1"] < 90
