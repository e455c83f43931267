"""Real tokens per second of pre-training: our rows, masks and loop against `Trainer`, the same model and texts."""

import argparse
import logging
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import datasets
import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from clozeline.language.shards import TokenShards
from clozeline.params.pretraining import PretrainParams
from comparison import ours, run_mlm
from comparison.frame import alternate, available_cores, options, report
from comparison.stages import paths_of, run_stage
from comparison.texts import Corpus, built_in, prepared, write_clean

_LOG = logging.getLogger(__name__)

MAX_LENGTH = 128
VOCAB_SIZE = 30_522
MAX_LOSS_DIFFERENCE = 1e-5
_NUM_BOUNDARY = 2
_CHUNKS = 4
"""A run of ours is cut into so many equal parts, the first of which is warm-up."""


@dataclass(frozen=True)
class Sides:
    """The same texts as both sides want them."""

    tokens: Path
    tokenizer: Path
    rows: datasets.Dataset
    fill: float
    """Real tokens over all positions, 0-1, of their rows."""


def _chosen(description: str | None) -> argparse.Namespace:
    parser = options(description, rounds=5, threads=min(2, available_cores()))
    parser.add_argument("--steps", type=int, default=4, help="steps of theirs in a round, one more being warm-up")
    parser.add_argument("--rows", type=int, default=32, help="rows in a step of theirs; ours gets as many real tokens")
    parser.add_argument("--dynamic-padding", action="store_true", help="theirs without --pad_to_max_length")
    return parser.parse_args()


def corpus() -> Corpus:
    return prepared(built_in(), {"algorithm": "wordpiece", "vocab_size": VOCAB_SIZE})


def half_full_texts(source: Corpus, num_texts: int = 20_000) -> list[str]:
    """Texts that fit `MAX_LENGTH` and fill it to a half on average: of those that fit, the shortest are left out."""
    shards = TokenShards.open(source.tokens, "train")
    length_D = np.diff(shards.offsets.astype(np.int64))
    texts = source.texts("train")
    fitting = np.flatnonzero(length_D + _NUM_BOUNDARY <= MAX_LENGTH)
    by_length = fitting[np.argsort(-length_D[fitting], kind="stable")]
    mean_so_far = np.cumsum(length_D[by_length] + _NUM_BOUNDARY) / np.arange(1, len(by_length) + 1)
    num_chosen = int(np.searchsorted(-mean_so_far, -MAX_LENGTH / 2, side="right"))
    chosen = np.sort(by_length[:num_chosen])
    chosen = np.random.default_rng(0).permutation(chosen)[:num_texts]
    return [texts[document] for document in chosen.tolist()]


def tokenized(texts: list[str], tokenizer: Path, folder: Path) -> Path:
    """Shards of just these texts."""
    write_clean(folder / "clean", {"train": texts, "validation": texts[:100]})
    changes = {"tokenize": {"algorithm": "existing", "existing": str(tokenizer.resolve())}}
    run_stage("tokenize", folder, changes, **paths_of("tokenize", folder, folder))
    return folder / "tokens"


def fill_of(rows: datasets.Dataset) -> float:
    masks = rows.with_format("numpy")["attention_mask"]
    return float(np.mean([np.sum(mask) / MAX_LENGTH for mask in masks]))


def our_params(batch_tokens: int, steps: int, num_threads: int) -> PretrainParams:
    """The model, masks and optimizer that run_mlm has, in our terms."""
    rows = {"max_length": MAX_LENGTH, "batch_tokens": batch_tokens, "num_threads": num_threads, "precision": "fp32"}
    return ours.as_run_mlm(ours.BERT_TINY, steps, 5e-5, {**rows, "log_every_steps": steps // _CHUNKS})


def compare(name: str, sides: Sides, chosen: argparse.Namespace) -> None:
    """Check that the losses agree, measure in turn, and write the line; exit status 1 if they do not agree."""
    real_tokens = round(chosen.rows * MAX_LENGTH * sides.fill)
    params = our_params(real_tokens, math.ceil(3 * chosen.steps / _CHUNKS) * _CHUNKS, chosen.threads)
    with ours.prepared(params, 0, sides.tokens, sides.tokenizer) as job:
        theirs = ours.stock(job.model)
        losses = ours.losses_of_one_batch(job.model.eval(), theirs.eval(), sides.tokens, MAX_LENGTH, num_rows=8)
        _LOG.info("loss of one batch: ours %.7f, theirs %.7f", *losses)
        difference = abs(losses[0] - losses[1])
        if difference > MAX_LOSS_DIFFERENCE:
            sys.exit(f"the losses of the same batch under the same weights differ: {losses}")
        tokenizer = run_mlm.open_tokenizer(sides.tokenizer)
        rounds = alternate(
            lambda number: ours.tokens_per_second(job, number),
            lambda number: _theirs(theirs, sides.rows, tokenizer, chosen, number),
            chosen.rounds,
            "tokens/s",
        )
        facts = {
            "fill": round(sides.fill, 3),
            "parameters": job.num_parameters,
            "rows_per_step": chosen.rows,
            "real_tokens_per_step": real_tokens,
            "loss_difference": difference,
        }
        report(name, rounds, torch.get_num_threads(), facts)


def _theirs(
    model: PreTrainedModel,
    rows: datasets.Dataset,
    tokenizer: PreTrainedTokenizerFast,
    chosen: argparse.Namespace,
    number: int,
) -> float:
    meter = run_mlm.train(
        model,
        rows,
        tokenizer,
        mask_rate=ours.MASK_RATE,
        num_warmup_steps=1,
        per_device_train_batch_size=chosen.rows,
        max_steps=chosen.steps + 1,
        use_cpu=True,
        seed=number,
    )
    return meter.tokens_per_second


def main_padded(description: str | None, name: str) -> None:
    chosen = _chosen(description)
    source = corpus()
    texts = half_full_texts(source)
    folder = source.tokens.parent / "half-full"
    tokens = folder / "tokens" if (folder / "tokens").is_dir() else tokenized(texts, source.tokenizer, folder)
    tokenizer = run_mlm.open_tokenizer(source.tokenizer)
    pad = not chosen.dynamic_padding
    rows = run_mlm.line_by_line(run_mlm.as_dataset(texts), tokenizer, MAX_LENGTH, pad_to_max_length=pad)
    compare(name, Sides(tokens, source.tokenizer, rows, fill_of(rows)), chosen)


def main_grouped(description: str | None, name: str) -> None:
    chosen = _chosen(description)
    source = corpus()
    texts = source.texts("train")[:20_000]
    rows = run_mlm.grouped(run_mlm.as_dataset(texts), run_mlm.open_tokenizer(source.tokenizer), MAX_LENGTH)
    compare(name, Sides(source.tokens, source.tokenizer, rows, fill_of(rows)), chosen)
