"""Claim: evaluation questions are about text not used in training, answers lie where the context has them, and the best
allowed span or none is given."""

import itertools
import json
import math
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from clozeline.records.finetune.scored_items import read_held_out
from clozeline.system.errors import DataError
from clozeline.tasks.question_answering import data
from clozeline.tasks.question_answering.contexts import best_span, best_threshold, nearest_sentences
from clozeline.tasks.question_answering.data import NO_ANSWER, AnswerText, ContextQuestion, Windows
from clozeline.tasks.selection import LabelledRecord, Part
from clozeline.tokenizing.tokenizer.folder import OpenTokenizer
from tests.make.tasks import fine_tune, metrics_of, params_of

GIVEN = params_of("question_answering", splits={"train": "a", "validation": "b", "test": "c"})
Given = tuple[Part, LabelledRecord]


def record(part: Part, question: str, context: str, *answers: tuple[str, int]) -> Given:
    spelled = {"text": [text for text, _ in answers], "answer_start": [start for _, start in answers]}
    return part, LabelledRecord({"question": question, "context": context, "answers": spelled}, "line 1")


FEW = (
    record("train", "Who came?", "Ada came.", ("Ada", 0)),
    record("validation", "Who went?", "Bob went.", ("Bob", 0)),
    record("test", "Who slept?", "Cleo slept.", ("Cleo", 0)),
)


def chosen(*more: Given) -> data.ContextQuestions:
    return data.select((*FEW, *more), GIVEN)


def test_copies_and_contexts_of_other_splits_are_not_trained_on_and_the_first_is_reported_with_its_place() -> None:
    again = [FEW[0], FEW[0], record("train", "What?", "Bob went."), record("train", "What?", "CLEO  slept.")]
    placed = [(part, replace(it, place=f"line {number}")) for number, (part, it) in enumerate([*FEW, *again], start=1)]
    found = data.select(placed, GIVEN)
    assert {it.context for it in found.train} == {"Ada came."}
    assert (found.count["duplicates"], found.count["in_several_parts"]) == (2, 2)
    assert found.count.first_places == {"duplicates": "line 4", "in_several_parts": "line 6"}
    more = (record("train", "", "x"), record("train", "x", " "), FEW[0], FEW[1])
    count = dict(chosen(*more).count.by_reason)
    assert count.pop("num_read") == sum(count.values()) == 7
    assert chosen(*more) == data.select((*more, *FEW)[::-1], GIVEN), "their order changes nothing"


def test_without_given_splits_all_questions_of_a_context_share_one() -> None:
    many = [record("train", f"question {n}?", f"context {n // 3} here", ("context", 0)) for n in range(300)]
    found = data.select(many, params_of("question_answering"))
    contexts = [{it.context for it in part} for part in found.parts.values()]
    assert sum(map(len, contexts)) == len(set.union(*contexts)) == 100


def test_an_answer_with_a_wrong_offset_is_moved_and_a_question_without_a_findable_one_skipped() -> None:
    """An answer moves to its nearest occurrence; an unanswerable question stays."""
    found = chosen(
        record("train", "Which?", "red or red or red", ("red", 8), ("red", -3)),
        *(record("train", "Who?", "red or blue", ("green", 0)), record("train", "Why?", "No reason.")),
    )
    answers = {it.question: it.answers for it in found.train}
    assert answers["Which?"] == (AnswerText("red", 7), AnswerText("red", 0))
    assert (answers["Why?"], "Who?" in answers) == ((), False)
    assert (found.answers["num_moved"], found.answers["num_not_found"]) == (2, 1)
    assert found.count["without_findable_answer"] == 1


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ("Ada", "answer_start"),
        ({"text": ["Ada"], "answer_start": []}, "as many offsets as texts"),
        ({"text": ["Ada"], "answer_start": ["0"]}, "whole numbers"),
    ],
)
def test_malformed_answers_and_splits_that_teach_nothing_are_reported(answers: object, expected: str) -> None:
    with pytest.raises(DataError, match=f"(?s)line 9.*{expected}"):
        chosen(("train", LabelledRecord({"question": "Q", "context": "C", "answers": answers}, "line 9")))
    for given in (FEW[:2], [record("train", "Who?", "Ada came."), *FEW[1:]]):
        with pytest.raises(DataError, match="too few questions"):
            data.select(given, GIVEN)


LONG = "the model reads a text. " * 6 + "the hash is a number. " + "an error is raised. " * 6


@pytest.fixture
def opened(small_encoder: Path) -> OpenTokenizer:
    return OpenTokenizer.open(small_encoder)


def windows_of(
    opened: OpenTokenizer, context: str, *answers: str, asked: str = "the hash?", stride: int = 8
) -> Windows:
    found = tuple(AnswerText(text, context.index(text)) for text in answers)
    params = params_of("question_answering", max_length=32, max_question_tokens=8, stride=stride)
    return Windows.encode([ContextQuestion(asked, context, found, "", "train")], opened, params)


def spelled(windows: Windows, window: int) -> str:
    """Return the characters of the context that the target points at."""
    first, last = windows.target_W2[window] - windows.first_W[window]
    spans, context = windows.spans_W[window], windows.questions[int(windows.question_W[window])].context
    return context[spans[first, 0] : spans[last, 1]]


def test_targets_spell_the_answer_and_a_question_that_is_too_long_is_cut(opened: OpenTokenizer) -> None:
    for question, num_cut in (("the hash?", 0), ("why " * 30, 1)):
        windows = windows_of(opened, "the hash is a number.", "a number", asked=question)
        assert (spelled(windows, 0), windows.num_cut_questions) == ("a number", num_cut)
        types = windows.batch(np.array([0]), with_types=True).token_type_ids_BL
        assert types is not None
        assert types[0].tolist().index(1) == windows.first_W[0], "token types distinguish question and context"


def test_windows_cover_a_long_context_and_one_holds_the_whole_answer(opened: OpenTokenizer) -> None:
    windows = windows_of(opened, LONG, "a number")
    assert windows.num_in_several == 1
    assert max(windows.rows.length_T) <= 32
    covered = {place for spans in windows.spans_W for first, behind in spans.tolist() for place in range(first, behind)}
    assert all(place in covered or character == " " for place, character in enumerate(LONG))
    having = np.flatnonzero(windows.target_W2[:, 0] != NO_ANSWER)
    assert {spelled(windows, window) for window in having.tolist()} == {"a number"}


def test_a_window_with_only_a_part_of_the_answer_or_without_one_is_labelled_unanswerable(opened: OpenTokenizer) -> None:
    answer = "the hash is a number"
    windows = windows_of(opened, LONG, answer, stride=0)
    shown = [LONG[spans[0, 0] : spans[-1, 1]] for spans in windows.spans_W]
    # Without a stride no windows overlap: one ends in the answer, and the next begins in it.
    assert (shown[2][-8:], shown[3][:11]) == ("the hash", "is a number")
    assert not [window for window in shown if answer in window]
    assert (windows.target_W2 == NO_ANSWER).all()
    assert (windows_of(opened, LONG).target_W2 == NO_ANSWER).all()


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
    none_Q, all_Q = np.array([-1.0, 0.0]), np.array([1.0, 0.5])
    assert [best_threshold(np.array([3.0, -1.0]), it) for it in (none_Q, all_Q)] == [math.inf, -math.inf]


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
