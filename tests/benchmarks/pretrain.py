"""Real tokens per second of pre-training: our rows, masks and loop against `Trainer`, the same model and texts."""

import argparse
import logging
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import datasets
import numpy as np
import torch
from transformers import AutoModelForMaskedLM

from clozeline.language.shards import TokenShards
from comparison import ours, run_mlm
from comparison.frame import Rounds, alternate, available_cores, options, report
from comparison.stages import Corpus, built_in, paths_of, prepared, run_stage, write_clean

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
    chosen, corpus = _chosen(padded.__doc__), _corpus()
    texts = half_full_texts(corpus)
    rows = run_mlm.line_by_line(run_mlm.as_dataset(texts), run_mlm.open_tokenizer(corpus.tokenizer), MAX_LENGTH)
    compare("pretrain_throughput_padded", tokenized(texts, corpus, "half-full"), corpus.tokenizer, rows, chosen)


def grouped() -> None:
    """Pre-training throughput, compared with run_mlm.py's default, which joins all texts and cuts full rows of 128
    tokens.

    Both sides use the same texts of the built-in corpus. Theirs has no padding, but attends from one text into the next
    and drops the rest of each map batch; ours keeps texts separate and batches rows of similar length. Model, masks,
    optimizer, counting and the check of the loss are those of pretrain_throughput_padded.
    """
    chosen, corpus = _chosen(grouped.__doc__), _corpus()
    rows = _grouped(corpus.texts("train")[:20_000], corpus, MAX_LENGTH)
    compare("pretrain_throughput_grouped", corpus.tokens, corpus.tokenizer, rows, chosen)


def _chosen(description: str | None) -> argparse.Namespace:
    parser = options(description, rounds=5, threads=min(2, available_cores()))
    parser.add_argument("--steps", type=int, default=4, help="steps of theirs in a round, one more being warm-up")
    parser.add_argument("--rows", type=int, default=32, help="rows in a step of theirs; ours gets as many real tokens")
    return parser.parse_args()


def _corpus() -> Corpus:
    return prepared(built_in(), {"algorithm": "wordpiece", "vocab_size": VOCAB_SIZE})


def _grouped(texts: list[str], corpus: Corpus, max_length: int) -> datasets.Dataset:
    return run_mlm.grouped(run_mlm.as_dataset(texts), run_mlm.open_tokenizer(corpus.tokenizer), max_length)


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


def tokenized(texts: list[str], corpus: Corpus, name: str) -> Path:
    """Shards of just these texts, made on first use."""
    folder = corpus.tokens.parent / name
    if not (folder / "tokens").is_dir():
        write_clean(folder / "clean", {"train": texts, "validation": texts[:100]})
        changes = {"tokenize": {"algorithm": "existing", "existing": str(corpus.tokenizer.resolve())}}
        run_stage("tokenize", folder, changes, **paths_of("tokenize", folder, folder))
    return folder / "tokens"


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
    steps = math.ceil(3 * chosen.steps / _CHUNKS) * _CHUNKS
    settings = {"max_length": MAX_LENGTH, "batch_tokens": real_tokens, "num_threads": chosen.threads}
    settings |= {"precision": "fp32", "log_every_steps": steps // _CHUNKS}
    params = ours.as_run_mlm(ours.BERT_TINY, steps, 5e-5, settings)
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


GPU_LENGTH = 512
# Texts of the corpus in a document.
_JOINED = 200
# Dense bf16 peak by a part of the driver's device name (NVIDIA's data sheets).
PEAK_FLOPS = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "L4": 121e12, "A10": 125e12, "RTX 4090": 165e12}


@dataclass(frozen=True)
class Shape:
    """A size of BERT, and its number of rows in a step."""

    num_hidden_layers: int
    hidden_size: int
    rows: int

    @property
    def model(self) -> dict[str, Any]:
        return ours.BERT_TINY | {
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.hidden_size // 64,
            "intermediate_size": 4 * self.hidden_size,
        }

    @property
    def flops_per_token(self) -> float:
        """Training FLOPs per token of a full row (Kaplan et al. 2020, section 2.1), the head at targets only."""
        width = self.hidden_size
        layer = 12 * width * width + 2 * GPU_LENGTH * width
        head = ours.MASK_RATE * (width * width + width * VOCAB_SIZE)
        return 6 * (self.num_hidden_layers * layer + head)


