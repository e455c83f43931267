"""The ladder: INT8 schemes are tried in order until one is proven fit to be served; fp32 serves if none is.

A scheme computes the scales of activations at run time. The one that passes is then tried with fixed scales, which are
faster, for activations whose range varies little between tokens or can be smoothed; they are kept if nothing is lost.
Sensitivity is the error that INT8 causes in each product with a weight matrix. The proof is a set of measurements on
real texts, with their limits.

Shapes: A answers, V vocabulary or classes, H hidden, L tokens of a text, N tokens of several texts, T texts.
"""

import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from onnx import ModelProto

from clozeline.exporting import exams, fixed_scales
from clozeline.exporting.exams import logits
from clozeline.exporting.graph import remove_graph, size_of, write_graph
from clozeline.exporting.quantization import FULL_LIMIT, Quantized, Scheme, products_by_constants, quantize
from clozeline.inference.language import HIDDEN, Embedder
from clozeline.inference.open_model import OpenModel, Question, Rows, TextBatch, padded
from clozeline.inference.package import open_graph
from clozeline.inference.tokenization import TokenizedText
from clozeline.params.delivery import ExportGates, ExportParams, RungParams
from clozeline.records.package import FILES, Manifest, Measured, QuantizationScheme, Rung
from clozeline.records.record import Limit

# Number of texts for the agreement. 98 texts all agree by chance once in 20 times: -3 / ln(0.97) = 98.
MIN_AGREEMENT_TEXTS = 100
# Number of distinct answers of fp32. If fp32 always answers the same, a broken graph agrees with it.
MIN_DIFFERENT_ANSWERS = 2
# Number of answers for the metric. With fewer, one answer weighs more than the whole loss that `min_metric_ratio` 0.995
# permits: 1 / (1 - 0.995) = 200.
MIN_METRIC_ITEMS = 200
# Mean over the texts of the cosine with fp32's embedding.
MIN_EMBEDDING_COSINE = 0.99
# Mean over the tokens of the cosine with fp32's vector. An embedding is a mean of these vectors, in which their
# differences cancel out, so its limit is higher.
MIN_TOKEN_COSINE = 0.98
# Smallest cosine of a text's embeddings run alone and run in a batch.
MIN_BATCH_COSINE = 0.999
# Share of answers that change when a text runs in a batch instead of alone.
MAX_BATCH_FLIPS = 0.005
# Number of texts that are read alone and in batches.
_BATCH_TEXTS = 64
# Number of texts in such a batch, of any length.
_NEIGHBOURS = 8
# Number of random groupings into batches.
_ROUNDS = 3
_SATURATION_TEXTS = 16
# Names of the checks of sample sizes.
_NUM_TEXTS, _NUM_ITEMS, _NUM_DIFFERENT = "agreement_texts", "metric_items", "different_answers"

_LOG = logging.getLogger(__name__)
# Number of texts for the sensitivity measurement, which runs a graph for each product on all of them.
_SENSITIVITY_TEXTS = 16


