"""Judgement of one trained language model or two, on text, on minimal pairs, or on both.

A model may come from this project or from others: it is a folder or a name on the hub, and reads the texts by its own
tokenizer. Texts of any format are spooled to disk, so that memory stays bounded. Two models are compared in pairs on
the same texts: is the difference more than chance?

Shapes: D documents or blocks of them, S seeds.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from scipy import stats
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from clozeline.corpus.cleaning.portions import texts_of
from clozeline.encoder import families, own
from clozeline.encoder.architecture import longest_row_of
from clozeline.encoder.checkpoints import find_checkpoint, opened
from clozeline.encoder.families.layout import HEADS, LanguageHead
from clozeline.evaluation import groups, measuring
from clozeline.evaluation.measuring import DocumentSums, EncoderFigures
from clozeline.lab.blimp import BlimpFigures, Verdicts, read_pairs, sentences
from clozeline.language import models, objectives
from clozeline.language.models import LanguageModel
from clozeline.language.shards import TokenShards
from clozeline.params.text import SourceParams
from clozeline.records import clean_text, published
from clozeline.records.finetune.statistics import Floats, ratio_intervals, sign_flip_p_value
from clozeline.records.reading.tokens import INFO_NAME, TokensInfo
from clozeline.system.errors import ArtifactError, DataError, ParamsError
from clozeline.system.files import replacing_file
from clozeline.system.progress import ProgressBar
from clozeline.tokenizing.packing import pack
from clozeline.tokenizing.shards import partitions_of
from clozeline.tokenizing.tokenizer.folder import OpenTokenizer, save_existing

_SPLIT = "text"
_SHARD_TOKENS = 50_000_000
_SCHEMA = pa.schema([clean_text.SCHEMA.field(clean_text.TEXT)])
_TEXTS_AT_A_TIME = 1024
# Tokens that a masked model predicts in one pass: a fold, or a single token. Ignored for a causal model.
Estimator = Literal["folds", "pll"]


def open_published(name: str, family: str | None = None, revision: str | None = None) -> LanguageModel:
    """Load the model saved as `name`, in single precision, with the head that it was saved with.

    The model can be of a family that can be trained here, or of any architecture with a masked head in transformers.

    Args:
        family: see `language.models.load`.
        revision: a state of a name on the hub.

    Raises:
        ArtifactError: the model is missing, damaged, built by code that is not `family`, or without a trained head that
            predicts tokens.
    """
    checkpoint, facts = find_checkpoint(name, revision)
    published.inspect_model(name, checkpoint.revision)
    architecture = (facts.get("architectures") or ["none"])[0]
    head = families.LANGUAGE_HEADS.get(architecture)
    has_generator = head is not None and not HEADS[head].predicts_tokens
    if checkpoint.is_folder and (facts.get("model_type") == own.OWN_MODEL_TYPE or has_generator):
        return models.load(Path(name), family)
    if head is None or has_generator:
        head = "mlm" if facts.get("model_type") in MODEL_FOR_MASKED_LM_MAPPING_NAMES else None
    if head is None:
        raise ArtifactError(
            f"{name} ({facts.get('model_type', 'none')}, {architecture}) does not predict tokens",
            do="give a masked language model, or a causal one of a family that Clozeline trains",
        )
    model, missing = opened(checkpoint, checkpoint.config(), head)
    if missing:
        raise ArtifactError(
            f"{name} lacks {len(missing)} weights of the head that predicts tokens, such as {missing[0]}",
            do="give a model that was pre-trained by masking, or pre-train this one further (`start`)",
        )
    return model.eval()


def keep(texts: Iterable[str], path: Path) -> int:
    """Write `texts` to the Parquet file `path`; return their number."""
    waiting, count = iter(texts), 0
    with pq.ParquetWriter(path, _SCHEMA) as file:
        while some := list(islice(waiting, _TEXTS_AT_A_TIME)):
            file.write_table(pa.table([some], _SCHEMA))
            count += len(some)
    return count


def shards_of(texts: Path, opened: OpenTokenizer, folder: Path) -> TokenShards:
    """Write the texts of a Parquet file as token shards into the new folder `folder`."""
    folder.mkdir()
    TokensInfo.of(
        vocab_size=opened.vocab_size,
        tokenizer_sha256=opened.sha256,
        special_ids=opened.special_ids,
        splits={_SPLIT: pack(partitions_of(texts), opened, folder, _SPLIT, _SHARD_TOKENS).info},
    ).write(folder / INFO_NAME)
    return TokenShards.open(folder, _SPLIT)


@dataclass(frozen=True)
class ContestAsking:
    """Evaluation settings, the same for all models."""

    estimator: Estimator
    seed: int
    num_folds: int
    max_length: int
    batch_tokens: int


@dataclass(frozen=True)
class Said:
    """Evaluation results of one model on a set of texts."""

    documents: DocumentSums
    by_confidence: groups.Sums
    shards: TokenShards


@dataclass(frozen=True)
class Contender:
    """A model with its tokenizer, ready to be evaluated on raw text."""

    name: str
    model: LanguageModel
    opened: OpenTokenizer

    @classmethod
    def open(cls, name: str, scratch: Path, family: str | None = None) -> Self:
        """Open the model and the tokenizer saved as `name`, a folder or a name on the hub; `scratch` is a new folder.

        `family`: see `language.models.load`.

        Raises:
            ArtifactError: the model is missing, has no head that predicts tokens, or lacks a usable tokenizer of its
                own.
        """
        revision = published.pinned(name, None)
        model = open_published(name, family, revision)
        scratch.mkdir()
        try:
            save_existing(name, scratch, revision)
        except DataError as error:
            raise ArtifactError(
                f"{name} has no usable tokenizer: {error.cause}", do="save the model's own tokenizer into its folder"
            ) from error
        opened = OpenTokenizer.open(scratch)
        if opened.vocab_size > model.config.vocab_size:
            raise ArtifactError(
                f"the tokenizer of {name} has tokens that the model does not know: {opened.vocab_size:,} (special:"
                f" {', '.join(opened.special_strings)}) for {model.config.vocab_size:,} rows of the embedding",
                do="save the model's own tokenizer into its folder; a model without [CLS], [SEP], [PAD] and [MASK], or "
                "their equivalents, cannot be evaluated",
            )
        return cls(name, model, opened)

    @property
    def longest_row(self) -> int:
        return longest_row_of(self.model.config)

    def ask(self, texts: Path, how: ContestAsking, scratch: Path, *, num_groups: int) -> Said:
        """Predict every token of the texts in a Parquet file, and sum the results by document modulo `num_groups`.

        Raises:
            ParamsError: the model cannot read rows of `how.max_length` tokens.
        """
        if how.max_length > self.longest_row:
            raise ParamsError(
                f"rows of {how.max_length} tokens are longer than {self.name} can read",
                do=f"give `--max-length {self.longest_row}` or less",
            )
        shards = shards_of(texts, self.opened, scratch)
        split = objectives.Split.open(shards, how.max_length)
        head = models.head_of(self.model)
        if how.estimator == "pll" and head != "clm":
            asked, total = groups.one_by_one(split, batch_tokens=how.batch_tokens), groups.num_copies(split)
        else:
            asked = groups.in_folds(head, split, seed=how.seed, num_folds=how.num_folds, batch_tokens=how.batch_tokens)
            total = len(split.rows) * groups.num_passes(head, how.num_folds)
        groupings = {"document": groups.by_document(max(num_groups, 1)), "confidence": groups.by_confidence()}
        with ProgressBar(f"evaluate {Path(self.name).name}", total) as bar, torch.inference_mode():
            sums = measuring.measure(self.model, asked, groupings, bar.advance)
        return Said(DocumentSums.of(shards, sums["document"]), sums["confidence"], shards)


# p-value below which a difference is no chance.
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class PairedTest:
    """Figure of the first model minus that of the second, paired by document."""

    difference: float
    low: float
    # `low` and `high` are the ends of the 95 % interval. By document: bootstrap, with both models' answers.
    high: float
    # Two-sided p-value. By document: how often random signs of the differences give one at least as large.
    p_value: float

    @property
    def is_significant(self) -> bool:
        return self.p_value < SIGNIFICANT

    @classmethod
    def of(cls, first_D: Floats, second_D: Floats, weight_D: Floats, *, seed: int, num_samples: int) -> Self:
        """Compare sums by document over `weight_D`, bytes or targets."""
        difference_D = first_D - second_D
        ends = ratio_intervals(difference_D[:, None], weight_D[:, None], seed=seed, num_samples=num_samples)
        low, high = ends[:, 0].tolist()
        p_value = sign_flip_p_value(difference_D, seed=seed, num_samples=num_samples)
        return cls(float(difference_D.sum() / weight_D.sum()), low, high, p_value)

    @classmethod
    def over_seeds(cls, first_S: Floats, second_S: Floats) -> Self:
        """Compare figures of trainings from the same seeds, at least two, by the paired t-test (Student 1908).

        Random signs, as above, need six seeds before any difference is significant at 5 %.
        """
        difference_S = first_S - second_S
        mean = float(difference_S.mean())
        if np.ptp(difference_S) == 0:  # the same for every seed: no difference, or one without chance
            return cls(mean, mean, mean, 0.0 if mean else 1.0)
        found = stats.ttest_rel(first_S, second_S)
        low, high = found.confidence_interval(0.95)
        return cls(mean, float(low), float(high), float(found.pvalue))


@dataclass(frozen=True)
class Comparison:
    """The first model minus the second; for a loss, below 0 is better."""

    nats_per_byte: PairedTest
    # None if the tokens differ, because figures of different tokens do not compare.
    loss_nats_per_token: PairedTest | None
    top1: PairedTest | None

    @classmethod
    def of(cls, first: Said, second: Said, *, same_tokens: bool, seed: int, num_samples: int) -> Self:
        ours, theirs = first.documents, second.documents
        one, other, targets_D = ours.sums, theirs.sums, ours.sums.num_targets_G
        pairs: list[tuple[NDArray[Any], ...]] = [(ours.nats_D, theirs.nats_D, ours.text_bytes_D)]
        if same_tokens:
            pairs += [(one.loss_nats_G, other.loss_nats_G, targets_D), (one.num_top1_G, other.num_top1_G, targets_D)]
        tests = [
            PairedTest.of(*(sum_D.astype(np.float64) for sum_D in pair), seed=seed, num_samples=num_samples)
            for pair in pairs
        ]
        of_text, *of_tokens = tests
        loss, top1 = of_tokens or (None, None)
        return cls(of_text, loss, top1)


def have_same_tokens(first: Contender, second: Contender) -> bool:
    """Return whether both tokenizers have the same special tokens and an equal tokenizer.json."""
    one, other = first.opened, second.opened
    return one.special_ids == other.special_ids and one.tokenizer.to_str() == other.tokenizer.to_str()


@dataclass(frozen=True)
class ContestQuestions:
    """Text and minimal pairs to evaluate on (None: skip), and how."""

    text: Path | None
    source: SourceParams  # how `text` is read
    pairs: Path | None
    how: ContestAsking
    is_length_given: bool  # if false, rows are shortened to the longest that every model can read
    num_samples: int
    family: str | None = None  # `pretrain.model.family` of the project, if there is one: see `language.models.load`


@dataclass(frozen=True)
class ModelFigures:
    name: str
    # A masked model (mlm) predicts a token from both sides, a causal one (clm) from the tokens before it.
    objective: LanguageHead
    text: EncoderFigures | None
    expected_calibration_error: float | None
    blimp: BlimpFigures | None


@dataclass(frozen=True)
class Judgement:
    """Figures of the models; `comparison` and `blimp_accuracy` are of the first model minus the second."""

    how: ContestAsking
    models: tuple[ModelFigures, ...]
    same_tokens: bool
    comparison: Comparison | None
    blimp_accuracy: PairedTest | None

    @property
    def asked_alike(self) -> bool:
        """Whether all models are masked, or all causal; otherwise their figures cannot be ranked."""
        return len({model.objective == "clm" for model in self.models}) == 1


def judge_models(names: Sequence[str], questions: ContestQuestions, scores: Path | None) -> Judgement:
    """Evaluate the models `names` (folders or hub names); write each document's log-likelihood to `scores` if given.

    Raises:
        ArtifactError: a model is missing or damaged, or does not predict tokens.
        DataError: the text or the pairs are missing, empty or unreadable.
        ParamsError: rows of the given length are too long for a model.
    """
    pairs = read_pairs(questions.pairs) if questions.pairs else []
    with TemporaryDirectory(prefix="clozeline-") as folder:
        scratch = Path(folder)
        num_texts = _keep_texts(questions, scratch / "texts.parquet")
        keep(sentences(pairs), scratch / "pairs.parquet")
        contenders = [
            Contender.open(name, scratch / f"tokenizer-{place}", questions.family) for place, name in enumerate(names)
        ]
        how = questions.how
        if not questions.is_length_given:
            how = replace(how, max_length=min(how.max_length, *(contender.longest_row for contender in contenders)))

        def asked(name: str, how: ContestAsking, num_groups: int) -> list[Said]:
            texts = scratch / f"{name}.parquet"
            return [
                contender.ask(texts, how, scratch / f"{name}-{place}", num_groups=num_groups)
                for place, contender in enumerate(contenders)
            ]

        num_groups = num_texts if scores else min(num_texts, measuring.MOST_BLOCKS)
        answers = asked("texts", how, num_groups) if num_texts else []
        of_pairs = asked("pairs", replace(how, estimator="pll"), 2 * len(pairs)) if pairs else []
        if scores:
            _write_scores(scores, names, answers)
        same_tokens = all(have_same_tokens(contenders[0], other) for other in contenders[1:])
        sampling = {"seed": how.seed, "num_samples": questions.num_samples}
        verdicts = [Verdicts.of(said.documents) for said in of_pairs]

        def figures_of(place: int) -> ModelFigures:
            said = answers[place] if answers else None
            return ModelFigures(
                name=names[place],
                objective=models.head_of(contenders[place].model),
                text=EncoderFigures.of(said.documents, said.shards.num_documents, **sampling) if said else None,
                expected_calibration_error=measuring.expected_calibration_error(said.by_confidence) if said else None,
                blimp=BlimpFigures.of(pairs, verdicts[place]) if verdicts else None,
            )

        of_blimp = None
        if len(verdicts) > 1:
            first_P, second_P = (found.is_right_P.astype(np.float64) for found in verdicts)
            of_blimp = PairedTest.of(first_P, second_P, np.ones_like(first_P), **sampling)
        of_text = None
        if len(answers) > 1:
            of_text = Comparison.of(answers[0], answers[1], same_tokens=same_tokens, **sampling)
        return Judgement(
            how=how,
            models=tuple(map(figures_of, range(len(contenders)))),
            same_tokens=same_tokens,
            comparison=of_text,
            blimp_accuracy=of_blimp,
        )


def _keep_texts(questions: ContestQuestions, path: Path) -> int:
    if questions.text is None:
        return 0
    num_texts = keep(texts_of(questions.text, questions.source), path)
    if not num_texts:
        raise DataError(f"{questions.text}: there is no text in it", do="give another file to evaluate a model on")
    return num_texts


def _write_scores(path: Path, names: Sequence[str], of_models: Sequence[Said]) -> None:
    with replacing_file(path) as beside, beside.open("w", encoding="utf-8") as file:
        for name, answers in zip(names, of_models, strict=True):
            documents = answers.documents
            columns = (documents.nats_D, documents.sums.num_targets_G, documents.unknown_D, documents.text_bytes_D)
            rows = zip(*(column.tolist() for column in columns), strict=True)
            for document, (nats, targets, unknown, size) in enumerate(rows):
                record = {
                    "model": name,
                    "document": document,
                    "log_likelihood_nats": -nats,
                    "target_tokens": targets,
                    "unknown_tokens": unknown,
                    "text_bytes": size,
                }
                file.write(json.dumps(record) + "\n")
