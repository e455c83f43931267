"""Claim: the best allowed span is found, and the threshold for no answer has the largest gain."""

import itertools
import json
import math
import random
from pathlib import Path

import numpy as np
import pytest

from clozeline.records.finetune.scored_items import read_held_out
from clozeline.tasks.question_answering.contexts import best_span, best_threshold, nearest_sentences
from clozeline.tasks.question_answering.data import AnswerText, ContextQuestion
from tests.make.tasks import fine_tune, metrics_of, params_of


@pytest.mark.parametrize("most_tokens", [1, 3, 50])
def test_the_best_of_all_allowed_spans_is_found(most_tokens: int) -> None:
    draw = np.random.default_rng(1)
    for length in range(1, 12):
        start_L, end_L = draw.normal(size=(2, length)).astype(np.float32)
        every = itertools.product(range(length), repeat=2)
        allowed = [(first, last) for first, last in every if 0 <= last - first < most_tokens]
        score, first, last = max((start_L[first] + end_L[last], -first, -last) for first, last in allowed)
        assert best_span(start_L, end_L, most_tokens) == (-first, -last, pytest.approx(score))


def test_the_chosen_margin_has_the_largest_gain() -> None:
    def won(threshold: float) -> float:
        return float(gain_Q[margin_Q > threshold].sum())

    draw = np.random.default_rng(2)
    for _ in range(100):
        margin_Q = draw.integers(-4, 5, size=12) / 2
        gain_Q = draw.choice([-1.0, -0.5, 0.0, 1.0], size=12)
        assert won(best_threshold(margin_Q, gain_Q)) == max(map(won, (-9.0, *margin_Q.tolist(), 9.0)))


@pytest.mark.parametrize(("gains", "expected"), [([-1.0, 0.0], math.inf), ([1.0, 0.5], -math.inf)])
def test_all_or_no_questions_are_answered_if_that_is_best(gains: list[float], expected: float) -> None:
    assert best_threshold(np.array([3.0, -1.0]), np.array(gains)) == expected


CONTEXT = "Ada wrote notes. Bob built a boat. Cleo kept bees."


def asked(question: str, answer: str | None = None) -> ContextQuestion:
    answers = () if answer is None else (AnswerText(answer, CONTEXT.index(answer)),)
    return ContextQuestion(question, CONTEXT, answers, "", "test")


def test_the_baseline_answers_with_the_sentence_nearest_to_the_question_if_one_resembles_it() -> None:
    answered = [asked("Who built a boat?", "Bob built a boat"), asked("Who kept bees?", "Cleo kept bees")]
    assert nearest_sentences(answered, [asked("Who wrote notes?", "Ada")]) == ["Ada wrote notes."]
    validation = [*answered, asked("Where is Rome?"), asked("How far?")]
    assert nearest_sentences(validation, [asked("Why is rain wet?")]) == [""]


def squad(num_contexts: int) -> dict[str, object]:
    """Return SQuAD data: the answer is the word after `is`; a context without `is` has no answer."""
    draw, words = random.Random(1), ["tensor", "model", "file", "error", "shape", "text", "hash", "row"]
    paragraphs = []
    for _ in range(num_contexts):
        before, behind = (" ".join(draw.choices(words, k=draw.randint(1, 5))) for _ in range(2))
        answer, has_answer = draw.choice(words), draw.random() < 0.7
        context = f"{before} {'is ' * has_answer}{answer} {behind}"
        spelled = [{"text": answer, "answer_start": context.index(" is ") + 4}] if has_answer else []
        of_context = {"question": "what is it", "answers": spelled, "is_impossible": not has_answer}
        paragraphs.append({"context": context, "qas": [of_context]})
    return {"data": [{"paragraphs": paragraphs}]}


def test_answers_are_found_and_unanswerable_questions_get_none(small_encoder: Path, tmp_path: Path) -> None:
    (tmp_path / "data.json").write_text(json.dumps(squad(500)))
    sizes = {"max_length": 32, "stride": 4, "max_question_tokens": 8, "batch_size": 16, "epochs": 8}
    params = params_of("question_answering", **sizes, optimizer={"learning_rate": 0.01})
    out = fine_tune(params, tmp_path / "out", encoder=small_encoder, data=tmp_path / "data.json")
    metrics = metrics_of(out)
    headline = metrics["headline"]
    assert headline["value"] > max(0.75, headline["baseline_value"] + 0.2, headline["trivial_value"] + 0.2)
    assert metrics["num_test_unanswerable"] > 10
    held_out = read_held_out(out / "model")
    assert all(right in str(item.second) for item in held_out for right in item.right)
    assert {bool(item.right) for item in held_out} == {False, True}
    config = json.loads((out / "model" / "config.json").read_text())
    assert config.get("no_answer_margin") == metrics["no_answer_margin"]
