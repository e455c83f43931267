"""Judgement of one model or two, on text, on minimal pairs, or on both."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from clozeline.contest import blimp, texts
from clozeline.contest.blimp import BlimpFigures, Verdicts
from clozeline.contest.comparison import Comparison, PairedTest, have_same_tokens
from clozeline.contest.contender import Asking, Contender, Said
from clozeline.encoder.families import LanguageHead
from clozeline.errors import DataError
from clozeline.evaluation.figures import MOST_BLOCKS, Figures, expected_calibration_error
from clozeline.params import SourceParams
from clozeline.storage.atomic import replacing_file
from clozeline.text.files import texts_of


@dataclass(frozen=True)
class Questions:
    """Text and minimal pairs to evaluate on (None: skip), and how."""

    text: Path | None
    source: SourceParams
    """How `text` is read."""
    pairs: Path | None
    how: Asking
    is_length_given: bool
    """If false, rows are shortened to the longest that every model can read."""
    num_samples: int
    family: str | None = None
    """`pretrain.model.family` of the project, if there is one: see `language_model.load`."""


@dataclass(frozen=True)
class ModelFigures:
    name: str
    objective: LanguageHead
    """A masked model (mlm) predicts a token from both sides, a causal one (clm) from the tokens before it."""
    text: Figures | None
    expected_calibration_error: float | None
    blimp: BlimpFigures | None


@dataclass(frozen=True)
class Judgement:
    """Figures of the models; `comparison` and `blimp_accuracy` are of the first model minus the second."""

    how: Asking
    models: tuple[ModelFigures, ...]
    same_tokens: bool
    comparison: Comparison | None
    blimp_accuracy: PairedTest | None

    @property
    def asked_alike(self) -> bool:
        """Whether all models are masked, or all causal; otherwise their figures cannot be ranked."""
        return len({model.objective == "clm" for model in self.models}) == 1


def judge_models(names: Sequence[str], questions: Questions, scores: Path | None) -> Judgement:
    """Evaluate the models `names` (folders or hub names); write each document's log-likelihood to `scores` if given.

    Raises:
        ArtifactError: a model is missing or damaged, or does not predict tokens.
        DataError: the text or the pairs are missing, empty or unreadable.
        ParamsError: rows of the given length are too long for a model.
    """
    pairs = blimp.read_pairs(questions.pairs) if questions.pairs else []
    with TemporaryDirectory(prefix="clozeline-") as folder:
        scratch = Path(folder)
        num_texts = _keep_texts(questions, scratch / "texts.parquet")
        texts.keep(blimp.sentences(pairs), scratch / "pairs.parquet")
        contenders = [
            Contender.open(name, scratch / f"tokenizer-{place}", questions.family) for place, name in enumerate(names)
        ]
        how = questions.how
        if not questions.is_length_given:
            how = replace(how, max_length=min(how.max_length, *(contender.longest_row for contender in contenders)))
        num_groups = num_texts if scores else min(num_texts, MOST_BLOCKS)
        answers = [
            contender.ask(scratch / "texts.parquet", how, scratch / f"texts-{place}", num_groups=num_groups)
            for place, contender in enumerate(contenders if num_texts else [])
        ]
        alone = replace(how, estimator="pll")
        verdicts = [
            Verdicts.of(
                contender.ask(
                    scratch / "pairs.parquet", alone, scratch / f"pairs-{place}", num_groups=2 * len(pairs)
                ).documents
            )
            for place, contender in enumerate(contenders if pairs else [])
        ]
        if scores:
            _write_scores(scores, names, answers)
        sampling = {"seed": how.seed, "num_samples": questions.num_samples}
        same_tokens = all(have_same_tokens(contenders[0], other) for other in contenders[1:])
        return Judgement(
            how=how,
            models=tuple(
                _figures(
                    contenders[place],
                    answers[place] if answers else None,
                    BlimpFigures.of(pairs, verdicts[place]) if pairs else None,
                    sampling,
                )
                for place in range(len(names))
            ),
            same_tokens=same_tokens,
            comparison=_comparison(answers, same_tokens, sampling) if len(answers) > 1 else None,
            blimp_accuracy=_blimp_comparison(verdicts, sampling) if len(verdicts) > 1 else None,
        )


def _keep_texts(questions: Questions, path: Path) -> int:
    if questions.text is None:
        return 0
    num_texts = texts.keep(texts_of(questions.text, questions.source), path)
    if not num_texts:
        raise DataError(
            f"{questions.text}: there is no text in it",
            given="no text, or only empty texts",
            expected="text to evaluate a model on",
            do="give another file",
        )
    return num_texts


def _figures(
    asked: Contender, answers: Said | None, of_pairs: BlimpFigures | None, sampling: Mapping[str, int]
) -> ModelFigures:
    if answers is None:
        return ModelFigures(asked.name, asked.head, None, None, of_pairs)
    figures = Figures.of(answers.documents, answers.shards.num_documents, **sampling)
    error = expected_calibration_error(answers.by_confidence)
    return ModelFigures(asked.name, asked.head, figures, error, of_pairs)


def _comparison(answers: Sequence[Said], same_tokens: bool, sampling: Mapping[str, int]) -> Comparison:
    first, second = answers
    return Comparison.of(first, second, same_tokens=same_tokens, **sampling)


def _blimp_comparison(verdicts: Sequence[Verdicts], sampling: Mapping[str, int]) -> PairedTest:
    first_P, second_P = (found.is_right_P.astype(np.float64) for found in verdicts)
    return PairedTest.of(first_P, second_P, np.ones_like(first_P), **sampling)


def _write_scores(path: Path, names: Sequence[str], of_models: Sequence[Said]) -> None:
    with replacing_file(path) as beside, beside.open("w", encoding="utf-8") as file:
        for name, answers in zip(names, of_models, strict=True):
            documents = answers.documents
            columns = (documents.nats_D, documents.sums.num_targets_G, documents.unknown_D, documents.text_bytes_D)
            for document, (nats, targets, unknown, size) in enumerate(
                zip(*(column.tolist() for column in columns), strict=True)
            ):
                record = {
                    "model": name,
                    "document": document,
                    "log_likelihood_nats": -nats,
                    "target_tokens": targets,
                    "unknown_tokens": unknown,
                    "text_bytes": size,
                }
                file.write(json.dumps(record) + "\n")