class Proof:
    """Answers of fp32 to a sample: the reference for other graphs of the same model."""

    def __init__(self, fp32: Path, manifest: Manifest, sample: exams.Sample, gates: ExportGates) -> None:
        """Run the fp32 graph on the exam.

        Args:
            fp32: file of the fp32 graph, beside tokenizer.json.
            manifest: manifest of the package, as far as it is known.
            sample: texts or held-out items that all graphs read.
            gates: limits of the checks.
        """
        model = open_graph(fp32, manifest)
        self._manifest, self._gates = manifest, gates
        self._exam = exams.exam_of(model, sample)
        self._fp32 = self._exam.answers(model, model.batches(self._exam.texts))
        self._token_vectors = _token_vectors(model, self._exam.texts)
        self._num_different = len(np.unique(self._fp32.top1_A))
        # Figures of the fp32 graph, by name; empty if another stage has measured the model.
        self.quality = self._exam.quality(model, self._fp32)

    @property
    def num_texts(self) -> int:
        """Number of texts, pairs or questions that every graph answers."""
        return self._exam.num_texts

    def rung(self, graph: Path, scheme: QuantizationScheme, reference: Rung | None = None) -> Rung:
        """Measure and check an INT8 graph.

        Args:
            graph: file of the graph, beside tokenizer.json.
            scheme: how the graph was quantized.
            reference: rung that the graph has to match, as in `no_worse_than`.
        """
        model, exam, fp32 = open_graph(graph, self._manifest), self._exam, self._fp32
        given = exam.answers(model, model.batches(exam.texts))
        counts, fp32_counts, matters_A = exam.counts(given, fp32), exam.counts(fp32, fp32), exam.matters(fp32, given)
        vectors = {
            "embedding": _cosines(fp32, given),
            "token": _token_cosines(self._token_vectors, _token_vectors(model, exam.texts)),
        }
        flips, batch_cosines = self._by_neighbours(model)
        rung = Rung(
            scheme=scheme,
            size_bytes=size_of(graph),
            agreement=exams.share((fp32.top1_A == given.top1_A)[matters_A], exam.text_A[matters_A]),
            different_answers=self._num_different,
            metric=exam.metric,
            fp32_metric=fp32_counts.value,
            int8_metric=counts.value,
            metric_ratio=ratio_of_figures(counts, fp32_counts),
            **{
                f"{name}_cosine_{end}": None if cosines is None else float(pick(cosines))
                for name, cosines in vectors.items()
                for end, pick in (("mean", np.mean), ("min", np.min))
            },
            batch_flips=flips,
            batch_cosine_min=float(np.min(batch_cosines)) if batch_cosines else None,  # NaN stays NaN
            saturation=self._saturation(model, graph),
            checks=(),
        )
        gates = no_worse_than(reference, self._gates) if reference else self._gates
        return rung.model_copy(update={"checks": checks(rung, gates)})

    def _by_neighbours(self, model: OpenModel) -> tuple[Measured, list[float]]:
        """Return the share of answers that change in mixed batches, and the smallest cosine of each mixture."""
        few, pad_id = self._exam.texts[:_BATCH_TEXTS], self._manifest.special_tokens.pad_id
        alone = self._exam.answers(model, (padded(few, [position], pad_id) for position in range(len(few))))
        among = [self._exam.answers(model, _mixed(few, pad_id, number)) for number in range(_ROUNDS)]
        cosines = [cosines_T for mixed in among if (cosines_T := _cosines(alone, mixed)) is not None]
        matters = [self._exam.matters(alone, mixed) for mixed in among]
        flips = [(alone.top1_A != mixed.top1_A)[held_A] for mixed, held_A in zip(among, matters, strict=True)]
        text_A = self._exam.text_A[: len(alone.top1_A)]
        flipped = exams.share(np.concatenate(flips), np.concatenate([text_A[held_A] for held_A in matters]))
        return flipped, [float(cosines_T.min()) for cosines_T in cosines]

    def _saturation(self, model: OpenModel, graph: Path) -> float:
        texts = self._exam.texts[:_SATURATION_TEXTS]
        wide = open_graph(graph, self._manifest, wide_sums=True)
        pairs = zip(exams.logits(model, texts), exams.logits(wide, texts), strict=True)
        return float(np.max([np.abs(ours - right).max(initial=0.0) for ours, right in pairs]))


def ratio_of_figures(ours: exams.Counts, theirs: exams.Counts) -> Measured:
    """Return our figure / their figure on the same texts, of the items that they count, with an interval as in `ratio`.

    If the wholes differ too, as for an F1, both figures are linearized (ratio of two ratios, same section of Cochran).
    The result is 0 if either figure is 0.
    """
    if (ours.whole_T == theirs.whole_T).all():
        return exams.ratio(ours.part_T, theirs.part_T, theirs.num_items)
    num_items, num_counted = theirs.num_items, int(np.count_nonzero(ours.whole_T + theirs.whole_T))
    if not ours.value or not theirs.value:
        return exams.measured(0.0, 0.0, num_items, num_counted)
    value = ours.value / theirs.value
    moved_T = (ours.part_T - ours.value * ours.whole_T) / ours.part_T.sum()
    moved_T = moved_T - (theirs.part_T - theirs.value * theirs.whole_T) / theirs.part_T.sum()
    squares = max(float(np.square(moved_T).sum()), float(theirs.part_T.sum()) ** -2)
    num_texts = len(moved_T)
    half = exams.NORMAL_QUANTILE_95 * value * math.sqrt(squares * num_texts / max(num_texts - 1, 1))
    return exams.measured(value, half, num_items, num_counted)


