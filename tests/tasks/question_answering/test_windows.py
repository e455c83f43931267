"""Claim: windows cover every context, and the answer's tokens are where its characters are."""

from pathlib import Path

import numpy as np
import pytest

from clozeline.tasks.question_answering.data import AnswerText, ContextQuestion
from clozeline.tasks.question_answering.windows import NO_ANSWER, Windows
from clozeline.tokenizing.tokenizer.folder import OpenTokenizer
from tests.make.tasks import params_of

SIZES = {"max_length": 32, "stride": 8, "max_question_tokens": 8}
LONG = "the model reads a text. " * 6 + "the hash is a number. " + "an error is raised. " * 6


def question(context: str, *answers: str, asked: str = "the hash?") -> ContextQuestion:
    return ContextQuestion(
        asked, context, tuple(AnswerText(text, context.index(text)) for text in answers), "", "train"
    )


@pytest.fixture
def opened(small_encoder: Path) -> OpenTokenizer:
    return OpenTokenizer.open(small_encoder)


def spelled(windows: Windows, window: int) -> str:
    """Return the characters of the context that the target points at."""
    first, last = windows.target_W2[window] - windows.first_W[window]
    spans, context = windows.spans_W[window], windows.questions[int(windows.question_W[window])].context
    return context[spans[first, 0] : spans[last, 1]]


def test_targets_spell_the_answer(opened: OpenTokenizer) -> None:
    windows = Windows.encode(
        [question("the hash is a number.", "a number")], opened, params_of("question_answering", **SIZES)
    )
    assert spelled(windows, 0) == "a number"


def test_windows_cover_a_long_context_and_one_holds_the_whole_answer(opened: OpenTokenizer) -> None:
    windows = Windows.encode([question(LONG, "a number")], opened, params_of("question_answering", **SIZES))
    assert windows.num_in_several == 1
    assert max(windows.rows.length_T) <= 32
    covered = np.zeros(len(LONG), dtype=bool)
    for spans in windows.spans_W:
        for first, behind in spans.tolist():
            covered[first:behind] = True
    assert all(covered[place] or character == " " for place, character in enumerate(LONG))
    having = np.flatnonzero(windows.target_W2[:, 0] != NO_ANSWER)
    assert len(having) >= 1
    assert {spelled(windows, window) for window in having.tolist()} == {"a number"}


def test_a_window_with_only_a_part_of_the_answer_is_labelled_unanswerable(opened: OpenTokenizer) -> None:
    answer = "the hash is a number"
    windows = Windows.encode(
        [question(LONG, answer)], opened, params_of("question_answering", **{**SIZES, "stride": 0})
    )
    shown = [LONG[spans[0, 0] : spans[-1, 1]] for spans in windows.spans_W]
    # Without a stride no windows overlap: one ends in the answer, and the next begins in it.
    assert (shown[2][-8:], shown[3][:11]) == ("the hash", "is a number")
    assert not [window for window in shown if answer in window]
    assert (windows.target_W2 == NO_ANSWER).all()


def test_a_question_without_an_answer_points_at_the_first_token(opened: OpenTokenizer) -> None:
    windows = Windows.encode([question(LONG)], opened, params_of("question_answering", **SIZES))
    assert (windows.target_W2 == NO_ANSWER).all()


def test_a_question_that_is_too_long_is_cut_and_counted(opened: OpenTokenizer) -> None:
    windows = Windows.encode(
        [question("the hash", "hash", asked="why " * 30)], opened, params_of("question_answering", **SIZES)
    )
    assert windows.num_cut_questions == 1
    assert spelled(windows, 0) == "hash"


def test_token_types_distinguish_question_and_context(opened: OpenTokenizer) -> None:
    windows = Windows.encode([question("the hash", "hash")], opened, params_of("question_answering", **SIZES))
    types = windows.batch(np.array([0]), with_types=True).encoded.token_type_ids_BL
    assert types is not None
    assert types[0, 0] == 0
    assert types[0, int(windows.first_W[0])] == 1
