"""Extractive question answering: find the span of a context that answers a question, or report no answer.

Shapes: B texts of a batch, L tokens of a window, C tokens of its context.
"""

import json
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import numpy.typing as npt

from clozeline.artifacts.export.manifest import Manifest
from clozeline.inference.batching import Batch
from clozeline.inference.errors import TextTooLongError
from clozeline.inference.json_pairs import pairs_in
from clozeline.inference.open_model import PerToken, Records
from clozeline.inference.question import AnyQuestion, Question, Rows
from clozeline.inference.scores import check_top_k
from clozeline.inference.spans import Span, SpanSearch, WindowSpans, best_pairs, characters, log_sum, without
from clozeline.inference.tokenization import Window

ENDS = "ends"
"""Name of the output that stacks the start and the end logits on its last axis."""
_CONTEXT = 1
_NO_ANSWER = 0
"""First token of a window, which start and end point at if there is no answer (Devlin et al. 2018, section 4.3)."""
_USUAL = SpanSearch()
_QUESTION_TOKENS = 64
_OVERLAP_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer with the fields of Hugging Face's question-answering task; `answer` is empty if there is no answer."""

    answer: str
    score: float
    """Probability, 0-1, among all spans of all windows and no answer."""
    start: int
    """First character of the answer in the context."""
    end: int


@dataclass(frozen=True, slots=True)
class Reading:
    """How a context is split into windows; None stands for the default of the model."""

    window_tokens: int | None = None
    overlap_tokens: int | None = None
    """Context tokens that adjacent windows share, at most half of the context tokens of a window."""
    question_tokens: int = _QUESTION_TOKENS
    """Number of tokens to which a longer question is truncated."""


_AS_IT_IS = Reading()


class Answerer(PerToken):
    """Answers questions about contexts of any length; a long context is read in overlapping windows."""

    def ask(
        self, pairs: Sequence[tuple[str, str]], *, search: SpanSearch = _USUAL, reading: Reading = _AS_IT_IS
    ) -> list[list[Answer]]:
        """Return the best answers to each question about its context, best first.

        Raises:
            TextError: a text is not valid Unicode, or a window has no room for a context beside the question.
            DataError: `search.top_k` is below 1.
        """
        return self.best(pairs, self.answers(self.asking(pairs, search=search, reading=reading)), search=search)

    def asking(
        self, pairs: Sequence[tuple[str, str]], *, search: SpanSearch = _USUAL, reading: Reading = _AS_IT_IS
    ) -> Question[WindowSpans]:
        """Return the `Question` that `ask` would run; `best` combines its answers. Raises the same errors as `ask`."""
        check_top_k(search.top_k)
        windows = self.windows(pairs, reading=reading)
        return Question(
            [window.read for window in windows],
            ENDS,
            lambda position, ends_L2: spans_in(windows[position], ends_L2, search),
        )

    def windows(self, pairs: Sequence[tuple[str, str]], *, reading: Reading = _AS_IT_IS) -> list[Window]:
        """Return the windows of each question with its context; raises as `ask`."""
        return [window for number, pair in enumerate(pairs) for window in self._windows(number, pair, reading)]

    def best(
        self, pairs: Sequence[tuple[str, str]], found: Sequence[WindowSpans], *, search: SpanSearch = _USUAL
    ) -> list[list[Answer]]:
        """Return the answers to each question, best first, from the spans in the windows of its context."""
        of_question: dict[int, list[WindowSpans]] = defaultdict(list)
        for window in found:
            of_question[window.number].append(window)
        margin = self.manifest.no_answer_margin or 0.0
        return [
            _answers(context, of_question[number], search, margin)[: search.top_k]
            for number, (_, context) in enumerate(pairs)
        ]

    @property
    def main_output(self) -> str:
        return ENDS

    def usual(self, texts: Sequence[str]) -> AnyQuestion:
        return self.asking([(text, text) for text in texts])

    def records(self, texts: Sequence[str], *, top_k: int, truncate: bool) -> Records:
        """Return answers from the whole context; `truncate` has no effect."""
        found = self.ask(pairs_in(texts, "question", "context"), search=SpanSearch(top_k=top_k))
        return [{"answers": [asdict(answer) for answer in of_question]} for of_question in found]

    @classmethod
    def examples(cls, manifest: Manifest) -> list[str]:
        return [json.dumps({"question": "What is returned?", "context": "It returns a value."})] * 2

    def _run(self, batch: Batch, *outputs: str) -> list[npt.NDArray[np.float32]]:
        if outputs != (ENDS,):
            return super()._run(batch, *outputs)
        start_BL, end_BL = super()._run(batch, "start_logits", "end_logits")
        return [np.stack([start_BL, end_BL], axis=2)]

    def _windows(self, number: int, pair: tuple[str, str], reading: Reading) -> list[Window]:
        longest = min(reading.window_tokens or self.manifest.max_length, self.manifest.max_length)
        most = longest - self.tokenizer.num_added(pairs=True)
        question, num_tokens = self.tokenizer.first_tokens(pair[0], max(1, min(reading.question_tokens, most // 2)))
        room = most - num_tokens
        if room < 1:
            raise TextTooLongError(
                "leaves no room for a context",
                number=number,
                given=f"{num_tokens} tokens of the question in a window of {longest} tokens",
                expected="at least one token of the context in each window",
                do="use larger windows (over HTTP: `max_seq_len`)",
            )
        overlap = _OVERLAP_TOKENS if reading.overlap_tokens is None else reading.overlap_tokens
        windows = self.tokenizer.windows([(question, pair[1])], longest=longest, overlap=min(overlap, room // 2))
        return [replace(window, number=number) for window in windows]


def context_of(window: Window) -> npt.NDArray[np.int64]:
    """Return the indices of the window's tokens that belong to the context."""
    return np.flatnonzero([sequence == _CONTEXT for sequence in window.encoding.sequence_ids])


def spans_in(window: Window, ends_L2: Rows, search: SpanSearch = _USUAL) -> WindowSpans:
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
    pairs = best_pairs(ends_L2[of_context, 0], ends_L2[of_context, 1], search)
    spans = tuple(Span(int(start_C[first]), int(end_C[last]), logit) for first, last, logit in pairs)
    return WindowSpans(window.number, spans, nothing, without(total, nothing))


def _answers(context: str, windows: Sequence[WindowSpans], search: SpanSearch, margin: float) -> list[Answer]:
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
    if not search.may_be_unanswerable and ranked:
        return ranked
    none = Answer("", math.exp(nothing - total), 0, 0)
    place = sum(answer.score >= math.exp(nothing - margin - total) for answer in ranked)
    return [*ranked[:place], none, *ranked[place:]]