SHAPES = {"mini": Shape(2, 128, 256), "base": Shape(12, 768, 128), "large": Shape(24, 1024, 64)}


def gpu() -> None:
    """Pre-training on a GPU: real tokens per second and model FLOPs, compared with run_mlm.py `--bf16 --torch_compile`.

    Sizes are mini (here 2 × 128), base (12 × 768) and large (24 × 1024) as BERT, with a vocabulary of 30,522, 15 %
    targets and no dropout. Rows of 512 tokens are cut from long documents (texts of the built-in corpus, joined
    beforehand), so they are full on both sides. Both use bf16, compilation, TF32 and fused AdamW, and the same number
    of real tokens per step. Rounds alternate; the first half of each, which includes compilation, is left out. The
    ratio is that of the first requested size (`mini`); the others are reported too. MFU is the necessary work / the
    GPU's dense bf16 peak: 6 FLOPs per weight and token, attention, and the vocabulary at the targets only, without
    padding and other logits. Without a GPU the line says so, its ratio is null, and the exit status is 0.
    """
    parser = options(gpu.__doc__, rounds=3)
    parser.add_argument("--steps", type=int, default=40, help="of a round, half of them warm-up")
    parser.add_argument("--sizes", nargs="+", choices=sorted(SHAPES), default=list(SHAPES))
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        _LOG.info("no GPU: nothing is measured")
        facts = {"gpu": None, "why": "torch finds no CUDA device"}
        report("gpu_pretrain", Rounds((), ()), torch.get_num_threads(), facts)
        return
    corpus = _corpus()
    short = corpus.texts("train")[:50_000]
    texts = ["\n".join(short[first : first + _JOINED]) for first in range(0, len(short), _JOINED)]
    tokens, rows = tokenized(texts, corpus, "long"), _grouped(texts, corpus, GPU_LENGTH)
    measured = {name: _on_gpu(SHAPES[name], tokens, corpus.tokenizer, rows, chosen) for name in chosen.sizes}
    facts = {"gpu": torch.cuda.get_device_name(), "size": chosen.sizes[0], "sizes": _table(measured)}
    report("gpu_pretrain", measured[chosen.sizes[0]], torch.get_num_threads(), facts)


def _on_gpu(shape: Shape, tokens: Path, tokenizer: Path, rows: datasets.Dataset, chosen: argparse.Namespace) -> Rounds:
    steps = chosen.steps
    settings = {"max_length": GPU_LENGTH, "batch_tokens": shape.rows * GPU_LENGTH, "log_every_steps": steps // 2}
    params = ours.as_run_mlm(shape.model, steps, 1e-4, {**settings, "precision": "bf16", "compile": True})
    opened = run_mlm.open_tokenizer(tokenizer)
    with ours.prepared(params, 0, tokens, tokenizer) as job:
        model = AutoModelForMaskedLM.from_config(job.model.config)

        def theirs(number: int) -> float:
            how = {"per_device_train_batch_size": shape.rows, "max_steps": steps, "bf16": True, "tf32": True}
            warm_up = {"mask_rate": ours.MASK_RATE, "num_warmup_steps": steps // 2}
            meter = run_mlm.train(model, rows, opened, seed=number, torch_compile=True, **warm_up, **how)
            return meter.tokens_per_second

        return alternate(partial(ours.tokens_per_second, job), theirs, chosen.rounds, "tokens/s")


def _table(measured: Mapping[str, Rounds]) -> dict[str, dict[str, float | None]]:
    name = torch.cuda.get_device_name()
    peak = next((flops for part, flops in PEAK_FLOPS.items() if part in name), None)
    table: dict[str, dict[str, float | None]] = {}
    for size, rounds in measured.items():
        sides = {"ours": median(rounds.ours), "theirs": median(rounds.theirs)}
        share = SHAPES[size].flops_per_token / peak if peak else None
        mfu = {f"{side}_mfu": value * share if share else None for side, value in sides.items()}
        table[size] = {**sides, "ratio": sides["ours"] / sides["theirs"], **mfu}
    return table