def no_worse_than(rung: Rung, gates: ExportGates) -> ExportGates:
    """Return `gates` with both limits raised to the lower ends of `rung`'s 95 % intervals."""
    raised = {
        "min_agreement": max(gates.min_agreement, rung.agreement.low),
        # A ratio of 1 (equal to fp32) is always enough.
        "min_metric_ratio": max(gates.min_metric_ratio, min(rung.metric_ratio.low, 1.0)),
    }
    return gates.model_copy(update=raised)


def checks(rung: Rung, gates: ExportGates) -> tuple[Limit, ...]:
    """Return every figure that has a limit, checked."""
    least = {
        "agreement": (rung.agreement.value, gates.min_agreement),
        "metric_ratio": (rung.metric_ratio.value, gates.min_metric_ratio),
        "embedding_cosine_mean": (rung.embedding_cosine_mean, MIN_EMBEDDING_COSINE),
        "token_cosine_mean": (rung.token_cosine_mean, MIN_TOKEN_COSINE),
        _NUM_TEXTS: (rung.agreement.num_texts, MIN_AGREEMENT_TEXTS),
        _NUM_ITEMS: (rung.metric_ratio.num_items, MIN_METRIC_ITEMS),
        _NUM_DIFFERENT: (rung.different_answers, MIN_DIFFERENT_ANSWERS),
        "batch_cosine_min": (rung.batch_cosine_min, MIN_BATCH_COSINE),
    }
    most = {"batch_flips": (rung.batch_flips.value, MAX_BATCH_FLIPS), "saturation": (rung.saturation, 0.0)}
    # A figure is None where the kind of model has none.
    return (
        *(Limit.at_least(name, given, limit) for name, (given, limit) in least.items() if given is not None),
        *(Limit.at_most(name, given, limit) for name, (given, limit) in most.items()),
    )


def lacking(rung: Rung) -> tuple[Limit, ...]:
    """Return the failed checks of sample sizes, which any other scheme would fail too."""
    counts = (_NUM_TEXTS, _NUM_ITEMS, _NUM_DIFFERENT)
    return tuple(check for check in rung.checks if check.name in counts and not check.is_passed)


def _mixed(texts: Sequence[TokenizedText], pad_id: int, number: int) -> Iterator[TextBatch]:
    """Yield batches of texts of any length, grouped at random with the seed `number`."""
    order = np.random.default_rng(number).permutation(len(texts)).tolist()
    for start in range(0, len(order), _NEIGHBOURS):
        yield padded(texts, order[start : start + _NEIGHBOURS], pad_id)


def _cosines(one: exams.Answers, other: exams.Answers) -> npt.NDArray[np.float32] | None:
    if one.embeddings_TH is None or other.embeddings_TH is None:
        return None
    cosines_T: npt.NDArray[np.float32] = (one.embeddings_TH * other.embeddings_TH).sum(axis=1)
    return cosines_T


def _token_vectors(model: OpenModel, texts: Sequence[TokenizedText]) -> Sequence[Rows] | None:
    """Return the vectors of the tokens of some texts, [L, H] each; None for a model that gives none."""
    if not isinstance(model, Embedder) or not model.embeds_tokens:
        return None
    return model.answers(Question(texts[:_BATCH_TEXTS], HIDDEN, lambda _, hidden_LH: hidden_LH))


def _token_cosines(one: Sequence[Rows] | None, other: Sequence[Rows] | None) -> npt.NDArray[np.float32] | None:
    if one is None or other is None:
        return None
    one_NH, other_NH = np.concatenate(one), np.concatenate(other)
    norms_N = np.linalg.norm(one_NH, axis=1) * np.linalg.norm(other_NH, axis=1)
    cosines_N: npt.NDArray[np.float32] = (one_NH * other_NH).sum(axis=1) / norms_N
    return cosines_N


