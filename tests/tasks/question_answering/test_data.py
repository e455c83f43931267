"""Claim: evaluation questions are about text not used in training, and answers lie where the context has them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clozeline.system.errors import DataError
from clozeline.tasks.files import LabelledRecord, Part
from clozeline.tasks.question_answering import data
from clozeline.tasks.question_answering.data import NO_ANSWER, AnswerText, ContextQuestion, Windows
from clozeline.tokenizing.tokenizer.folder import OpenTokenizer
from tests.make.tasks import params_of

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


def test_without_given_splits_all_questions_of_a_context_share_one() -> None:
    many = [record("train", f"question {n}?", f"context {n // 3} here", ("context", 0)) for n in range(300)]
    found = data.select(many, params_of("question_answering"))
    contexts = [{it.context for it in part} for part in found.parts.values()]
    assert sum(map(len, contexts)) == len(set.union(*contexts)) == 100


def test_an_answer_with_a_wrong_offset_is_moved_to_the_nearest_occurrence() -> None:
    found = chosen(record("train", "Which?", "red or red or red", ("red", 8), ("red", -3)))
    (question,) = [it for it in found.train if it.question == "Which?"]
    assert question.answers == (AnswerText("red", 7), AnswerText("red", 0))
    assert found.answers["num_moved"] == 2


def test_a_question_without_a_findable_answer_is_skipped_and_an_unanswerable_one_kept() -> None:
    found = chosen(record("train", "Which?", "red or blue", ("green", 0)), record("train", "Why?", "No reason."))
    assert (found.count["without_findable_answer"], found.answers["num_not_found"]) == (1, 1)
    assert [it.is_answerable for it in found.train].count(False) == 1


def test_counts_add_up_and_the_order_of_records_changes_nothing() -> None:
    more = (record("train", "", "x"), record("train", "x", " "), FEW[0], FEW[1])
    found = chosen(*more)
    count = dict(found.count.by_reason)
    assert count.pop("num_read") == sum(count.values()) == 7
    assert found == data.select((*more, *FEW)[::-1], GIVEN)


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ("Ada", "answer_start"),
        ({"text": ["Ada"], "answer_start": []}, "as many offsets as texts"),
        ({"text": ["Ada"], "answer_start": ["0"]}, "whole numbers"),
    ],
)
def test_malformed_answers_are_reported(answers: object, expected: str) -> None:
    with pytest.raises(DataError, match=f"(?s)line 9.*{expected}"):
        chosen(("train", LabelledRecord({"question": "Q", "context": "C", "answers": answers}, "line 9")))


@pytest.mark.parametrize("given", [FEW[:2], [record("train", "Who?", "Ada came."), *FEW[1:]]])
def test_a_split_without_questions_or_training_without_an_answer_is_refused(given: list[Given]) -> None:
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


@pytest.mark.parametrize(
    ("context", "answer", "knobs", "num_cut"),
    [
        ("the hash is a number.", "a number", {}, 0),
        ("the hash", "hash", {"asked": "why " * 30}, 1),
    ],
)
def test_targets_spell_the_answer_and_a_question_that_is_too_long_is_cut(
    context: str, answer: str, knobs: dict[str, Any], num_cut: int, opened: OpenTokenizer
) -> None:
    windows = windows_of(opened, context, answer, **knobs)
    assert (spelled(windows, 0), windows.num_cut_questions) == (answer, num_cut)
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
