"""Extractive question answering: find the span of a context that answers a question, or report no answer.

The best spans are searched given the logits of start and end tokens.

Shapes: B texts of a batch, L tokens of a window, C tokens of its context.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from clozeline.inference import open_model
from clozeline.inference.fields import UNDESCRIBED, AnswerSearch
from clozeline.inference.tokenization import TextTooLongError, Window, each_text

Logits = npt.NDArray[np.float32]
Places = npt.NDArray[np.int64]
# Number of additional spans to find, because several may become the same after alignment to words.
_SPARE_SPANS = 10

# Name of the output that stacks the start and the end logits on its last axis.
ENDS = "ends"
_CONTEXT = 1
# First token of a window, which start and end point at if there is no answer (Devlin et al. 2018, section 4.3).
_NO_ANSWER = 0

_OVERLAP_TOKENS = 128
SEARCH = AnswerSearch()


@dataclass(frozen=True, slots=True)
class Span:
    """A span of characters of the context, and the sum of its start and end logits."""

    start: int
    end: int
    logit: float


@dataclass(frozen=True, slots=True)
class WindowSpans:
    """Answers of the model in one window of a context."""

    number: int  # index of the question among those asked
    spans: tuple[Span, ...]  # spans, best first
    nothing: float  # logit of no answer in this window
    answered: float  # log of the sum of the exponentials of all pairs of start and end, without that of no answer


def best_pairs(start_C: Logits, end_C: Logits, top_k: int, search: AnswerSearch) -> Iterator[tuple[int, int, float]]:
    """Yield first token, last token and logit of the best spans of at most `max_answer_len` tokens, best first."""
    num_tokens = len(start_C)
    width = min(search.max_answer_len, num_tokens)
    padded = np.concatenate([end_C, np.full(width - 1, -np.inf, dtype=end_C.dtype)])
    sums = start_C[:, None] + np.lib.stride_tricks.sliding_window_view(padded, width)
    wanted = min(2 * top_k + _SPARE_SPANS if search.align_to_words else top_k, sums.size)
    flat = sums.ravel()
    best = np.argpartition(-flat, wanted - 1)[:wanted]
    for place in best[np.lexsort((best, -flat[best]))]:
        first, offset = divmod(int(place), width)
        if np.isfinite(flat[place]):
            yield first, first + offset, float(flat[place])


def characters(spans_C2: Places, word_C: Places, align_to_words: bool) -> tuple[Places, Places]:
    """Return, for each token, the first character of an answer that starts there and the end of one that ends there."""
    if not align_to_words:
        return spans_C2[:, 0], spans_C2[:, 1]
    first_C = np.searchsorted(word_C, word_C, side="left")
    last_C = np.searchsorted(word_C, word_C, side="right") - 1
    return spans_C2[first_C, 0], spans_C2[last_C, 1]


def log_sum(values: npt.NDArray[np.float64]) -> float:
    """Return the log of the sum of the exponentials of `values`."""
    largest = float(values.max())
    return largest + math.log(float(np.exp(values - largest).sum()))


def without(total: float, part: float) -> float:
    """Return log(exp(total) - exp(part)); -inf if nothing is left."""
    share = math.exp(min(part - total, 0.0))
    return total + math.log1p(-share) if share < 1 else -math.inf


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer with the fields of Hugging Face's question-answering task; `answer` is empty if there is no answer."""

    __pydantic_config__ = UNDESCRIBED

    answer: Annotated[str, Field(description="Empty if the context has no answer.")]
    score: Annotated[float, Field(ge=0, le=1.001, description="Probability among all spans and no answer.")]
    start: Annotated[int, Field(ge=0, description="First character of the answer in the context.")]
    end: Annotated[int, Field(ge=0)]


