"""Tagging: the tags of the words of a sentence mark the type and extent of its entities.

An entity is right if its type and both ends are right. The baselines are each word's usual tag, and no entities.

Shapes: S sentences, E entity types, B rows of a batch, L longest row, C tags, W words of a row.
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.nn import functional

from clozeline.params.tasks import TaggingParams
from clozeline.records.finetune.scored_items import EntitySpan, HeldOut, write_held_out, write_test_items
from clozeline.records.finetune.statistics import bootstrap_interval, paired_interval
from clozeline.records.finetune.task_metrics import Beside, Headline, ShownItem
from clozeline.tasks import heads
from clozeline.tasks.formats import task_records
from clozeline.tasks.probe import NAME as PROBE
from clozeline.tasks.probe import Features, best_probe, log_loss, places_to_fit
from clozeline.tasks.rows import Ids, TargetedBatch, batches_from
from clozeline.tasks.selection import count_seen
from clozeline.tasks.tagging.data import OUTSIDE, Sentence, SentenceCount, select, type_of
from clozeline.tasks.tagging.tagged_rows import NO_TARGET, TaggedRows
from clozeline.tasks.task import (
    InputsOf,
    TaskReport,
    answers,
    measuring_batches,
    num_batches,
    only_answer,
    opened_for,
    shown,
    warn_of_unknown_tokens,
)
from clozeline.training.state import Batch

Tags = Sequence[Sequence[str]]
Counts = npt.NDArray[np.int64]
Found = Sequence[tuple[set[tuple[str, int, int]], set[tuple[str, int, int]]]]


@dataclass(frozen=True)
class TypeScore:
    """Metrics of one entity type. A ratio with denominator 0 is 0, as in seqeval with `zero_division=0`."""

    precision: float
    recall: float
    f1: float
    num_entities: int


@dataclass(frozen=True)
class EntityScores:
    precision: float
    recall: float
    f1: float
    """F1 over all entities (micro), as conlleval and seqeval print it."""
    f1_low: float
    f1_high: float
    word_accuracy: float
    num_entities: int
    per_type: dict[str, TypeScore]
    counts_S3: Counts = field(compare=False)
    """Entities of each sentence: found rightly, found, actual."""

    def f1_on(self, places_S: Counts) -> float:
        """Return F1 on these sentences."""
        return _ratios(self.counts_S3[places_S].sum(axis=0))[2]

    def lead_over(self, other: "EntityScores") -> tuple[float, float]:
        """Return the 95 % interval of the difference in F1 to `other`, paired by sentence."""
        return paired_interval(self.f1_on, other.f1_on, len(self.counts_S3))


def score(actual: Tags, predicted: Tags) -> EntityScores:
    """Compare predicted with actual tags of the same words."""
    found = [(spans_of(tags), spans_of(guess)) for tags, guess in zip(actual, predicted, strict=True)]
    types = sorted({name for both in found for entities in both for name, _, _ in entities})
    counts_S3 = np.array([[len(a & p), len(p), len(a)] for a, p in found], dtype=np.int64)
    low, high = bootstrap_interval(lambda places_S: _ratios(counts_S3[places_S].sum(axis=0))[2], len(found))
    precision, recall, f1 = _ratios(counts_S3.sum(axis=0))
    words = [pair for tags, guess in zip(actual, predicted, strict=True) for pair in zip(tags, guess, strict=True)]
    return EntityScores(
        precision=precision,
        recall=recall,
        f1=f1,
        f1_low=low,
        f1_high=high,
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


def _of_type(name: str, found: Found) -> TypeScore:
    counts_3 = np.zeros(3, dtype=np.int64)
    for actual, predicted in found:
        of_type = {span for span in actual if span[0] == name}, {span for span in predicted if span[0] == name}
        counts_3 += [len(of_type[0] & of_type[1]), len(of_type[1]), len(of_type[0])]
    precision, recall, f1 = _ratios(counts_3)
    return TypeScore(precision, recall, f1, int(counts_3[2]))


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


def nothing(test: Iterable[Sentence]) -> Sequence[Sequence[str]]:
    """Return tags without any entity."""
    return [[OUTSIDE] * len(sentence.words) for sentence in test]


@dataclass(frozen=True)
class TagFigures:
    """Figures of the test split in metrics/finetune/<task>.json; shares are 0-1."""

    f1: float
    f1_low: float
    f1_high: float
    precision: float
    recall: float
    word_accuracy: float
    baseline_usual_tag_f1: float
    baseline_probe_f1: float | None
    """F1 of the head that was fitted on the frozen encoder."""
    num_types: int
    num_entities: int
    num_train: int
    num_validation: int
    num_test: int
    num_split_train: int
    num_split_test: int
    """Sentences longer than `max_length`, which are read in several rows."""
    num_unread_words_test: int
    num_entities_of_unknown_types: int
    """Validation and test entities of types that training lacks."""
    num_test_seen_in_pretraining: int
    records: SentenceCount


class Tagging:
    """Tagging with a head on the first token of each word."""

    fitted = PROBE
    _by_probe: Tags | None = None
    """Tags of the test split by the fitted head on the frozen encoder; None if it was not fitted."""

    def __init__(self, inputs: InputsOf[TaggingParams]) -> None:
        params = inputs.params
        self._inputs = inputs
        self._sentences = select(task_records(params, inputs.data), params)
        self._tags = self._sentences.tags
        self.model = heads.build_tagger(inputs.encoder, self._tags, inputs.seed, inputs.family)
        opened = opened_for(self.model, inputs)
        self._train, self._validation, self._test = (
            TaggedRows.encode(part, self._tags, opened, params.max_length)
            for part in (self._sentences.train, self._sentences.validation, self._sentences.test)
        )
        self.trained_on = (self._train.rows,)
        warn_of_unknown_tokens(opened, *self.trained_on)
        self.batches_per_epoch = num_batches(len(self._train.rows), inputs)

    def batches_from(self, epoch: int, index: int) -> Iterator[Batch[TargetedBatch]]:
        length_R, batch_size = self._train.rows.length_T, self._inputs.params.batch_size
        for turn in batches_from(length_R, batch_size, self._inputs.seed, epoch, index):
            num_tokens, num_targets = int(length_R[turn.rows_B].sum()), self._train.num_targets(turn.rows_B)
            yield Batch(turn.epoch, turn.batch, self._train.batch(turn.rows_B), num_tokens, num_targets)

    def loss_sum(self, inputs: TargetedBatch) -> Tensor:
        logits_BLC = heads.tag_logits(self.model, inputs.encoded)
        return functional.cross_entropy(
            logits_BLC.flatten(0, 1), inputs.targets_B.flatten(), ignore_index=NO_TARGET, reduction="sum"
        )

    def fit_head(self) -> None:
        """Fit the output layer by logistic regression on the frozen encoder's vectors of words; keep its answers for
        the test split, as a baseline. The regularization with the lowest loss on the validation split is chosen.
        """
        feature_WF, target_W = self._features(self._train)
        validation_WF, actual_W = self._features(self._validation)
        fitted_W, output = places_to_fit(len(target_W)), heads.output_layer(self.model)
        probe = best_probe(
            feature_WF[fitted_W],
            target_W[fitted_W],
            lambda probe: -log_loss(probe.logits(validation_WF), actual_W),
            num_classes=len(self._tags),
            has_bias=output.bias is not None,
        )
        probe.write_to(output)
        self._by_probe = self._predict(self._test)

    def validation_score(self) -> float:
        """Return entity F1."""
        return score([it.tags for it in self._sentences.validation], self._predict(self._validation)).f1

    def test(self) -> TaskReport:
        sentences = self._sentences
        actual, predicted = [it.tags for it in sentences.test], self._predict(self._test)
        by_method = predicted, usual_tags(sentences.train, sentences.test), nothing(sentences.test)
        ours, usual, none = (score(actual, tags) for tags in by_method)
        by_probe = None if self._by_probe is None else score(actual, self._by_probe)
        items = self._shown(predicted)
        return TaskReport(
            headline=_headline(ours, usual, none, by_probe),
            figures=asdict(self._figures(ours, usual, by_probe)),
            confusion=_confusion(actual, predicted),
            per_class={name: asdict(of_type) for name, of_type in ours.per_type.items()},
            examples=shown(items, self._inputs.params.num_examples),
            test_texts=[" ".join(sentence.words) for sentence in sentences.test],
            train_texts=[" ".join(sentence.words) for sentence in sentences.train],
            headline_on=lambda places: _headline(
                *(score([actual[place] for place in places], [tags[place] for place in places]) for tags in by_method)
            ),
            first_places=sentences.count.first_places,
            only_answer=only_answer([item.predicted for item in items], [item.actual for item in items]),
        )

    def save(self, out: Path) -> None:
        heads.save(self.model, self._inputs.encoder, self._inputs.params.max_length, out)
        write_held_out(out, [_held_out(sentence) for sentence in self._sentences.validation])
        write_test_items(out, [_held_out(sentence) for sentence in self._sentences.test])

    def _figures(self, ours: EntityScores, usual: EntityScores, by_probe: EntityScores | None) -> TagFigures:
        sentences = self._sentences
        identities = (sentence.identity for sentence in sentences.test)
        return TagFigures(
            f1=ours.f1,
            f1_low=ours.f1_low,
            f1_high=ours.f1_high,
            precision=ours.precision,
            recall=ours.recall,
            word_accuracy=ours.word_accuracy,
            baseline_usual_tag_f1=usual.f1,
            baseline_probe_f1=None if by_probe is None else by_probe.f1,
            num_types=len(self._tags) // 2,
            num_entities=ours.num_entities,
            num_train=len(sentences.train),
            num_validation=len(sentences.validation),
            num_test=len(sentences.test),
            num_split_train=self._train.num_split,
            num_split_test=self._test.num_split,
            num_unread_words_test=self._test.num_unread_words,
            num_entities_of_unknown_types=sum(sentences.types_not_trained.values()),
            num_test_seen_in_pretraining=count_seen(identities, self._inputs.pretraining_text),
            records=sentences.count,
        )

    def _predict(self, part: TaggedRows) -> Tags:
        said_RW: dict[int, Ids] = {}
        batches = measuring_batches(part.rows.length_T, self._inputs)
        for rows_B, logits_BLC in answers(self.model, batches, part.rows.encoded, heads.tag_logits):
            said_BL = logits_BLC.argmax(dim=2).cpu().numpy()
            said_RW |= {row: said_BL[n, part.first_RW[row]] for n, row in enumerate(rows_B.tolist())}
        return part.tags_of(said_RW, self._tags, OUTSIDE)

    def _features(self, part: TaggedRows) -> tuple[Features, Ids]:
        """Return what the output layer reads at each word whose tag training has, and the tag."""
        feature_W, target_W = [], []
        batches = measuring_batches(part.rows.length_T, self._inputs)
        for rows_B, feature_BLF in answers(self.model, batches, part.rows.encoded, heads.features):
            is_read_BL = part.batch(rows_B).targets_B != NO_TARGET
            feature_W.append(feature_BLF[is_read_BL.to(feature_BLF.device)].float().cpu().numpy())
            target_W.append(part.batch(rows_B).targets_B[is_read_BL].numpy())
        return np.concatenate(feature_W), np.concatenate(target_W)

    def _shown(self, predicted: Tags) -> list[ShownItem]:
        items = []
        for sentence, predicted_tags in zip(self._sentences.test, predicted, strict=True):
            actual, found = (_spelled(entities_in(sentence.words, tags)) for tags in (sentence.tags, predicted_tags))
            items.append(ShownItem({"text": " ".join(sentence.words)}, actual, found, actual == found))
        return items


def _held_out(sentence: Sentence) -> HeldOut:
    starts = list(itertools.accumulate((len(word) + 1 for word in sentence.words), initial=0))
    entities = [
        EntitySpan(start=starts[first], end=starts[last] + len(sentence.words[last]), type=name)
        for name, first, last in sorted(spans_of(sentence.tags), key=lambda span: span[1])
    ]
    return HeldOut(text=" ".join(sentence.words), entities=tuple(entities))


def _headline(
    ours: EntityScores, usual: EntityScores, none: EntityScores, by_probe: EntityScores | None = None
) -> Headline:
    lead_low, lead_high = ours.lead_over(usual)
    return Headline(
        metric="f1",
        value=ours.f1,
        low=ours.f1_low,
        high=ours.f1_high,
        baseline="each word's usual tag",
        baseline_value=usual.f1,
        trivial="no entities",
        trivial_value=none.f1,
        lead_low=lead_low,
        lead_high=lead_high,
        beside=() if by_probe is None else (Beside(name=PROBE, value=by_probe.f1),),
    )


def _confusion(actual: Sequence[Sequence[str]], predicted: Tags) -> list[tuple[str, str]]:
    """Return (actual, predicted) entity type of each word that is in an entity on either side."""
    pairs = [
        (type_of(tag), type_of(found))
        for tags, predicted_tags in zip(actual, predicted, strict=True)
        for tag, found in zip(tags, predicted_tags, strict=True)
    ]
    return [pair for pair in pairs if pair != (OUTSIDE, OUTSIDE)]


def _spelled(entities: Sequence[tuple[str, str]]) -> str:
    return "; ".join(f"{words} ({name})" for words, name in entities) or "no entities"