def worst_first(
    graph: ModelProto, path: Path, manifest: Manifest, scheme: Scheme, head: Collection[str], texts: Sequence[str]
) -> list[str]:
    """Return the names of the MatMuls that `scheme` quantizes, sorted by the logit error of each alone, largest first.

    The error is the mean square of the change of a logit if only that MatMul is quantized. Errors of different layers
    are nearly independent, so that they add up. The embedding tables stay exact.

    Args:
        graph: fp32 graph.
        path: where trial graphs are written, beside tokenizer.json and the file of `graph`.
        manifest: manifest of the package, as far as it is known.
        scheme: how a MatMul is quantized.
        head: names of the MatMuls that stay in fp32 in any case.
        texts: texts to run; not those of the exam.
    """
    fp32 = open_graph(path.with_name(FILES.fp32), manifest)
    asked = fixed_scales.as_asked(fp32, texts)
    exact = list(logits(fp32, asked))
    names = [name for name in products_by_constants(graph) if name not in head]
    errors = {}
    for name in names:
        alone = quantize(graph, replace(scheme, embeddings=False), exact=[*head, *(n for n in names if n != name)])
        write_graph(alone.model, path)
        errors[name] = _mean_square(open_graph(path, manifest), asked, exact)
        _LOG.debug("%s alone in INT8 moves the logits by %.3g (mean square)", name, errors[name])
    return sorted(names, key=lambda name: -errors[name])


def _mean_square(model: OpenModel, texts: Sequence[TokenizedText], exact: Sequence[npt.NDArray[np.float32]]) -> float:
    """Return the mean square difference from `exact`, less a shift common to an answer's logits, which is harmless."""
    differences = [ours_AV - exact_AV for ours_AV, exact_AV in zip(logits(model, texts), exact, strict=True)]
    return float(np.mean(np.concatenate([moved_AV.var(axis=1) for moved_AV in differences]), dtype=np.float64))


@dataclass(frozen=True)
class Passed:
    """A scheme that was tried, with its graph."""

    rung: Rung
    quantized: Quantized  # the quantized graph


@dataclass(frozen=True)
class Climbed:
    """Result of a ladder."""

    rungs: tuple[Rung, ...]  # rungs in the order in which they were tried
    served: Passed | None  # scheme whose graph is in the file; None if no scheme passed, and then there is no file


