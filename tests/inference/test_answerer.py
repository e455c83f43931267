"""Answers equal the stock model's, and are found anywhere in a long context."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer, CharSpan

from clozeline.inference.answerer import Answer, Answerer
from clozeline.inference.fields import AnswerSearch
from clozeline.inference.tokenization import TextTooLongError
from tests.make.models import SENTENCES
from tests.make.opened import load_as
from tests.make.packages import write_answerer

PAIRS = [
    ("what reads a sentence", SENTENCES[0] + ", and " + SENTENCES[4]),
    ("what of the shapes", SENTENCES[2]),
    ("is it empty?", SENTENCES[3] + "!"),
]
IMPOSSIBLE = AnswerSearch(handle_impossible_answer=True)


@pytest.fixture(scope="module")
def answerer(answerer_package: Path) -> Answerer:
    return load_as(Answerer, answerer_package, precision="fp32")


def tiny(folder: Path, max_length: int = 64, margin: float | None = None) -> Answerer:
    write_answerer(folder, no_answer_margin=margin)
    return load_as(Answerer, folder, max_length=max_length)


def by_definition(folder: Path, pair: tuple[str, str], top_k: int, align: bool) -> tuple[list[Answer], float]:
    """Return the answers of transformers' pipeline up to 4.57, and the probability of no answer. The score of a span is
    P(start) times P(end) of the stock model; scores of spans with the same words are added."""
    encoded = AutoTokenizer.from_pretrained(folder)(*pair, return_tensors="pt")
    with torch.inference_mode():
        output = AutoModelForQuestionAnswering.from_pretrained(folder).eval()(**encoded)
    places = [0, *(place for place, sequence in enumerate(encoded.sequence_ids(0)) if sequence == 1)]
    starts, ends = (it[0, places].double().softmax(0).tolist() for it in (output.start_logits, output.end_logits))
    num = len(places)
    spans = [(starts[i] * ends[j], i, j) for i in range(1, num) for j in range(i, min(i + 15, num))]

    def characters(place: int) -> CharSpan:
        if not align:
            return encoded.token_to_chars(0, place)
        return encoded.word_to_chars(0, encoded.token_to_word(0, place), sequence_index=1)

    found: dict[str, Answer] = {}
    for score, i, j in sorted(spans, key=lambda it: -it[0])[: 2 * top_k + 10 if align else top_k]:
        start, end = characters(places[i]).start, characters(places[j]).end
        words = pair[1][start:end]
        first = found.get(words.lower(), Answer(words, 0.0, start, end))
        found[words.lower()] = replace(first, score=first.score + score)
    return sorted(found.values(), key=lambda it: -it.score)[:top_k], starts[0] * ends[0]


@pytest.mark.parametrize(("align", "top_k"), [(True, 4), (False, 1)])
def test_answers_and_scores_equal_those_of_the_stock_model(
    answerer: Answerer, small_answerer: Path, top_k: int, align: bool
) -> None:
    found = answerer.ask(PAIRS, top_k=top_k, search=AnswerSearch(align_to_words=align))
    for pair, ours in zip(PAIRS, found, strict=True):
        theirs, _ = by_definition(small_answerer, pair, top_k, align)
        assert [(it.answer, it.start, it.end) for it in ours] == [(it.answer, it.start, it.end) for it in theirs]
        assert [it.score for it in ours] == pytest.approx([it.score for it in theirs], rel=1e-3)
    (every,) = answerer.ask(PAIRS[:1], top_k=999, search=IMPOSSIBLE)
    (none,) = (one for one in every if not one.answer)
    assert none.score == pytest.approx(by_definition(small_answerer, PAIRS[0], 1, True)[1], rel=1e-3)
    assert (none.start, none.end) == (0, 0)


@pytest.mark.parametrize("overlap", [16, None])
def test_window_boundaries_do_not_change_the_best_answer_of_a_long_context(tmp_path: Path, overlap: int | None) -> None:
    """The graph reads each token alone, so the best span is the same if the context is read whole.

    The span's first and last word occur once, so that no other span has the same logits.
    """
    short, whole = tiny(tmp_path / "short", 48), tiny(tmp_path / "whole", 4096)
    filler = [["of", "files", "b", "c", "e", "f", "return", "é"][n * n % 11 % 8] for n in range(300)]
    contexts = [" ".join([*filler[:place], "the lists a", *filler[place:]]) for place in range(0, 300, 23)]
    pairs = [*(("open", context) for context in contexts), ("list of", "the file")]
    search = AnswerSearch(doc_stride=overlap)
    assert len(short.asking(pairs[:1], search=search).texts) > 8
    found, expected = short.ask(pairs, search=search), whole.ask(pairs)
    assert [one.answer for (one,) in expected] == ["the lists a"] * len(contexts) + ["the file"]
    assert [(one.answer, one.start) for (one,) in found] == [(one.answer, one.start) for (one,) in expected]
    for (one,), (_, context) in zip(found, pairs, strict=True):
        assert 0 < one.score <= 1
        assert context[one.start : one.end] == one.answer


def test_window_size_is_configurable_and_a_question_that_is_too_long_is_cut(tmp_path: Path) -> None:
    model = tiny(tmp_path / "reader")
    pairs = [("the " * 40, "list " * 60)]
    texts = model.asking(pairs, search=AnswerSearch(max_seq_len=20, max_question_len=5)).texts
    assert max(len(text) for text in texts) == 20
    assert all((text.ids_L == model.tokenizer.ids_of("the")[0]).sum() == 5 for text in texts)
    assert all(text.types_L is not None and text.types_L.sum() == len(text) - 7 for text in texts)
    with pytest.raises(TextTooLongError, match="no room for a context"):
        model.ask(pairs, search=AnswerSearch(max_seq_len=4))


def test_the_trained_margin_decides_whether_there_is_an_answer(tmp_path: Path) -> None:
    asked = [("list", "the files of a list")]
    (never,) = tiny(tmp_path / "never", margin=100.0).ask(asked, top_k=3, search=IMPOSSIBLE)
    (always,) = tiny(tmp_path / "always", margin=-100.0).ask(asked, top_k=3, search=IMPOSSIBLE)
    assert all(one.answer for one in never)
    assert [one.answer for one in always] == ["", *(one.answer for one in never[:2])]
    assert always[1:] == never[:2]
    assert load_as(Answerer, tmp_path / "always").ask(asked) == [never[:1]]