class Answerer(open_model.PerToken):
    """Answers questions about contexts of any length; a long context is read in overlapping windows."""

    part = "answers"

    def ask(
        self, pairs: Sequence[tuple[str, str]], *, top_k: int = 1, search: AnswerSearch = SEARCH
    ) -> list[list[Answer]]:
        """Return the `top_k` best answers to each question about its context, best first.

        Raises:
            TextError: a text is not valid Unicode, or a window has no room for a context beside the question.
            DataError: `top_k` is below 1.
        """
        return self.converse(self.answering(pairs, top_k=top_k, search=search))

    def answering(
        self, pairs: Sequence[tuple[str, str]], *, top_k: int = 1, search: AnswerSearch = SEARCH
    ) -> open_model.Dialogue[list[list[Answer]]]:
        """Return the dialogue that `ask` runs. It raises the same errors as `ask`."""
        asked = self.asking(pairs, top_k=top_k, search=search)
        (found,) = yield open_model.Round([asked], reading_characters=sum(map(len, each_text(pairs))))
        return self.best(pairs, found, top_k, search)

    def asking(
        self, pairs: Sequence[tuple[str, str]], *, top_k: int = 1, search: AnswerSearch = SEARCH
    ) -> open_model.Question[WindowSpans]:
        """Return the question about the windows of each context. Raises the same errors as `ask`."""
        open_model.check_top_k(top_k)
        windows = self.windows(pairs, search)
        return open_model.Question(
            [window.read for window in windows],
            ENDS,
            lambda position, ends_L2: spans_in(windows[position], ends_L2, top_k, search),
            most_characters=top_k * sum(len(context) for _, context in pairs),
        )

    def windows(self, pairs: Sequence[tuple[str, str]], search: AnswerSearch = SEARCH) -> list[Window]:
        """Return the windows of each question with its context; raises as `ask`."""
        return [window for number, pair in enumerate(pairs) for window in self._windows(number, pair, search)]

    def best(
        self, pairs: Sequence[tuple[str, str]], found: Sequence[WindowSpans], top_k: int, search: AnswerSearch
    ) -> list[list[Answer]]:
        """Return the answers to each question, best first, from the spans in the windows of its context."""
        of_question: dict[int, list[WindowSpans]] = defaultdict(list)
        for window in found:
            of_question[window.number].append(window)
        margin = self.manifest.no_answer_margin or 0.0
        return [
            _answers(context, of_question[number], search, margin)[:top_k] for number, (_, context) in enumerate(pairs)
        ]

    @property
    def main_output(self) -> str:
        return ENDS

    @staticmethod
    def confidence(ranked: Sequence[Answer]) -> Iterable[float]:
        return (one.score for one in ranked[:1])

    def usual(self, texts: Sequence[str]) -> open_model.AnyQuestion:
        return self.asking([(text, text) for text in texts])

    def recording(
        self, given: Sequence[tuple[str, str]], *, top_k: int, truncate: bool
    ) -> open_model.Dialogue[open_model.Records]:
        """Give answers from the whole context; `truncate` has no effect."""
        answered = yield from self.answering(given, top_k=top_k)
        return [{"answers": answers} for answers in answered]

    @classmethod
    def pair_names(cls, *, reads_pairs: bool) -> tuple[str, str]:
        return "question", "context"

    def _run(self, batch: open_model.TextBatch, *outputs: str) -> list[npt.NDArray[np.float32]]:
        if outputs != (ENDS,):
            return super()._run(batch, *outputs)
        start_BL, end_BL = super()._run(batch, "start_logits", "end_logits")
        return [np.stack([start_BL, end_BL], axis=2)]

    def _windows(self, number: int, pair: tuple[str, str], search: AnswerSearch) -> list[Window]:
        longest = min(search.max_seq_len or self.manifest.max_length, self.manifest.max_length)
        most = longest - self.tokenizer.num_added(pairs=True)
        question, num_tokens = self.tokenizer.first_tokens(pair[0], max(1, min(search.max_question_len, most // 2)))
        room = most - num_tokens
        if room < 1:
            raise TextTooLongError(
                "leaves no room for a context",
                number=number,
                given=f"{num_tokens} tokens of the question in a window of {longest} tokens",
                expected="at least one token of the context in each window",
                do="use larger windows (over HTTP: `max_seq_len`)",
            )
        overlap = _OVERLAP_TOKENS if search.doc_stride is None else search.doc_stride
        windows = self.tokenizer.windows([(question, pair[1])], longest=longest, overlap=min(overlap, room // 2))
        return [replace(window, number=number) for window in windows]


def context_of(window: Window) -> npt.NDArray[np.int64]:
    """Return the indices of the window's tokens that belong to the context."""
    return np.flatnonzero([sequence == _CONTEXT for sequence in window.encoding.sequence_ids])


def spans_in(window: Window, ends_L2: open_model.Rows, top_k: int, search: AnswerSearch) -> WindowSpans:
    """Return the best spans of a window, from the start and end logits at each of its tokens."""
    of_context = context_of(window)
    seen = np.concatenate([[_NO_ANSWER], of_context])
    total = sum(log_sum(ends_L2[seen, end].astype(np.float64)) for end in (0, 1))
    nothing = float(ends_L2[_NO_ANSWER].sum(dtype=np.float64))
    if len(of_context) == 0:
        return WindowSpans(window.number, (), nothing, -math.inf)
    spans_C2 = np.array(window.encoding.offsets, dtype=np.int64)[of_context]
    words = window.encoding.word_ids
    word_C = np.array([words[place] for place in of_context], dtype=np.int64)
    start_C, end_C = characters(spans_C2, word_C, search.align_to_words)
    pairs = best_pairs(ends_L2[of_context, 0], ends_L2[of_context, 1], top_k, search)
    spans = tuple(Span(int(start_C[first]), int(end_C[last]), logit) for first, last, logit in pairs)
    return WindowSpans(window.number, spans, nothing, without(total, nothing))


def _answers(context: str, windows: Sequence[WindowSpans], search: AnswerSearch, margin: float) -> list[Answer]:
    """Return the answers, best first. Probabilities of spans with the same text, ignoring case, are added."""
    nothing = min(window.nothing for window in windows)
    total = log_sum(np.array([nothing, *(window.answered for window in windows)]))
    found: dict[str, Answer] = {}
    spans = sorted((span for window in windows for span in window.spans), key=lambda span: -span.logit)
    for span in spans:
        text, score = context[span.start : span.end], math.exp(span.logit - total)
        before = found.get(text.lower())
        found[text.lower()] = (
            Answer(before.answer, before.score + score, before.start, before.end)
            if before
            else Answer(text, score, span.start, span.end)
        )
    ranked = sorted(found.values(), key=lambda answer: -answer.score)
    if not search.handle_impossible_answer and ranked:
        return ranked
    none = Answer("", math.exp(nothing - total), 0, 0)
    place = sum(answer.score >= math.exp(nothing - margin - total) for answer in ranked)
    return [*ranked[:place], none, *ranked[place:]]
