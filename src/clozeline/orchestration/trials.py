"""Trials of a release: the candidate's package against the champion's, on the items that the stages made.

Answers to labelled items are counted item by item. A language model is tried on whole texts: every known token is a
target once, and either it is hidden or the model reads the text before it. Unknown tokens are charged as in
evaluation/measuring.py: ln 256 nats for each of their bytes.

The fp32 graphs answer, because their figures do not depend on the processor; INT8 has gates of its own against fp32.

Shapes: T items or texts, L tokens of a window, M targets, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from clozeline.exporting.exams import Counts, Sample, exam_of, read_sample
from clozeline.inference.language import LanguageModel, OpenEncoder
from clozeline.inference.open_model import OpenModel
from clozeline.inference.package import kind_of, load
from clozeline.inference.tokenization import TokenizedText, Window
from clozeline.orchestration.import_items import are_built_in
from clozeline.params import pretraining, project
from clozeline.records import evaluation, package_metrics, record
from clozeline.records.finetune import scored_items, statistics
from clozeline.records.package import read_manifest
from clozeline.registry import models, trained
from clozeline.system import errors, files, machine
from clozeline.system.files import sha256_of
from clozeline.system.workspace import Workspace, tracking_uri
from clozeline.tokenizing.packing import keep_known

_ACCURACY = "accuracy"
# Passes over a text; a pass hides every seventh token, about the share that BERT hides in training.
NUM_FOLDS = 7
_NUM_SAMPLES = 2_000
_SEED = 0
# Copy of those validation texts that were in the champion's snapshot too.
_OLD_TEXT = "work/trial/old_validation.parquet"


def counts_on(model: OpenModel, sample: Sample) -> tuple[str, Counts]:
    """Return the metric of the exam for this kind of model, and its counts by item.

    A label that the model does not know counts as missed, so that an older model with fewer labels is asked the same.

    Raises:
        DataError: no item has a token.
    """
    exam = exam_of(model, sample)
    answers = exam.answers(model, model.batches(exam.texts))
    counts = exam.counts(answers, answers)
    if exam.metric == _ACCURACY:
        counts = Counts(counts.part_T, np.ones(len(counts.part_T), dtype=np.int64))
    return exam.metric, counts


@dataclass(frozen=True)
class TextLosses:
    """Loss by text."""

    nats_T: npt.NDArray[np.float64]  # loss of the targets, and the charge for unknown tokens
    bytes_T: npt.NDArray[np.int64]
    num_tokens: int  # number of tokens, without special ones
    num_targets: int


def losses_of(model: LanguageModel, texts: Sequence[str], *, longest: int) -> TextLosses:
    """Return the losses of the graph that `model` has open. A text is read in rows of at most `longest` tokens."""
    windows = model.tokenizer.windows(texts, longest=min(longest, model.manifest.max_length), overlap=0)
    bytes_T = np.array([len(text.encode()) for text in texts], dtype=np.int64)
    nats_T, unknown_T = np.zeros(len(texts)), np.zeros(len(texts), dtype=np.int64)
    num_tokens = num_targets = 0
    for window in windows:
        unknown_T[window.number] += model.count_unknown(window.read)
        num_tokens += len(_content(model, window.read))
    asked_of = _folds if isinstance(model, OpenEncoder) else _beginnings
    asked = [(window.number, text, true_M) for window in windows for text, true_M in asked_of(model, window)]
    for batch, logits_MV in model.run([text for _, text, _ in asked], "logits"):
        for position, of_text in zip(batch.positions, model.split(batch, "logits", logits_MV), strict=True):
            number, _, true_M = asked[position]
            rows_MV, is_target_M = np.atleast_2d(of_text), true_M >= 0
            nats_T[number] += _nats(rows_MV[is_target_M], true_M[is_target_M])
            num_targets += int(is_target_M.sum())
    bytes_per_token = bytes_T.sum() / max(num_tokens, 1)
    nats_T += evaluation.NATS_PER_UNKNOWN_BYTE * bytes_per_token * unknown_T
    return TextLosses(nats_T, bytes_T, num_tokens, num_targets)


def _folds(model: LanguageModel, window: Window) -> Iterator[tuple[TokenizedText, npt.NDArray[np.int64]]]:
    """Yield a window once for each fold, with the tokens of the fold hidden, and the true id at each mask.

    The id is -1 at a mask that is part of the text.
    """
    mask_id, ids_L = model.manifest.special_tokens.mask_id, window.read.ids_L
    assert mask_id is not None, "a model that fills masks has a mask token"
    targets = _targets(model, window.read)
    for fold in range(NUM_FOLDS):
        places = targets[targets % NUM_FOLDS == fold]
        if len(places):
            shown_L = ids_L.copy()
            shown_L[places] = mask_id
            true_L = np.full(len(ids_L), -1, dtype=np.int64)
            true_L[places] = ids_L[places]
            yield replace(window.read, ids_L=shown_L), true_L[shown_L == mask_id]


def _beginnings(model: LanguageModel, window: Window) -> Iterator[tuple[TokenizedText, npt.NDArray[np.int64]]]:
    """Yield the part of a window before each target, with the id of the target."""
    ids_L = window.read.ids_L
    for place in _targets(model, window.read):
        if place:
            yield TokenizedText(ids_L[:place], ()), ids_L[place : place + 1]


def _targets(model: LanguageModel, text: TokenizedText) -> npt.NDArray[np.int64]:
    """Return the positions of the known text tokens."""
    content, unknown_id = _content(model, text), model.tokenizer.unknown_id
    return content if unknown_id is None else content[text.ids_L[content] != unknown_id]


def _content(model: LanguageModel, text: TokenizedText) -> npt.NDArray[np.int64]:
    """Return the positions of the text tokens: all but special and unknown ones."""
    special = [id_ for id_ in model.manifest.special_tokens.ids if id_ != model.tokenizer.unknown_id]
    return np.flatnonzero(~np.isin(text.ids_L, special))


def _nats(logits_MV: npt.NDArray[np.float32], true_M: npt.NDArray[np.int64]) -> float:
    """Return the summed cross-entropy of the true ids."""
    if not len(true_M):
        return 0.0
    largest_M1 = logits_MV.max(axis=1, keepdims=True)
    log_sum_M = np.log(np.exp(logits_MV - largest_M1).sum(axis=1, dtype=np.float64)) + largest_M1[:, 0]
    return float((log_sum_M - logits_MV[np.arange(len(true_M)), true_M]).sum())


class IncomparableError(errors.DataError):
    """No item, or no figure, is common to both packages."""


@dataclass(frozen=True)
class TrialItems:
    """Items of a trial."""

    root: Path  # folder of the project
    validation_text: str  # Parquet file with the texts for language models, relative to `root`
    test_items: str  # file with the candidate's test items, relative to `root`
    most: int  # largest number of items; of more, those with the lowest hashes
    longest: int  # tokens of a row in which encoders read the validation text


def try_both(candidate: Path, champion: Path, items: TrialItems) -> record.PairedFigures:
    """Return the figures of the packages in the folders `candidate` and `champion` on the same items.

    Language models predict every token of the validation text. Other models answer the candidate's test items.

    Raises:
        IncomparableError: they are different kinds of model, or there are no items with an answer that both can give.
        ArtifactError: a package is damaged.
        DataError: the text cannot be read.
    """
    kinds = [read_manifest(folder).task for folder in (candidate, champion)]
    if kinds[0] != kinds[1]:
        raise incomparable(f"the candidate does {kinds[0]}, the champion {kinds[1]}")
    opened = [load(folder, precision="fp32", num_threads=machine.available_cores()) for folder in (candidate, champion)]
    if all(isinstance(model, LanguageModel) for model in opened):
        return _on_text(opened, items)
    return _on_test_items(opened, items)


def incomparable(given: str) -> IncomparableError:
    """Return the error for two packages that have no figure in common."""
    return IncomparableError(
        f"candidate and champion cannot be measured on the same items: {given}",
        do="look at both, then decide: `clozeline release --accept` makes the candidate the champion",
    )


def _on_text(opened: Sequence[OpenModel], items: TrialItems) -> record.PairedFigures:
    path = items.root / items.validation_text
    if not path.is_file():
        raise incomparable(f"no {items.validation_text or 'validation text: `clozeline run` makes it of your text'}")
    texts = read_sample(path, items.most).texts
    ours, theirs = (losses_of(one, texts, longest=items.longest) for one in opened if isinstance(one, LanguageModel))
    if not ours.num_targets or not theirs.num_targets:
        raise incomparable("a text without a token that both models know")
    counts = [Counts(losses.nats_T, losses.bytes_T) for losses in (ours, theirs)]
    return _paired(
        record.NATS_PER_BYTE, counts, items.validation_text, path, float(theirs.bytes_T.sum()) / theirs.num_tokens
    )


def _on_test_items(opened: Sequence[OpenModel], items: TrialItems) -> record.PairedFigures:
    place = items.test_items
    held_out = scored_items.HeldOut.lines(items.root / place)[: items.most]
    if not held_out:
        raise incomparable(f"no {place}")
    unknown = f"{place} has no right answer that both know; `clozeline import --labelled FILE` takes some"
    if not any(item.right or item.entities or item.score is not None for item in held_out):
        raise incomparable(unknown)
    sample = Sample(texts=(), labels=(), held_out=held_out, keeps_copies=True)
    (metric, ours), (other_metric, theirs) = (counts_on(model, sample) for model in opened)
    if metric == other_metric and metric.endswith("agreement"):
        raise incomparable(unknown)
    if metric != other_metric or len(ours.part_T) != len(theirs.part_T):
        raise incomparable(
            f"{metric} of {len(ours.part_T)} items, the champion's {other_metric} of {len(theirs.part_T)}"
        )
    return _paired(metric, [ours, theirs], place, items.root / place)


def _paired(
    metric: str, counts: Sequence[Counts], place: str, path: Path, bytes_per_token: float | None = None
) -> record.PairedFigures:
    part_D2 = np.stack([one.part_T for one in counts], axis=1).astype(np.float64)
    whole_D2 = np.stack([one.whole_T for one in counts], axis=1).astype(np.float64)
    low, high = statistics.difference_interval(part_D2, whole_D2, seed=_SEED, num_samples=_NUM_SAMPLES)
    return record.PairedFigures(
        metric=metric,
        candidate=counts[0].value,
        champion=counts[1].value,
        low=low,
        high=high,
        num_items=len(part_D2),
        items=place,
        items_sha256=sha256_of(path),
        champion_bytes_per_token=bytes_per_token,
    )


@dataclass(frozen=True)
class Tried:
    """Result of a trial."""

    figures: record.PairedFigures | None = None
    why_not: str = ""  # why there are no figures, although there is a champion


@dataclass(frozen=True)
class PackageTrials:
    """Trials of one package of the workspace."""

    workspace: Workspace
    params: project.Params
    package: str
    accept_held: bool = False  # whether a person has approved versions that are held

    @property
    def folder(self) -> Path:
        return self.workspace.root / "dist" / self.package

    @property
    def metric_paths(self) -> package_metrics.MetricPaths:
        return package_metrics.MetricPaths.of(self.package, self.params.packages[self.package])

    @cached_property
    def figures(self) -> package_metrics.PackageMetrics:
        """What the stages measured of the package."""
        return package_metrics.PackageMetrics.read(self.workspace.root / "metrics", self.metric_paths)

    def against(self, champion: models.Registered) -> Tried:
        """Measure the package and `champion` on the same items."""
        return self._tried(champion, self._items)

    def on_old_text(self, champion: models.Registered) -> Tried:
        """Measure both on the validation texts that were held out for `champion` too; only if training continues."""
        if self.params.pretrain.start != pretraining.FROM_CHAMPION or self.package != self.params.encoder_package:
            return Tried()
        return self._tried(champion, lambda: self._old_items(champion))

    def _tried(self, champion: models.Registered, items: Callable[[], TrialItems]) -> Tried:
        try:
            theirs = models.fetch(f"models:/{champion.name}/{champion.version}", self.workspace).folder
            return Tried(try_both(self.folder, theirs, items()))
        except (IncomparableError, errors.ArtifactError) as error:
            return Tried(why_not=error.cause)

    def _old_items(self, champion: models.Registered) -> TrialItems:
        """Return the texts of the validation split that were in the champion's: both models were never trained on them.

        Raises:
            ArtifactError: the keys of the champion's texts are missing.
            IncomparableError: no text is in both.
        """
        items, root = self._items(), self.workspace.root
        keys = trained.document_keys_of(champion, "validation", tracking_uri(self.workspace))
        with files.replacing_file(root / _OLD_TEXT) as beside:
            num_texts = keep_known(root / items.validation_text, keys, beside)
        if not num_texts:
            raise incomparable(f"no text of {items.validation_text} was in the validation text of {champion}")
        return replace(items, validation_text=_OLD_TEXT)

    def _test_items(self) -> str:
        if imported := self.params.imports.get(self.package):
            if not kind_of(imported.task).is_language_model:
                items = scored_items.HeldOut.lines(self.workspace.root / imported.items)
                if are_built_in(items, imported.task, reads_pairs=imported.reads_pairs):
                    raise incomparable(
                        f"{imported.items} holds the built-in items, which cannot tell the better model;"
                        " `clozeline import --labelled FILE` takes yours"
                    )
            return imported.items
        return f"models/{self.params.export.models[self.package]}/{scored_items.TEST_FILE}"

    def _items(self) -> TrialItems:
        root = self.workspace.root
        evaluate = record.Lock.read(root / "dvc.lock").stages.get("evaluate")
        return TrialItems(
            root=root,
            validation_text=evaluate.argument("validation_text") if evaluate else "",
            test_items=self._test_items(),
            most=self.params.release.max_trial_items,
            longest=self.params.evaluate.max_length,
        )
