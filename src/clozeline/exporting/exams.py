"""Exams: tokenized texts, a function that reads a graph's answers to them, and the right answers.

Two graphs are compared by their answers, which come in a fixed order, and by shares and ratios over texts with 95 %
intervals. Here are the texts on which INT8 is compared with fp32, and the exams of language models: predict hidden or
next tokens.

Shapes: A answers (masked tokens of an encoder, texts of a classifier, …), H hidden, L tokens, P predicted tokens of a
text, T texts, V vocabulary, classes or tags.
"""

import hashlib
import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import methodcaller
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from clozeline.inference.answerer import ENDS
from clozeline.inference.completer import Completer
from clozeline.inference.language import TOP, OpenEncoder
from clozeline.inference.open_model import OpenModel, Rows, TextBatch
from clozeline.inference.package import kind_of, resolved
from clozeline.inference.tokenization import TokenizedText
from clozeline.records import clean_text, package
from clozeline.records.finetune.scored_items import HeldOut
from clozeline.system.errors import DataError

# Share of a text's tokens that are masked (Devlin et al. 2018, section 3.1).
MASK_RATE = 0.15
# Most beginnings of a text after which a causal model predicts the next token; each is a text of the exam.
BEGINNINGS = 4
# Marks an answer without a label.
UNKNOWN = -1

# Function from the index of a text in an exam and the graph's output for it to its answers.
Reader = Callable[[int, Rows], npt.NDArray[np.int64]]

NORMAL_QUANTILE_95 = 1.959963984540054

Numbers = npt.NDArray[np.int64] | npt.NDArray[np.float64]
Vectors = npt.NDArray[np.float32]
Places = npt.NDArray[np.int64]
Holds = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Answers:
    """Answers grouped by text; texts are in the order given."""

    top1_A: npt.NDArray[np.int64]  # answers that a `Reader` takes from the output, or an exam from the embeddings
    # Embeddings of length 1 of the texts as given, masks included; None for a model that does not embed.
    embeddings_TH: npt.NDArray[np.float32] | None = None


def likeliest(position: int, rows: Rows) -> npt.NDArray[np.int64]:
    """Return the index of the largest logit."""
    return np.atleast_1d(rows.argmax(axis=-1))


def named_first(position: int, rows: Rows) -> npt.NDArray[np.int64]:
    """Return the first token of `TOP` at each position: the likeliest one according to the graph itself."""
    return rows.reshape(-1, rows.shape[-2], 2)[:, 0, 0].astype(np.int64)


def answers(model: OpenModel, grouped: Iterable[TextBatch], read: Reader, output: str) -> npt.NDArray[np.int64]:
    """Return `answer_A` of `model` to the batches `grouped`, which hold each text once; `read` interprets `output`."""
    answers: dict[int, npt.NDArray[np.int64]] = {}
    for batch, (values,) in model.run_batches(grouped, output):
        # The outputs for all texts together would not fit in memory.
        for position, of_text in zip(batch.positions, model.split(batch, output, values), strict=True):
            answers[position] = read(position, of_text)
    return np.concatenate([answers[position] for position in sorted(answers)])


def embeddings(model: OpenModel, grouped: Iterable[TextBatch]) -> npt.NDArray[np.float32]:
    vectors: dict[int, npt.NDArray[np.float32]] = {}
    for batch, (embeddings_BH,) in model.run_batches(grouped, "sentence_embedding"):
        vectors.update(zip(batch.positions, embeddings_BH, strict=True))
    return np.stack([vectors[position] for position in sorted(vectors)])


def logits(model: OpenModel, texts: Sequence[TokenizedText]) -> Iterator[npt.NDArray[np.float32]]:
    """Yield `logits_AV` of each text, short texts first; for an encoder without a head, the embedding.

    V counts the tokens of the text where an answer points at a token.
    """
    output = model.main_output
    for batch, (values,) in model.run_batches(model.batches(texts), output):
        for of_text in model.split(batch, output, values):
            yield of_text.T if output == ENDS else np.atleast_2d(of_text)


def hide(text: TokenizedText, model: OpenEncoder) -> tuple[TokenizedText, Places]:
    """Mask the tokens at `hidden_places`.

    Returns:
        The text, and the true id of each mask, [M]; UNKNOWN where the text itself contains the mask token.
    """
    specials = model.manifest.special_tokens
    assert specials.mask_id is not None
    places = hidden_places(text.ids_L, specials.ids)
    ids_L = text.ids_L.copy()
    ids_L[places] = specials.mask_id
    true_ids_M = text.ids_L[ids_L == specials.mask_id]
    return replace(text, ids_L=ids_L), np.where(true_ids_M == specials.mask_id, UNKNOWN, true_ids_M)


