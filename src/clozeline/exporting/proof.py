"""What an INT8 graph has to show before it may answer, measured on real texts.

A answers, T texts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from clozeline.errors import DataError
from clozeline.exporting.answers import Answers, answers, halves, hide, logits
from clozeline.exporting.graph import size_of
from clozeline.exporting.ratios import per_text, ratio, share
from clozeline.exporting.sample import Sample
from clozeline.inference.batching import Batch, padded
from clozeline.inference.embedder import Embedder
from clozeline.inference.encoder import Encoder
from clozeline.inference.evidence import Check, Metric, QuantizationScheme, Rung
from clozeline.inference.manifest import Manifest
from clozeline.inference.open_model import OpenModel
from clozeline.inference.package import open_graph
from clozeline.inference.tokenization import TokenizedText
from clozeline.params import ExportGates

_BATCH_TEXTS = 64
"""Texts that are read alone and among others,"""
_NEIGHBOURS = 8
"""so many of any length together,"""
_ROUNDS = 3
"""in so many groupings."""
_SATURATION_TEXTS = 16
_NO_LABEL = -1


@dataclass(frozen=True)
class Exam:
    """Texts as they are read, and what is right."""

    texts: Sequence[TokenizedText]
    true_A: npt.NDArray[np.int64]
    """The hidden tokens of an encoder; of a classifier the labels, as far as they are known."""
    text_A: npt.NDArray[np.int64]
    """Which text each answer belongs to."""
    metric: Metric

    @classmethod
    def of(cls, model: OpenModel, sample: Sample) -> "Exam":
        """What `model` can be asked about `sample`.

        Raises:
            DataError: nothing, for no text has a token.
        """
        read = model.tokenize(sample.texts, truncate=True)
        if isinstance(model, Embedder) and not isinstance(model, Encoder):
            return cls.of_halves(halves(read, model.manifest.special_tokens.ids))
        if not isinstance(model, Encoder):
            places = {label: place for place, label in enumerate(model.manifest.labels)}
            true_T = np.array([places.get(label or "", _NO_LABEL) for label in sample.labels], dtype=np.int64)
            is_labelled = 2 * int((true_T != _NO_LABEL).sum()) >= len(true_T)
            return cls(read, true_T, np.arange(len(read)), "accuracy" if is_labelled else "label agreement")
        hidden = [hide(text, model) for text in read]
        text_A = np.repeat(np.arange(len(hidden)), [len(text.true_ids_M) for text in hidden])
        if len(text_A) == 0:
            raise DataError(
                "INT8 and fp32 cannot be compared",
                given=f"{len(read)} texts without a token that could be hidden, such as {sample.texts[0][:60]!r}",
                expected="texts that the tokenizer knows words of",
                do="check that tokenizer and validation text belong together",
            )
        true_A = np.concatenate([text.true_ids_M for text in hidden])
        return cls([text.text for text in hidden], true_A, text_A, "masked-LM accuracy")

    @classmethod
    def of_halves(cls, texts: Sequence[TokenizedText]) -> "Exam":
        """Each first half is to find its second half.

        Raises:
            DataError: there is none.
        """
        if not texts:
            raise DataError(
                "INT8 and fp32 cannot be compared",
                given="no text of two tokens or more",
                expected="texts that the tokenizer knows words of",
                do="check that tokenizer and validation text belong together",
            )
        number_A = np.arange(len(texts) // 2)
        return cls(texts, number_A, number_A, "halves found")


class Proof:
    """fp32's answers to a sample of texts, and how any INT8 graph of the same model compares."""

    def __init__(self, fp32: Path, manifest: Manifest, sample: Sample, gates: ExportGates) -> None:
        """Let fp32 answer.

        Args:
            fp32: its graph, beside tokenizer.json.
            manifest: of the package, as far as it is known.
            sample: what both graphs read.
            gates: the limits.
        """
        model = open_graph(fp32, manifest)
        self._manifest, self._gates = manifest, gates
        self._exam = Exam.of(model, sample)
        self._fp32 = answers(model, model.batches(self._exam.texts))

    @property
    def num_answers(self) -> int:
        return len(self._fp32.top1_A)

    def rung(self, graph: Path, scheme: QuantizationScheme) -> Rung:
        """What the INT8 graph in the file `graph`, beside tokenizer.json, shows."""
        model = open_graph(graph, self._manifest)
        int8 = answers(model, model.batches(self._exam.texts))
        cosines_T = _cosines(self._fp32, int8)
        flips_A, batch_cosines = self._by_neighbours(model)
        fp32_metric, int8_metric = self._right(self._fp32), self._right(int8)
        text_A = self._exam.text_A
        rung = Rung(
            scheme=scheme,
            size_bytes=size_of(graph),
            agreement=share(self._fp32.top1_A == int8.top1_A, text_A),
            metric=self._exam.metric,
            fp32_metric=float(fp32_metric[self._asked].mean()),
            int8_metric=float(int8_metric[self._asked].mean()),
            metric_ratio=ratio(
                per_text(int8_metric, text_A), per_text(fp32_metric, text_A), num_items=int(self._asked.sum())
            ),
            embedding_cosine_mean=None if cosines_T is None else float(cosines_T.mean()),
            embedding_cosine_min=None if cosines_T is None else float(cosines_T.min()),
            batch_flips=share(flips_A, np.tile(text_A[: len(flips_A) // _ROUNDS], _ROUNDS)),
            batch_cosine_min=min(batch_cosines, default=None),
            saturation=self._saturation(model, graph),
            checks=(),
        )
        return rung.model_copy(update={"checks": checks(rung, self._gates)})

    @property
    def _asked(self) -> npt.NDArray[np.bool_]:
        """Answers that the metric is of: all, or those of labelled texts."""
        is_labelled: npt.NDArray[np.bool_] = self._exam.true_A != _NO_LABEL
        return is_labelled | (self._exam.metric == "label agreement")

    def _right(self, given: Answers) -> npt.NDArray[np.bool_]:
        right_A = self._fp32.top1_A if self._exam.metric == "label agreement" else self._exam.true_A
        is_right: npt.NDArray[np.bool_] = given.top1_A == right_A
        return is_right

    def _by_neighbours(self, model: OpenModel) -> tuple[npt.NDArray[np.bool_], list[float]]:
        """Whether each answer differs when its text is among others, of every grouping; the least cosine of each."""
        few, pad_id = self._exam.texts[:_BATCH_TEXTS], self._manifest.special_tokens.pad_id
        alone = answers(model, (padded(few, [position], pad_id) for position in range(len(few))))
        among = [answers(model, _mixed(few, pad_id, number)) for number in range(_ROUNDS)]
        cosines = [cosines_T for mixed in among if (cosines_T := _cosines(alone, mixed)) is not None]
        flips_A = np.concatenate([alone.top1_A != mixed.top1_A for mixed in among])
        return flips_A, [float(cosines_T.min()) for cosines_T in cosines]

    def _saturation(self, model: OpenModel, graph: Path) -> float:
        texts = self._exam.texts[:_SATURATION_TEXTS]
        wide = open_graph(graph, self._manifest, wide_sums=True)
        pairs = zip(logits(model, texts), logits(wide, texts), strict=True)
        return max(float(np.abs(ours - right).max(initial=0.0)) for ours, right in pairs)


def checks(rung: Rung, gates: ExportGates) -> tuple[Check, ...]:
    """Every figure that a rung is held to, beside its limit."""
    low = {
        "agreement": (rung.agreement.value, gates.min_agreement),
        "metric_ratio": (rung.metric_ratio.value, gates.min_metric_ratio),
        "batch_cosine_min": (rung.batch_cosine_min, gates.min_batch_cosine),
    }
    high = {"batch_flips": (rung.batch_flips.value, gates.max_batch_flips), "saturation": (rung.saturation, 0.0)}
    return (
        *(
            Check(name=name, given=given, must_be="at least", limit=limit, is_passed=given >= limit)
            for name, (given, limit) in low.items()
            if given is not None
        ),
        *(
            Check(name=name, given=given, must_be="at most", limit=limit, is_passed=given <= limit)
            for name, (given, limit) in high.items()
        ),
    )


def _mixed(texts: Sequence[TokenizedText], pad_id: int, number: int) -> Iterator[Batch]:
    """Texts of any lengths together, grouped in one of several ways."""
    order = np.random.default_rng(number).permutation(len(texts)).tolist()
    for start in range(0, len(order), _NEIGHBOURS):
        yield padded(texts, order[start : start + _NEIGHBOURS], pad_id)


def _cosines(one: Answers, other: Answers) -> npt.NDArray[np.float32] | None:
    if one.embeddings_TH is None or other.embeddings_TH is None:
        return None
    cosines_T: npt.NDArray[np.float32] = (one.embeddings_TH * other.embeddings_TH).sum(axis=1)
    return cosines_T
