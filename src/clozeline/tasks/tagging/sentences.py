"""Tagging: the tags of the words of a sentence mark the type and extent of its entities.

An entity is right if its type and both ends are right. The baselines are each word's usual tag, and no entities.

The first token of a word carries its tag (Devlin et al. 2018, section 5.3). A sentence longer than a row continues in
the next row, split between two words, so that every word gets a tag.

Shapes: S sentences, E entity types, R rows, B rows of a batch, L longest row, C tags, W words of a row.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from clozeline.params.tasks import TaggingParams
from clozeline.records.finetune import scored_items, task_metrics
from clozeline.tasks import formats, heads, probe, report, task
from clozeline.tasks.probe import Features
from clozeline.tasks.rows import EncodedBatch, Ids, TextRows
from clozeline.tasks.tagging.data import OUTSIDE, Sentence, Sentences, select, type_of
from clozeline.tokenizing.tokenizer.folder import OpenTokenizer, is_byte_level

Tags = Sequence[Sequence[str]]
Counts = npt.NDArray[np.int64]
# Target that cross entropy ignores.
NO_TARGET = -100
_FRAME_TOKENS = 2
Found = Sequence[tuple[set[tuple[str, int, int]], set[tuple[str, int, int]]]]


@dataclass(frozen=True)
class EntityScores:
    """Figures of predicted tags; F1 is over all entities (micro), as conlleval and seqeval print it.

    `counts_S3` are the entities of each sentence: found rightly, found, actual.
    """

    f1: float
    precision: float
    recall: float
    word_accuracy: float
    num_entities: int
    per_type: dict[str, dict[str, float]]
    counts_S3: Counts = field(compare=False)

    def f1_on(self, places_S: Counts) -> float:
        """Return F1 on these sentences."""
        return _ratios(self.counts_S3[places_S].sum(axis=0))[2]


def score(actual: Tags, predicted: Tags) -> EntityScores:
    """Compare predicted with actual tags of the same words."""
    found = [(spans_of(tags), spans_of(guess)) for tags, guess in zip(actual, predicted, strict=True)]
    types = sorted({name for both in found for entities in both for name, _, _ in entities})
    counts_S3 = np.array([[len(a & p), len(p), len(a)] for a, p in found], dtype=np.int64)
    precision, recall, f1 = _ratios(counts_S3.sum(axis=0))
    words = [pair for tags, guess in zip(actual, predicted, strict=True) for pair in zip(tags, guess, strict=True)]
    return EntityScores(
        precision=precision,
        recall=recall,
        f1=f1,
        word_accuracy=float(np.mean([tag == guess for tag, guess in words])),
        num_entities=int(counts_S3[:, 2].sum()),
        per_type={name: _of_type(name, found) for name in types},
        counts_S3=counts_S3,
    )


def entities_in(words: Sequence[str], tags: Sequence[str]) -> list[tuple[str, str]]:
    """Return (words, type) of each entity, in order."""
    spans = sorted(spans_of(tags), key=lambda span: span[1])
    return [(" ".join(words[first : last + 1]), name) for name, first, last in spans]


def spans_of(tags: Sequence[str]) -> set[tuple[str, int, int]]:
    """Return (type, first word, last word) of each entity; seqeval and the CoNLL-2003 scorer read invalid tag sequences
    the same way.
    """
    from seqeval.metrics.sequence_labeling import get_entities  # imports scikit-learn

    return set(get_entities(list(tags))) if any(tag != OUTSIDE for tag in tags) else set()


def _of_type(name: str, found: Found) -> dict[str, float]:
    """Return the figures of an entity type. A ratio with denominator 0 is 0, as in seqeval with `zero_division=0`."""
    counts_3 = np.zeros(3, dtype=np.int64)
    for actual, predicted in found:
        of_type = {span for span in actual if span[0] == name}, {span for span in predicted if span[0] == name}
        counts_3 += [len(of_type[0] & of_type[1]), len(of_type[1]), len(of_type[0])]
    precision, recall, f1 = _ratios(counts_3)
    return {"precision": precision, "recall": recall, "f1": f1, "num_entities": int(counts_3[2])}


def _ratios(counts_3: Counts) -> tuple[float, float, float]:
    """Return precision, recall and F1 from the counts (right, predicted, actual)."""
    right, predicted, actual = counts_3.tolist()
    return (
        right / predicted if predicted else 0.0,
        right / actual if actual else 0.0,
        2 * right / (predicted + actual) if predicted + actual else 0.0,
    )


def usual_tags(train: Iterable[Sentence], test: Iterable[Sentence]) -> list[list[str]]:
    """Return for each word of `test` its most frequent tag in `train`; O for an unknown word.

    Ties go to the first tag by name.
    """
    seen: dict[str, Counter[str]] = defaultdict(Counter)
    for sentence in train:
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            seen[word][tag] += 1
    usual = {word: min(tags, key=lambda tag: (-tags[tag], tag)) for word, tags in seen.items()}
    return [[usual.get(word, OUTSIDE) for word in sentence.words] for sentence in test]


@dataclass(frozen=True)
class Cut:
    """A row without special tokens: its tokens, the positions where words begin, and the indices of these words."""

    ids: Ids
    first_W: Ids
    word_W: Ids


@dataclass(frozen=True)
class TaggedRows:
    """One split of the task, as sentences and as rows."""

    sentences: Sequence[Sentence]
    rows: TextRows
    sentence_R: Ids
    first_RW: tuple[Ids, ...]  # position of the first token of each word in the row
    word_RW: tuple[Ids, ...]  # index of the word in its sentence
    target_RW: tuple[Ids, ...]  # index of its tag in `tags`; NO_TARGET for a tag that training lacks
    num_split: int  # sentences in more than one row
    num_unread_words: int  # words without a token, such as a lone control character; their tag is O

    @classmethod
    def encode(cls, sentences: Sequence[Sentence], tags: Sequence[str], opened: OpenTokenizer, max_length: int) -> Self:
        place = {tag: place for place, tag in enumerate(tags)}
        cuts_S = [_cut(tokens_W, max_length - _FRAME_TOKENS) for tokens_W in _tokens_of_words(sentences, opened)]
        ids = opened.special_ids
        flat = [(number, cut) for number, cuts in enumerate(cuts_S) for cut in cuts]
        return cls(
            sentences=sentences,
            rows=TextRows(tuple(np.concatenate([[ids.cls], cut.ids, [ids.sep]]) for _, cut in flat), ids.pad, 0),
            sentence_R=np.array([number for number, _ in flat], dtype=np.int64),
            first_RW=tuple(cut.first_W + 1 for _, cut in flat),
            word_RW=tuple(cut.word_W for _, cut in flat),
            target_RW=tuple(
                np.array([place.get(sentences[number].tags[word], NO_TARGET) for word in cut.word_W], dtype=np.int64)
                for number, cut in flat
            ),
            num_split=sum(len(cuts) > 1 for cuts in cuts_S),
            num_unread_words=sum(len(it.words) for it in sentences) - sum(len(cut.word_W) for _, cut in flat),
        )

    def batch(self, rows_B: Ids) -> EncodedBatch:
        """Return rows with their targets [B, L]."""
        target_BL = np.full((len(rows_B), self.rows.length_T[rows_B].max()), NO_TARGET, dtype=np.int64)
        for number, row in enumerate(rows_B.tolist()):
            target_BL[number, self.first_RW[row]] = self.target_RW[row]
        return self.rows.encoded(rows_B, targets_B=torch.from_numpy(target_BL))

    def num_targets(self, rows_B: Ids) -> int:
        return sum(int((self.target_RW[row] != NO_TARGET).sum()) for row in rows_B.tolist())

    def tags_of(self, said_RW: Mapping[int, Ids], tags: Sequence[str], outside: str) -> list[list[str]]:
        """Return the tag of each word of each sentence. `said_RW` maps a row to the index in `tags` of each word."""
        found = [[outside] * len(sentence.words) for sentence in self.sentences]
        for row, said_W in said_RW.items():
            of_sentence = found[int(self.sentence_R[row])]
            for word, place in zip(self.word_RW[row].tolist(), said_W.tolist(), strict=True):
                of_sentence[word] = tags[place]
        return found


def _tokens_of_words(sentences: Sequence[Sentence], opened: OpenTokenizer) -> list[list[Ids]]:
    """Return the tokens of each word of each sentence."""
    space = " " if is_byte_level(opened.tokenizer) else ""
    opened.tokenizer.no_truncation()
    spelled = [[f"{space}{word}" if place else word for place, word in enumerate(it.words)] for it in sentences]
    encodings = opened.tokenizer.encode_batch(spelled, is_pretokenized=True, add_special_tokens=False)
    all_words = []
    for sentence, encoding in zip(sentences, encodings, strict=True):
        ids = np.array(encoding.ids, dtype=np.int64)
        word_ids = np.array(encoding.word_ids, dtype=np.int64)
        bounds = np.searchsorted(word_ids, np.arange(len(sentence.words) + 1))
        all_words.append([ids[start:stop] for start, stop in itertools.pairwise(bounds)])
    return all_words


def _cut(tokens_W: Sequence[Ids], longest: int) -> list[Cut]:
    """Fill each row with as many words as fit; a word longer than a row is cut."""
    cuts: list[Cut] = []
    pieces: list[Ids] = []
    first: list[int] = []
    words: list[int] = []
    length = 0

    def close() -> None:
        if pieces:
            cuts.append(Cut(np.concatenate(pieces), np.array(first, dtype=np.int64), np.array(words, dtype=np.int64)))

    for word, tokens in enumerate(tokens_W):
        if len(tokens) == 0:
            continue
        kept = tokens[:longest]
        if length + len(kept) > longest:
            close()
            pieces, first, words, length = [], [], [], 0
        pieces.append(kept)
        first.append(length)
        words.append(word)
        length += len(kept)
    close()
    return cuts


class Tagging(task.Task[Sentence]):
    """Tagging with a head on the first token of each word."""

    splits: Sentences
    fitted = probe.NAME
    # Tags of the test split by the fitted head on the frozen encoder; None if it was not fitted.
    _by_probe: Tags | None = None

    def __init__(self, inputs: task.InputsOf[TaggingParams]) -> None:
        params = inputs.params
        splits = select(formats.task_records(params, inputs.data), params)
        self._tags = splits.tags
        super().__init__(
            inputs,
            splits,
            heads.build(
                inputs.encoder, "token-classification", inputs.seed, heads.named(self._tags), family=inputs.family
            ),
        )
        self._train, self._validation, self._test = (
            TaggedRows.encode(part, self._tags, self.opened, params.max_length) for part in splits.parts.values()
        )
        self.feed(self._train.rows)

    def batch(self, rows_B: Ids, epoch: int) -> EncodedBatch:
        return self._train.batch(rows_B)

    def num_targets(self, rows_B: Ids) -> int:
        return self._train.num_targets(rows_B)

    def loss_sum(self, inputs: EncodedBatch) -> Tensor:
        logits_BLC = heads.logits(self.model, inputs)
        return functional.cross_entropy(
            logits_BLC.flatten(0, 1), inputs.targets_B.flatten(), ignore_index=NO_TARGET, reduction="sum"
        )

    def fit_head(self) -> None:
        """Fit the output layer by logistic regression on the frozen encoder's vectors of words; keep its answers for
        the test split, as a baseline.
        """
        feature_WF, target_W = self._features(self._train)
        fitted_W = probe.places_to_fit(len(target_W))
        train = feature_WF[fitted_W], target_W[fitted_W]
        probe.fitted_output(heads.output_layer(self.model), train, self._features(self._validation))
        self._by_probe = self._predict(self._test)

    def validation_score(self) -> float:
        """Return entity F1."""
        return score([it.tags for it in self.splits.validation], self._predict(self._validation)).f1

    def test(self) -> report.TaskReport:
        splits, sentences = self.splits, self.splits.test
        actual, predicted = [it.tags for it in sentences], self._predict(self._test)
        ours, usual = score(actual, predicted), score(actual, usual_tags(splits.train, sentences))
        none = score(actual, [[OUTSIDE] * len(tags) for tags in actual])
        by_probe = None if self._by_probe is None else score(actual, self._by_probe)
        figure = report.HeadlineFigure(
            "f1", ours.f1_on, ("each word's usual tag", usual.f1_on), ("no entities", none.f1_on)
        )
        top = figure.on(range(len(sentences)), {probe.NAME: by_probe.f1_on} if by_probe else {})
        figures = {
            "f1": ours.f1,
            "f1_low": top.low,
            "f1_high": top.high,
            "precision": ours.precision,
            "recall": ours.recall,
            "word_accuracy": ours.word_accuracy,
            "baseline_usual_tag_f1": usual.f1,
            "baseline_probe_f1": by_probe.f1 if by_probe else None,
            "num_types": len(self._tags) // 2,
            "num_entities": ours.num_entities,
            **splits.sizes,
            # Sentences longer than `max_length`, which are read in several rows.
            "num_split_train": self._train.num_split,
            "num_split_test": self._test.num_split,
            "num_unread_words_test": self._test.num_unread_words,
            # Validation and test entities of types that training lacks.
            "num_entities_of_unknown_types": sum(splits.types_not_trained.values()),
            "num_test_seen_in_pretraining": self.num_seen(sentence.identity for sentence in sentences),
        }
        said = [map(_spelled, [it.words for it in sentences], tags) for tags in (actual, predicted)]
        items = [
            task_metrics.ShownItem({"text": " ".join(it.words)}, right, found, right == found)
            for it, right, found in zip(sentences, *said, strict=True)
        ]
        return self.reported(
            figures,
            items,
            headline=top,
            confusion=_confusion(actual, predicted),
            per_class=ours.per_type,
            test_texts=[" ".join(sentence.words) for sentence in sentences],
            train_texts=[" ".join(sentence.words) for sentence in splits.train],
            headline_on=figure.on,
        )

    def held_out(self, items: Sequence[Sentence], most: int) -> list[scored_items.HeldOut]:
        return [_held_out(sentence) for sentence in items]

    def _predict(self, part: TaggedRows) -> Tags:
        said_RW: dict[int, Ids] = {}
        batches = task.measuring_batches(part.rows.length_T, self.inputs)
        for rows_B, logits_BLC in task.answers(self.model, batches, part.rows.encoded, heads.logits):
            said_BL = logits_BLC.argmax(dim=2).cpu().numpy()
            said_RW |= {row: said_BL[n, part.first_RW[row]] for n, row in enumerate(rows_B.tolist())}
        return part.tags_of(said_RW, self._tags, OUTSIDE)

    def _features(self, part: TaggedRows) -> tuple[Features, Ids]:
        """Return what the output layer reads at each word whose tag training has, and the tag."""
        feature_W, target_W = [], []
        batches = task.measuring_batches(part.rows.length_T, self.inputs)
        for rows_B, feature_BLF in task.answers(self.model, batches, part.rows.encoded, heads.features):
            is_read_BL = part.batch(rows_B).targets_B != NO_TARGET
            feature_W.append(feature_BLF[is_read_BL.to(feature_BLF.device)].float().cpu().numpy())
            target_W.append(part.batch(rows_B).targets_B[is_read_BL].numpy())
        return np.concatenate(feature_W), np.concatenate(target_W)


def _held_out(sentence: Sentence) -> scored_items.HeldOut:
    starts = list(itertools.accumulate((len(word) + 1 for word in sentence.words), initial=0))
    entities = [
        scored_items.EntitySpan(start=starts[first], end=starts[last] + len(sentence.words[last]), type=name)
        for name, first, last in sorted(spans_of(sentence.tags), key=lambda span: span[1])
    ]
    return scored_items.HeldOut(text=" ".join(sentence.words), entities=tuple(entities))


def _confusion(actual: Sequence[Sequence[str]], predicted: Tags) -> list[tuple[str, str]]:
    """Return (actual, predicted) entity type of each word that is in an entity on either side."""
    pairs = [
        (type_of(tag), type_of(found))
        for tags, predicted_tags in zip(actual, predicted, strict=True)
        for tag, found in zip(tags, predicted_tags, strict=True)
    ]
    return [pair for pair in pairs if pair != (OUTSIDE, OUTSIDE)]


def _spelled(words: Sequence[str], tags: Sequence[str]) -> str:
    return "; ".join(f"{entity} ({name})" for entity, name in entities_in(words, tags)) or "no entities"