def beginnings(text: TokenizedText, special_ids: Sequence[int]) -> list[tuple[TokenizedText, int]]:
    """Return up to `BEGINNINGS` beginnings of `text`, each with the token after it.

    The tokens are chosen as for masking, then evenly from the first to the last. A token without one before it, special
    tokens included, is never chosen.
    """
    places = [int(place) for place in hidden_places(text.ids_L, special_ids) if place]
    steps = np.linspace(0, len(places) - 1, min(BEGINNINGS, len(places))).round().astype(int)
    return [(TokenizedText(text.ids_L[: places[step]], ()), int(text.ids_L[places[step]])) for step in steps]


def hidden_places(ids_L: npt.NDArray[np.int64], special_ids: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return the indices of the tokens to mask: about `MASK_RATE` of them, at least one, chosen by the text alone.

    Special tokens are never chosen; a text of special tokens alone gives none.
    """
    candidates = np.flatnonzero(~np.isin(ids_L, special_ids))
    wanted = math.ceil(MASK_RATE * len(candidates))
    content = ids_L.tobytes()
    drawn = sorted(candidates, key=lambda place: hashlib.blake2b(content + b"%d" % place, digest_size=8).digest())
    return np.sort(np.array(drawn[:wanted], dtype=np.int64))


@dataclass(frozen=True)
class Sample:
    """Input for both graphs: texts in the order of their hashes, or held-out items of the task."""

    texts: Sequence[str]
    labels: Sequence[str | None]  # label of each text, where the file has one
    # Held-out items of the task with their labels; if there are any, they replace the texts.
    held_out: Sequence[HeldOut] = ()
    # Whether to ask texts with equal tokens too: models with different tokenizers then answer the same items.
    keeps_copies: bool = False

    def parted(self, num_deciding: int, num_calibrating: int) -> tuple[Self, Self]:
        """Split into the texts of the exam and disjoint ones for calibration of activation ranges.

        If there are too few texts, both parts shrink in the same proportion. A single text is in both parts; the
        caller logs that.
        """
        num_texts = len(self.texts)
        scarcity = min(num_texts / (num_deciding + num_calibrating), 1.0)
        num_first = num_texts - min(math.ceil(scarcity * num_calibrating), num_texts - 1)
        ends = (0, num_first), (num_first if num_texts > 1 else 0, num_first + num_calibrating)
        first, second = (
            replace(self, texts=self.texts[start:end], labels=self.labels[start:end]) for start, end in ends
        )
        return first, second


def read_sample(texts: Path, num_texts: int, label_field: str | None = None) -> Sample:
    """Return the `num_texts` distinct texts with the lowest hashes, a sample that does not depend on the row order.

    Their labels come from the column `label_field`; a text with two different labels gets none.

    Raises:
        ArtifactError: the file is missing or damaged, or lacks the column of the texts or `label_field`.
        DataError: the file has no texts.
    """
    columns = clean_text.columns_of(texts, clean_text.TEXT, *([label_field] if label_field else []))
    labels: dict[bytes, set[str]] = {}
    distinct: dict[bytes, str] = {}
    rows = chain.from_iterable(zip(*map(methodcaller("to_pylist"), batch), strict=True) for batch in columns)
    for text, *label in (row for row in rows if row[0]):
        digest = hashlib.sha256(text.encode()).digest()
        distinct[digest] = text
        labels.setdefault(digest, set()).update(str(name) for name in label if name is not None)
    if not distinct:
        raise DataError(
            f"{texts} holds no text on which INT8 can be compared with fp32",
            do="give preprocess more text, or raise `validation_fraction`",
        )
    chosen = heapq.nsmallest(num_texts, distinct)
    only = [next(iter(names)) if len(names := labels[digest]) == 1 else None for digest in chosen]
    return Sample([distinct[digest] for digest in chosen], only)


@dataclass(frozen=True)
class Counts:
    """A figure as the ratio of two sums over texts.

    Accuracy: right answers / all answers. F1: twice the right given answers / (given answers + right answers).
    """

    part_T: Numbers
    whole_T: Numbers
    num_right: int | None = None  # number of right answers; None: `whole_T` counts them

    @property
    def num_items(self) -> int:
        return int(self.whole_T.sum()) if self.num_right is None else self.num_right

    @property
    def value(self) -> float:
        """The figure; 0 if `whole_T` is all 0."""
        whole = float(self.whole_T.sum())
        return float(self.part_T.sum()) / whole if whole else 0.0


def ratio(parts_T: Numbers, wholes_T: Numbers, num_items: int) -> package.Measured:
    """Return sum of `parts_T` / sum of `wholes_T`, both one count per text, with a 95 % interval.

    The sampled units are texts, not their masks, so the interval is that of a ratio estimate (Cochran 1977, Sampling
    Techniques, section 6.3). If no text deviates from the ratio, the interval is as wide as if one answer did. The
    result is 0 if the sum of `wholes_T` is 0.
    """
    whole, num_counted = float(wholes_T.sum()), int(np.count_nonzero(wholes_T))
    if whole == 0:
        return measured(0.0, 0.0, num_items, num_counted)
    value = float(parts_T.sum()) / whole
    squares = max(float(np.square(parts_T - value * wholes_T).sum()), 1.0)
    num_texts = len(parts_T)
    half = NORMAL_QUANTILE_95 * math.sqrt(squares * num_texts / max(num_texts - 1, 1)) / whole
    return measured(value, half, num_items, num_counted)


def measured(value: float, half_width: float, num_items: int, num_texts: int) -> package.Measured:
    low, high = max(value - half_width, 0.0), value + half_width
    return package.Measured(value=value, low=low, high=high, num_items=num_items, num_texts=num_texts)


def share(holds_A: npt.NDArray[np.bool_], text_A: npt.NDArray[np.int64]) -> package.Measured:
    """Return the share of answers with `holds_A`; `text_A` is the text of each answer."""
    found = ratio(per_text(holds_A, text_A), np.bincount(text_A), len(holds_A))
    return found.model_copy(update={"high": min(found.high, 1.0)})


def per_text(holds_A: npt.NDArray[np.bool_], text_A: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the number of answers with `holds_A` in each text: [T]."""
    return np.bincount(text_A[holds_A], minlength=int(text_A.max(initial=-1)) + 1)


# Function from a model and batches, which hold each text once, to its answers.
Ask = Callable[[OpenModel, Iterable[TextBatch]], Answers]
# Function from a model's answers and those of fp32 to its metric as two sums over texts.
Count = Callable[[Answers, Answers], Counts]


def reading(read: Reader) -> Ask:
    """Ask for the main output, in which `read` finds the answers."""
    return lambda model, grouped: Answers(answers(model, grouped, read, model.main_output))


# Asks for the label or the token with the largest logit.
by_likeliest = reading(likeliest)


def comparing(choose: Callable[[Vectors], Places]) -> Ask:
    """Ask for the embeddings of the texts, by which `choose` finds the answers."""

    def ask(model: OpenModel, grouped: Iterable[TextBatch]) -> Answers:
        embeddings_TH = embeddings(model, grouped)
        return Answers(choose(embeddings_TH), embeddings_TH)

    return ask


def is_higher(value_A: Numbers) -> Places:
    """Return whether each value is above the one before it (the first: above the last), as 1 or 0."""
    return (value_A > np.roll(value_A, 1)).astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class Exam:
    """Texts, their right answers, and how a graph is asked and judged."""

    texts: Sequence[TokenizedText]
    text_A: Places  # text of each answer
    true_A: Places  # label of each answer; UNKNOWN without a label
    # Name of the metric. If it ends with "agreement", fp32's answers serve as the reference.
    metric: str
    answers: Ask = by_likeliest
    count: Count | None = None  # None: the metric is the share of right answers
    # Which answers say something: two graphs are compared on what either says. None: all do.
    says: Callable[[Places], Holds] | None = None
    # Figures of a model and its answers, by name; none if its own stage has measured them.
    quality: Callable[[OpenModel, Answers], Mapping[str, package.Measured]] = lambda model, given: {}

    @property
    def num_texts(self) -> int:
        """Number of texts, pairs or questions; each may have several answers."""
        return len(np.unique(self.text_A))

    @property
    def is_agreement(self) -> bool:
        """Whether fp32's answers serve as the reference, because there are no labels."""
        return self.metric.endswith("agreement")

    def counts(self, given: Answers, fp32: Answers) -> Counts:
        """Return the metric of `given` as two sums over texts: of labelled answers, or all if fp32 is the reference."""
        if self.count is not None:
            return self.count(given, fp32)
        is_counted = (self.true_A != UNKNOWN) | self.is_agreement
        is_right = is_counted & (given.top1_A == (fp32.top1_A if self.is_agreement else self.true_A))
        return Counts(per_text(is_right, self.text_A), per_text(is_counted, self.text_A))

    def matters(self, one: Answers, other: Answers) -> Holds:
        """Return which answers of two graphs are compared; all if neither says anything."""
        if self.says is None:
            return np.ones(len(one.top1_A), dtype=np.bool_)
        is_said = self.says(one.top1_A) | self.says(other.top1_A)
        return is_said if is_said.any() else ~is_said


def exam_of(model: OpenModel, sample: Sample) -> Exam:
    """Return the exam for the task of `model`.

    Raises:
        DataError: the sample has no item, because no text has a token.
    """
    exam: Exam = resolved(kind_of(model.manifest.task).exam)(model, sample)
    return exam


def different(texts: Sequence[TokenizedText], sample: Sample) -> list[int]:
    """Return the indices of texts whose tokens differ from those of all texts before: duplicates prove nothing new.

    All indices if the sample keeps copies.
    """
    if sample.keeps_copies:
        return list(range(len(texts)))
    first: dict[tuple[bytes, bytes], int] = {}
    for place, text in enumerate(texts):
        types = b"" if text.types_L is None else text.types_L.tobytes()
        first.setdefault((text.ids_L.tobytes(), types), place)
    return list(first.values())


def nothing_to_ask(given: str) -> DataError:
    """Return the error for a sample without items."""
    return DataError(f"INT8 and fp32 cannot be compared on {given}", do="check that tokenizer and text belong together")


def tokens_exam(
    texts: Sequence[TokenizedText], text_A: Places, true_A: Places, metric: str, asked_T: Sequence[Places]
) -> Exam:
    """Return an exam of predicted tokens. Its answers are the tokens that the graph serves as `TOP`.

    Args:
        asked_T: answers that each of `texts` gives: its hidden tokens, or the one after a beginning of a text.
    """

    def ask(model: OpenModel, grouped: Iterable[TextBatch]) -> Answers:
        # Asked as in serving: a request for tokens alone computes fewer positions than for embeddings.
        batches = list(grouped)
        return Answers(answers(model, batches, named_first, TOP), embeddings(model, batches))

    def quality(model: OpenModel, given: Answers) -> Mapping[str, package.Measured]:
        is_known_A = true_A != UNKNOWN
        right_A = (given.top1_A == true_A)[is_known_A]
        return {"perplexity": _perplexity(model, exam, asked_T), "top1": share(right_A, text_A[is_known_A])}

    exam = Exam(texts=texts, text_A=text_A, true_A=true_A, metric=metric, answers=ask, quality=quality)
    return exam


def _perplexity(model: OpenModel, exam: Exam, asked_T: Sequence[Places]) -> package.Measured:
    """Return exp of the mean loss of the predicted tokens; the interval is that of the mean over texts."""
    loss_A = np.zeros(len(exam.true_A))
    output = model.main_output
    for batch, (values,) in model.run_batches(model.batches(exam.texts), output):
        for position, logits in zip(batch.positions, model.split(batch, output, values), strict=True):
            asked = asked_T[position]
            scores_PV = np.atleast_2d(logits).astype(np.float64)
            highest_P = scores_PV.max(axis=1)
            total_P = highest_P + np.log(np.exp(scores_PV - highest_P[:, None]).sum(axis=1))
            loss_A[asked] = total_P - scores_PV[np.arange(len(asked)), exam.true_A[asked]]
    is_known_A = exam.true_A != UNKNOWN
    num_T = per_text(is_known_A, exam.text_A)
    loss_T = np.bincount(exam.text_A[is_known_A], weights=loss_A[is_known_A], minlength=len(num_T))
    loss = ratio(loss_T, num_T, int(num_T.sum()))
    return loss.model_copy(update={name: float(np.exp(getattr(loss, name))) for name in ("value", "low", "high")})


def masks_exam(model: OpenEncoder, sample: Sample) -> Exam:
    """Return the exam of predicting tokens that a fixed rule hides.

    Raises:
        DataError: no text has a token.
    """
    read = model.tokenize(sample.texts, truncate=True)
    hidden = [hide(read[place], model) for place in different(read, sample)]
    text_A = np.repeat(np.arange(len(hidden)), [len(true_ids_M) for _, true_ids_M in hidden])
    if len(text_A) == 0:
        raise nothing_to_ask(f"{len(read)} texts without a token to mask, such as {sample.texts[0][:60]!r}")
    true_A = np.concatenate([true_ids_M for _, true_ids_M in hidden])
    asked_T = [np.flatnonzero(text_A == number) for number in range(len(hidden))]
    return tokens_exam([text for text, _ in hidden], text_A, true_A, "masked-LM accuracy", asked_T)


def next_tokens_exam(model: Completer, sample: Sample) -> Exam:
    """Return the exam of predicting a few tokens of each text, each from the tokens before it.

    Raises:
        DataError: no text has a token.
    """
    read = model.tokenize(sample.texts, truncate=True)
    read = [read[place] for place in different(read, sample)]
    begun = [beginnings(text, model.manifest.special_tokens.ids) for text in read]
    asked = [one for of_text in begun for one in of_text]
    if not asked:
        raise nothing_to_ask(f"{len(read)} texts without a token, such as {sample.texts[0][:60]!r}")
    text_A = np.repeat(np.arange(len(begun)), [len(of_text) for of_text in begun])
    true_A = np.array([token_id for _, token_id in asked], dtype=np.int64)
    asked_T = [np.array([number]) for number in range(len(asked))]
    return tokens_exam([text for text, _ in asked], text_A, true_A, "next-token accuracy", asked_T)