class Ladder:
    """The ladder of params.yaml, applied to one model."""

    def __init__(
        self, graph: ModelProto, folder: Path, manifest: Manifest, head: Sequence[str], params: ExportParams
    ) -> None:
        """Prepare the ladder without measuring anything.

        Args:
            graph: fp32 graph; `folder` also holds it, beside tokenizer.json.
            folder: where INT8 graphs are written.
            manifest: manifest of the package, as far as it is known.
            head: MatMuls that stay in fp32 in any scheme.
            params: the section `export` of params.yaml.
        """
        self._graph, self._path, self._manifest, self._params = graph, folder / FILES.int8, manifest, params
        self._head = tuple(head)
        self._names = [name for name in products_by_constants(graph) if name not in head]
        self._worst: dict[Scheme, list[str]] = {}

    def climb(self, proof: Proof, calibration: Sequence[str]) -> Climbed:
        """Try each rung until one passes, and leave its graph in the folder.

        Args:
            proof: the measurements and limits for each rung.
            calibration: texts on which ranges of activations are measured, and the worst products if a rung excludes
                some; not those of `proof`.
        """
        rungs: list[Rung] = []
        for params in self._params.ladder:
            quantized = self._dynamic(params, calibration)
            if self._described(params, quantized) in [rung.scheme for rung in rungs]:
                continue  # With few products, two shares can give the same number.
            rungs.append(self._shown(proof, params, quantized))
            if rungs[-1].is_passed:
                dynamic = Passed(rungs[-1], quantized)
                tried = list(self._with_fixed_scales(proof, params, dynamic, calibration))
                return Climbed((*rungs, *(it.rung for it in tried)), self._kept(dynamic, tried))
            if lacking(rungs[-1]):
                break
        remove_graph(self._path)
        return Climbed(tuple(rungs), None)

    def _with_fixed_scales(
        self, proof: Proof, params: RungParams, dynamic: Passed, calibration: Sequence[str]
    ) -> Iterator[Passed]:
        """Yield each scheme with fixed scales that is tried; one that passes is the last."""
        names = dict.fromkeys(node.input[0] for node in self._graph.graph.node if node.name in self._names)
        given = self._graph, list(names), self._path, self._manifest
        seen = fixed_scales.measured(*given, calibration) if self._params.static_ratios else {}
        tried = [dynamic.quantized.static]
        for ratio in self._params.static_ratios:
            quantized = self._fixed(params, dynamic.quantized.exact, seen, ratio)
            if quantized.static in tried:
                continue
            tried.append(quantized.static)
            rung = self._shown(proof, params, quantized, reference=dynamic.rung)
            yield Passed(rung, quantized)
            if rung.is_passed:
                return

    def _kept(self, dynamic: Passed, tried: Sequence[Passed]) -> Passed:
        if tried and tried[-1].rung.is_passed:
            return tried[-1]
        write_graph(dynamic.quantized.model, self._path)
        return dynamic

    def _shown(self, proof: Proof, params: RungParams, quantized: Quantized, reference: Rung | None = None) -> Rung:
        write_graph(quantized.model, self._path)
        rung = proof.rung(self._path, self._described(params, quantized), reference)
        _LOG.info("INT8 scheme: %s", describe(rung))
        return rung

    def _fixed(
        self, params: RungParams, exact: Sequence[str], seen: Mapping[str, fixed_scales.Seen], limit: float
    ) -> Quantized:
        """Quantize with fixed scales for activations whose ratio is at most `limit`; smooth those that need it, and
        those where it is free.
        """
        scheme, products = scheme_of(params), [name for name in self._names if name not in exact]
        ranges = {name: reach for name, it in seen.items() if (reach := fixed_scales.range_of(it)).ratio <= limit}
        as_they_are = ranges.keys() - fixed_scales.smoothed_at_no_cost(self._graph.graph, products)
        smoothings = {
            name: fixed_scales.smoothing_of(seen[name], fixed_scales.matrices(self._graph.graph, weights), scheme)
            for name, weights in fixed_scales.smoothable(self._graph.graph, products).items()
            if name not in as_they_are
        }
        enough = {name: it for name, it in smoothings.items() if it.reach.ratio <= limit and it.factor_K.max() > 1}
        graph = fixed_scales.smoothed(self._graph, {name: it.factor_K for name, it in enough.items()}, products)
        ranges |= {fixed_scales.SMOOTHED.format(name): it.reach for name, it in enough.items()}
        return quantize(graph, scheme, exact=exact, ranges=ranges)

    def _dynamic(self, params: RungParams, calibration: Sequence[str]) -> Quantized:
        num_exact = math.ceil(params.exact_share * len(self._names))
        worst = self._worst_of(scheme_of(params), calibration)[:num_exact] if num_exact else []
        return quantize(self._graph, scheme_of(params), exact=(*self._head, *worst))

    def _worst_of(self, scheme: Scheme, calibration: Sequence[str]) -> list[str]:
        """Return the products, worst first, measured once for each kind of weights and with exact embeddings."""
        measured_as = replace(scheme, embeddings=False)
        if measured_as not in self._worst:
            few = calibration[:_SENSITIVITY_TEXTS]
            given = self._graph, self._path, self._manifest
            self._worst[measured_as] = worst_first(*given, measured_as, self._head, few)
        return self._worst[measured_as]

    def _described(self, params: RungParams, quantized: Quantized) -> QuantizationScheme:
        storage = scheme_of(params).storage
        return QuantizationScheme.model_validate(
            {
                "activations": "uint8 per token, dynamic",
                "weights": storage.text,
                "reduce_range": storage.limit < FULL_LIMIT,
                "embeddings": "int8 per row, symmetric" if params.quantize_embeddings else "float32",
                "quantized_matmuls": quantized.num_matmuls,
                "quantized_embeddings": quantized.num_embeddings,
                "exact_matmuls": quantized.exact,
                "quantized_activations": quantized.num_activations,
                "static_activations": tuple(quantized.static),
                "smoothed_activations": tuple(name for name, reach in quantized.static.items() if reach.is_smoothed),
                "static_ratio": round(max((reach.ratio for reach in quantized.static.values()), default=0.0), 2),
            }
        )


def scheme_of(rung: RungParams) -> Scheme:
    """Return the scheme of one rung of the ladder."""
    return Scheme(weights=rung.weights, embeddings=rung.quantize_embeddings)


def describe(rung: Rung) -> str:
    """Describe a rung in one line for the log."""
    verdict = "passes" if rung.is_passed else "fails: " + "; ".join(str(c) for c in rung.checks if not c.is_passed)
    return (
        f"{rung.scheme.kind}: {rung.scheme}: {rung.size_bytes / 1e6:,.2f} MB,"
        f" answers {rung.agreement.value:.2%} of {rung.agreement.num_items:,} items as fp32 does,"
        f" reaches {rung.metric_ratio.value:.2%} of fp32's {rung.metric}; {verdict}"
    )
