"""Real tokens per second of pre-training: our rows, masks and loop against `Trainer`, the same model and texts."""

import argparse
import logging
import math
import sys
from functools import partial
from pathlib import Path

import datasets
import numpy as np
import torch

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
# A run of ours is cut into so many equal parts, the first of which is warm-up.
_CHUNKS = 4


def padded() -> None:
    """Pre-training throughput on short texts, compared with run_mlm.py `--line_by_line --pad_to_max_length`.

    The texts of the built-in corpus fill rows of 128 tokens by half on average. Both sides use BERT 4 × 256, a
    vocabulary of 30,522, fp32, fused AdamW, 15 % targets and no dropout. A round of theirs is `Trainer.train()`, a
    round of ours is our loop, both over tokenized texts with equal threads; the first steps of each round are left out.
    The figure is real tokens per second ([CLS] and [SEP] count, padding does not), and a step has equally many on both
    sides. First, the loss of one batch with the same weights must agree to 1e-5, because ours projects only the
    targets.
    """
    chosen, source = _chosen(padded.__doc__), _corpus()
    texts = half_full_texts(source)
    folder = source.tokens.parent / "half-full"
    tokens = folder / "tokens" if (folder / "tokens").is_dir() else tokenized(texts, source.tokenizer, folder)
    tokenizer = run_mlm.open_tokenizer(source.tokenizer)
    rows = run_mlm.line_by_line(run_mlm.as_dataset(texts), tokenizer, MAX_LENGTH)
    compare("pretrain_throughput_padded", tokens, source.tokenizer, rows, chosen)


def grouped() -> None:
    """Pre-training throughput, compared with run_mlm.py's default, which joins all texts and cuts full rows of 128
    tokens.

    Both sides use the same texts of the built-in corpus. Theirs has no padding, but attends from one text into the next
    and drops the rest of each map batch; ours keeps texts separate and batches rows of similar length. Model, masks,
    optimizer, counting and the check of the loss are those of pretrain_throughput_padded.
    """
    chosen, source = _chosen(grouped.__doc__), _corpus()
    texts = run_mlm.as_dataset(source.texts("train")[:20_000])
    rows = run_mlm.grouped(texts, run_mlm.open_tokenizer(source.tokenizer), MAX_LENGTH)
    compare("pretrain_throughput_grouped", source.tokens, source.tokenizer, rows, chosen)


def _chosen(description: str | None) -> argparse.Namespace:
    parser = options(description, rounds=5, threads=min(2, available_cores()))
    parser.add_argument("--steps", type=int, default=4, help="steps of theirs in a round, one more being warm-up")
    parser.add_argument("--rows", type=int, default=32, help="rows in a step of theirs; ours gets as many real tokens")
    return parser.parse_args()


def _corpus() -> Corpus:
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


def our_params(batch_tokens: int, steps: int, num_threads: int) -> PretrainParams:
    """The model, masks and optimizer that run_mlm has, in our terms."""
    rows = {"max_length": MAX_LENGTH, "batch_tokens": batch_tokens, "num_threads": num_threads, "precision": "fp32"}
    return ours.as_run_mlm(ours.BERT_TINY, steps, 5e-5, {**rows, "log_every_steps": steps // _CHUNKS})


def compare(name: str, tokens: Path, tokenizer: Path, rows: datasets.Dataset, chosen: argparse.Namespace) -> None:
    """Check that the losses agree, measure in turn, and write the line; exit status 1 if they do not agree.

    Args:
        name: name of the benchmark.
        tokens: shards of the texts, for our side.
        tokenizer: folder of both sides' tokenizer.
        rows: the same texts, as their side wants them.
        chosen: options.
    """
    fill = float(np.mean([np.sum(mask) / MAX_LENGTH for mask in rows.with_format("numpy")["attention_mask"]]))
    real_tokens = round(chosen.rows * MAX_LENGTH * fill)
    params = our_params(real_tokens, math.ceil(3 * chosen.steps / _CHUNKS) * _CHUNKS, chosen.threads)
    opened = run_mlm.open_tokenizer(tokenizer)
    with ours.prepared(params, 0, tokens, tokenizer) as job:
        model = ours.stock(job.model)
        losses = ours.losses_of_one_batch(job.model.eval(), model.eval(), tokens, MAX_LENGTH, num_rows=8)
        _LOG.info("loss of one batch: ours %.7f, theirs %.7f", *losses)
        difference = abs(losses[0] - losses[1])
        if difference > MAX_LOSS_DIFFERENCE:
            sys.exit(f"the losses of the same batch under the same weights differ: {losses}")

        def theirs(number: int) -> float:
            settings = {"per_device_train_batch_size": chosen.rows, "max_steps": chosen.steps + 1, "use_cpu": True}
            warm_up = {"mask_rate": ours.MASK_RATE, "num_warmup_steps": 1}
            return run_mlm.train(model, rows, opened, seed=number, **warm_up, **settings).tokens_per_second

        rounds = alternate(partial(ours.tokens_per_second, job), theirs, chosen.rounds, "tokens/s")
        facts = {
            "fill": round(fill, 3),
            "parameters": job.num_parameters,
            "rows_per_step": chosen.rows,
            "real_tokens_per_step": real_tokens,
            "loss_difference": difference,
        }
        report(name, rounds, torch.get_num_threads(), facts)
