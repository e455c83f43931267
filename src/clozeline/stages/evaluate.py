"""Stage `evaluate`: measure the encoder on the whole validation set, with every token a target once."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Self

import torch
from tokenizers import Tokenizer

from clozeline.evaluation import groups, measuring
from clozeline.language import models, objectives, spelling
from clozeline.language.detection import ReplacedTokenPair
from clozeline.language.models import LanguageModel
from clozeline.language.shards import TokenShards
from clozeline.params.pretraining import EvaluateParams
from clozeline.records.clean_text import texts_of
from clozeline.records.evaluation import EncoderMetrics, FrequencyRow, PlaceRow, WordClassRow, write_examples
from clozeline.records.words.shingles import contamination
from clozeline.system.files import replacing_folder
from clozeline.system.group import Group
from clozeline.system.progress import ProgressBar

_LOG = logging.getLogger(__name__)
_TABLES = {"frequency": FrequencyRow, "place": PlaceRow, "word_class": WordClassRow}
# Maximum size of the validation text compared with all training text: some 200 MB of shingles.
_MOST_BYTES_COMPARED = 1 << 24


def run(
    params: EvaluateParams,
    *,
    seed: int,
    family: str,
    encoder: Path,
    tokens: Path,
    tokenizer: Path,
    training_text: Path,
    validation_text: Path,
    metrics: Path,
    plots: Path,
    examples: Path,
) -> None:
    """Write the encoder's figures and the unigram baseline's to `metrics`, and a page of predictions to `examples`.

    With replaced-token detection these are the generator's figures; the encoder's detection figures are added to them.
    Calibration, and loss by token frequency, position and piece kind, go to the folder `plots` as CSV. The two texts
    are read only to measure the contamination of the second by the first. `family`: see `language.models.load`.
    Processes of one `torchrun` share the questions, and the first of them writes.

    Raises:
        ArtifactError: the encoder or the shards are damaged, or their vocabularies differ.
        DataError: the validation split has no token that the tokenizer knows.
    """
    how = _How.of(params, seed)
    model = models.load(encoder, family).to(how.group.device)
    shards = TokenShards.open(tokens, "validation")
    models.check_vocabulary(model, shards.vocab_size, tokens)
    split = objectives.Split.open(shards, params.max_length)
    train_V = objectives.token_counts(TokenShards.open(tokens, "train"), split.vocabulary)
    groupings = {
        "document": groups.by_document(min(shards.num_documents, measuring.MOST_BLOCKS)),
        "confidence": groups.by_confidence(),
        "frequency": groups.by_frequency(train_V, split),
        "place": groups.by_place(params.max_length),
        "word_class": groups.by_word_class(spelling.Spelling.open(tokenizer)),
    }
    sums = _measured(model, split, how, groupings)
    documents, num_samples = measuring.DocumentSums.of(shards, sums["document"]), params.num_bootstrap_samples
    figures = measuring.EncoderFigures.of(documents, shards.num_documents, seed=seed, num_samples=num_samples)
    pseudo_figures = _pseudo_likelihood(model, split, how)
    detection_figures = _detection(model, split, how) if isinstance(model, ReplacedTokenPair) else {}
    if not how.group.is_first:
        return
    groups.write_calibration(plots / "calibration.csv", sums["confidence"])
    for name, kind in _TABLES.items():
        groups.write_figures(plots / f"{name}.csv", kind, sums[name], groupings[name])
    _write_examples(model.cpu(), split, tokenizer, seed, examples)
    baseline = measuring.measure_unigram(train_V, shards, split.vocabulary)
    report = {
        **figures.model_dump(),
        "expected_calibration_error": measuring.expected_calibration_error(sums["confidence"]),
        **pseudo_figures,
        **_contamination(validation_text, training_text, shards.text_bytes),
        **{f"unigram_{name}": value for name, value in asdict(baseline).items()},
        **detection_figures,
    }
    EncoderMetrics.model_validate(report).write(metrics)


def _contamination(validation_text: Path, training_text: Path, text_bytes: int) -> dict[str, int | float]:
    """Return the contamination of the texts, or of every n-th if they are many: their shingles are held in memory."""
    every = -(-text_bytes // _MOST_BYTES_COMPARED) or 1
    texts = (text for batch in texts_of(validation_text) for text in batch)
    found = contamination(list(islice(texts, 0, None, every)), texts_of(training_text))
    _LOG.info("of %s validation texts, %s", f"{found.num_texts:,}", found)
    return {
        "texts_compared_with_training": found.num_texts,
        "contaminated_fraction": found.fraction,
        "near_duplicates_in_training": found.num_near_duplicates,
        "contained_in_training": found.num_contained,
    }


@dataclass(frozen=True)
class _How:
    """How questions are chosen, and which processes answer them."""

    params: EvaluateParams
    seed: int
    group: Group

    @classmethod
    def of(cls, params: EvaluateParams, seed: int) -> Self:
        """Join the processes of this stage; several share the cores."""
        group = Group.join()
        if group.world_size > 1:
            torch.set_num_threads(group.num_threads)
        return cls(params, seed, group)

    @property
    def batch_tokens(self) -> int:
        """Tokens in a batch, at least one row."""
        return max(groups.BATCH_TOKENS, self.params.max_length)

    def questions(self, model: LanguageModel, split: objectives.Split) -> Iterator[groups.Asked]:
        """Return this process's share."""
        return groups.in_folds(
            models.head_of(model),
            split,
            seed=self.seed,
            num_folds=groups.NUM_FOLDS,
            batch_tokens=self.batch_tokens,
            group=self.group,
        )

    @contextmanager
    def progress(self, description: str, num_rows: int) -> Iterator[Callable[[int], None]]:
        """Give a function that counts the first process's rows on a bar; `num_rows` are those of all processes."""
        if not self.group.is_first:
            yield lambda num_rows: None
            return
        with ProgressBar(description, -(-num_rows // self.group.world_size)) as bar:
            yield bar.advance


def _measured(
    model: LanguageModel, split: objectives.Split, how: _How, groupings: dict[str, groups.Grouping]
) -> dict[str, groups.Sums]:
    num_rows = len(split.rows) * groups.num_passes(models.head_of(model), groups.NUM_FOLDS)
    with how.progress("evaluate", num_rows) as advance, torch.inference_mode():
        return measuring.measure(model, how.questions(model, split), groupings, advance, how.group)


def _pseudo_likelihood(model: LanguageModel, split: objectives.Split, how: _How) -> dict[str, float]:
    """Return pseudo-log-likelihood figures; none for a causal model, whose figures are log-likelihoods already."""
    if not how.params.num_pseudo_documents or models.head_of(model) == "clm":
        return {}
    some, document_D = measuring.spread(split, how.params.num_pseudo_documents)
    with how.progress("each token alone", groups.num_copies(some)) as advance, torch.inference_mode():
        return measuring.measured(
            model,
            some,
            document_D,
            batch_tokens=how.batch_tokens,
            seed=how.seed,
            num_samples=how.params.num_bootstrap_samples,
            advance=advance,
            group=how.group,
        )


def _detection(model: ReplacedTokenPair, split: objectives.Split, how: _How) -> dict[str, Any]:
    with how.progress("detection", len(split.rows) * groups.NUM_FOLDS) as advance:
        found = measuring.measure_detection(model, how.questions(model, split), split.vocabulary, advance, how.group)
    return {f"detection_{name}": value for name, value in asdict(found).items()}


def _write_examples(model: LanguageModel, split: objectives.Split, tokenizer: Path, seed: int, out: Path) -> None:
    reader = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    page = measuring.make_examples(model, split, reader, seed)
    with replacing_folder(out) as folder:
        (folder / "examples.txt").write_text(measuring.as_text(page), encoding="utf-8")
        (folder / "examples.html").write_text(measuring.as_html(page), encoding="utf-8")
        write_examples(folder, page)
