"""A model with its own tokenizer, and its answers about texts."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

import torch

from clozeline.contest.published import open_published
from clozeline.contest.texts import shards_of
from clozeline.encoder.families import LanguageHead
from clozeline.errors import ArtifactError, DataError, ParamsError
from clozeline.evaluation import asking
from clozeline.evaluation.figures import DocumentSums, measure
from clozeline.evaluation.groupings import ByConfidence, ByDocument, Grouping
from clozeline.evaluation.judged import Sums
from clozeline.foreign.hub import pinned
from clozeline.language_modelling import language_model
from clozeline.language_modelling.batches import Split
from clozeline.language_modelling.language_model import LanguageModel
from clozeline.progress import ProgressBar
from clozeline.tokenizer.folder import OpenTokenizer, save_existing
from clozeline.tokens.shards import TokenShards

Estimator = Literal["folds", "pll"]
"""Tokens that a masked model predicts in one pass: a fold, or a single token. Ignored for a causal model."""


@dataclass(frozen=True)
class Asking:
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
    by_confidence: Sums
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

        `family`: see `language_model.load`.

        Raises:
            ArtifactError: the model is missing, has no head that predicts tokens, or lacks a usable tokenizer of its
                own.
        """
        revision = pinned(name, None)
        model = open_published(name, family, revision)
        scratch.mkdir()
        try:
            save_existing(name, scratch, revision)
        except DataError as error:
            raise ArtifactError(
                f"{name} has no usable tokenizer",
                given=error.given,
                expected="a tokenizer.json beside the model",
                do="save the model's own tokenizer into its folder",
            ) from error
        opened = OpenTokenizer.open(scratch)
        _check_tokens(model, opened, name)
        return cls(name, model, opened)

    @property
    def head(self) -> LanguageHead:
        return language_model.head_of(self.model)

    @property
    def longest_row(self) -> int:
        return language_model.longest_row(self.model)

    def ask(self, texts: Path, how: Asking, scratch: Path, *, num_groups: int) -> Said:
        """Predict every token of the texts in a Parquet file, and sum the results by document modulo `num_groups`.

        Raises:
            ParamsError: the model cannot read rows of `how.max_length` tokens.
        """
        if how.max_length > self.longest_row:
            raise ParamsError(
                f"rows are longer than {self.name} can read",
                given=f"{how.max_length} tokens",
                expected=f"at most {self.longest_row}",
                do=f"give `--max-length {self.longest_row}` or less",
            )
        shards = shards_of(texts, self.opened, scratch)
        split = Split.open(shards, how.max_length)
        head = self.head
        if how.estimator == "pll" and head != "clm":
            questions, total = asking.one_by_one(split, batch_tokens=how.batch_tokens), asking.num_copies(split)
        else:
            questions = asking.in_folds(
                head, split, seed=how.seed, num_folds=how.num_folds, batch_tokens=how.batch_tokens
            )
            total = len(split.rows) * asking.num_passes(head, how.num_folds)
        groupings: dict[str, Grouping] = {"document": ByDocument(max(num_groups, 1)), "confidence": ByConfidence()}
        with ProgressBar(f"evaluate {Path(self.name).name}", total) as bar, torch.inference_mode():
            sums = measure(self.model, questions, groupings, bar.advance)
        return Said(DocumentSums.of(shards, sums["document"]), sums["confidence"], shards)


def _check_tokens(model: LanguageModel, opened: OpenTokenizer, name: str) -> None:
    if opened.vocab_size > model.config.vocab_size:
        raise ArtifactError(
            f"the tokenizer of {name} has tokens that the model does not know",
            given=f"{opened.vocab_size:,} tokens; special tokens: {', '.join(opened.special_strings)}",
            expected=f"at most {model.config.vocab_size:,}, the rows of the model's embedding, including "
            "[CLS], [SEP], [PAD] and [MASK] or their equivalents",
            do="save the model's own tokenizer into its folder; a model without these tokens cannot be evaluated",
        )
