"""Questions and contexts as rows. A context that is too long becomes several overlapping windows.

Shapes: Q questions, W windows, B windows of a batch, L longest of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch

from clozeline.params.tasks import QuestionAnsweringParams
from clozeline.tasks.question_answering.data import ContextQuestion
from clozeline.tasks.rows import Ids, TargetedBatch, TextRows
from clozeline.tokenizing.tokenizer.folder import OpenTokenizer

_CONTEXT = 1
"""Index of the context in a pair."""
NO_ANSWER = 0
"""Position of a window's first token, the target of both ends of "no answer" (Devlin et al. 2018, section 4.3)."""


@dataclass(frozen=True)
class Windows:
    """One split of the task, as questions and as rows."""

    questions: Sequence[ContextQuestion]
    rows: TextRows
    question_W: Ids
    first_W: Ids
    """Position of the first token of the context in the window."""
    spans_W: tuple[Ids, ...]
    """[tokens of the context, 2]: start and end (exclusive) of each token, in characters of the context."""
    target_W2: Ids
    """Positions of the first and last token of the answer; NO_ANSWER twice if the window does not hold all of it."""
    num_cut_questions: int
    num_in_several: int
    """Questions whose context is longer than a window."""

    @classmethod
    def encode(
        cls, questions: Sequence[ContextQuestion], opened: OpenTokenizer, params: QuestionAnsweringParams
    ) -> Self:
        asked, num_cut = _cut([it.question for it in questions], opened, params.max_question_tokens)
        pairs = list(zip(asked, (it.context for it in questions), strict=True))
        opened.tokenizer.enable_truncation(params.max_length, stride=params.stride, strategy="only_second")
        encodings = opened.tokenizer.encode_batch(pairs)
        opened.tokenizer.no_truncation()
        windows = [(n, part) for n, whole in enumerate(encodings) for part in (whole, *whole.overflowing)]
        context = [_context_of(part) for _, part in windows]
        rows = TextRows(
            ids_T=tuple(np.array(part.ids, dtype=np.int64) for _, part in windows),
            pad_id=opened.special_ids.pad,
            num_truncated=0,
            types_T=tuple(np.array(part.type_ids, dtype=np.int64) for _, part in windows),
        )
        targets = [_target(questions[n], *of) for (n, _), of in zip(windows, context, strict=True)]
        return cls(
            questions=questions,
            rows=rows,
            question_W=np.array([n for n, _ in windows], dtype=np.int64),
            first_W=np.array([first for first, _ in context], dtype=np.int64),
            spans_W=tuple(spans for _, spans in context),
            target_W2=np.array(targets, dtype=np.int64).reshape(-1, 2),
            num_cut_questions=num_cut,
            num_in_several=sum(bool(whole.overflowing) for whole in encodings),
        )

    def batch(self, windows_B: Ids, with_types: bool) -> TargetedBatch:
        """Return rows with their targets [B, 2]."""
        encoded = self.rows.encoded(windows_B, with_types=with_types)
        return TargetedBatch(encoded, torch.from_numpy(self.target_W2[windows_B]))


def _cut(questions: Sequence[str], opened: OpenTokenizer, longest: int) -> tuple[list[str], int]:
    """Return the questions cut to `longest` tokens, and the number of questions that were longer."""
    encodings = opened.tokenizer.encode_batch(list(questions), add_special_tokens=False)
    cut = [
        question if len(encoding) <= longest else question[: encoding.offsets[longest - 1][1]]
        for question, encoding in zip(questions, encodings, strict=True)
    ]
    return cut, sum(len(encoding) > longest for encoding in encodings)


def _context_of(encoding: Any) -> tuple[int, Ids]:
    """Return the position of the context's first token, and the character span of each of its tokens."""
    places = [place for place, sequence in enumerate(encoding.sequence_ids) if sequence == _CONTEXT]
    spans = np.array([encoding.offsets[place] for place in places], dtype=np.int64).reshape(-1, 2)
    return (places[0] if places else 0), spans


def _target(question: ContextQuestion, first: int, spans: Ids) -> tuple[int, int]:
    """Return the positions of the first answer, which is the one to learn, as in `Windows.target_W2`."""
    if not question.answers:
        return NO_ANSWER, NO_ANSWER
    answer = question.answers[0]
    inside = np.flatnonzero((spans[:, 1] > answer.start) & (spans[:, 0] < answer.end))
    if len(inside) == 0 or spans[inside[0], 0] > answer.start or spans[inside[-1], 1] < answer.end:
        return NO_ANSWER, NO_ANSWER
    return first + int(inside[0]), first + int(inside[-1])
