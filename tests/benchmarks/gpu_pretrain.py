"""Pre-training on a GPU beside `Trainer`: ready for a machine that has one."""

import argparse
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import datasets
import torch
from transformers import AutoModelForMaskedLM

from comparison import ours, run_mlm
from comparison.frame import Rounds, alternate, options, report
from comparison.texts import built_in, prepared
from pretrain_throughput import tokenized

_LOG = logging.getLogger(__name__)

MAX_LENGTH = 512
VOCAB_SIZE = 30_522
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


SHAPES = {"mini": Shape(2, 128, 256), "base": Shape(12, 768, 128), "large": Shape(24, 1024, 64)}


def main() -> None:
    """Pre-training on a GPU: real tokens per second and model FLOPs, compared with run_mlm.py `--bf16 --torch_compile`.

    Sizes are mini (here 2 × 128), base (12 × 768) and large (24 × 1024) as BERT, with a vocabulary of 30,522, 15 %
    targets and no dropout. Rows of 512 tokens are cut from long documents (texts of the built-in corpus, joined
    beforehand), so they are full on both sides. Both use bf16, compilation, TF32 and fused AdamW, and the same number
    of real tokens per step. Rounds alternate; the first half of each, which includes compilation, is left out. The
    ratio is that of the first requested size (`mini`); the others are reported too. MFU is the necessary work / the
    GPU's dense bf16 peak: 6 FLOPs per weight and token, attention, and the vocabulary at the targets only, without
    padding and other logits. Without a GPU the line says so, its ratio is null, and the exit status is 0.
    """
    parser = options(main.__doc__, rounds=3)
    parser.add_argument("--steps", type=int, default=40, help="of a round, half of them warm-up")
    parser.add_argument("--sizes", nargs="+", choices=sorted(SHAPES), default=list(SHAPES))
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        _LOG.info("no GPU: nothing is measured")
        facts = {"gpu": None, "why": "torch finds no CUDA device"}
        report("gpu_pretrain", Rounds((), ()), torch.get_num_threads(), facts)
        return
    corpus = prepared(built_in(), {"algorithm": "wordpiece", "vocab_size": VOCAB_SIZE})
    short = corpus.texts("train")[:50_000]
    texts = ["\n".join(short[first : first + _JOINED]) for first in range(0, len(short), _JOINED)]
    folder = corpus.tokens.parent / "long"
    tokens = folder / "tokens" if (folder / "tokens").is_dir() else tokenized(texts, corpus.tokenizer, folder)
    rows = run_mlm.grouped(run_mlm.as_dataset(texts), run_mlm.open_tokenizer(corpus.tokenizer), MAX_LENGTH)
    measured = {name: _measure(SHAPES[name], tokens, corpus.tokenizer, rows, chosen) for name in chosen.sizes}
    facts = {"gpu": torch.cuda.get_device_name(), "size": chosen.sizes[0], "sizes": _table(measured)}
    report("gpu_pretrain", measured[chosen.sizes[0]], torch.get_num_threads(), facts)


def _measure(shape: Shape, tokens: Path, tokenizer: Path, rows: datasets.Dataset, chosen: argparse.Namespace) -> Rounds:
    steps = chosen.steps
    full = {"max_length": MAX_LENGTH, "batch_tokens": shape.rows * MAX_LENGTH, "log_every_steps": steps // 2}
    params = ours.as_run_mlm(_model(shape), steps, 1e-4, {**full, "precision": "bf16", "compile": True})
    opened = run_mlm.open_tokenizer(tokenizer)
    with ours.prepared(params, 0, tokens, tokenizer) as job:
        theirs = AutoModelForMaskedLM.from_config(job.model.config)

        def theirs_rate(number: int) -> float:
            meter = run_mlm.train(
                theirs,
                rows,
                opened,
                mask_rate=ours.MASK_RATE,
                num_warmup_steps=steps // 2,
                per_device_train_batch_size=shape.rows,
                max_steps=steps,
                seed=number,
                bf16=True,
                tf32=True,
                torch_compile=True,
            )
            return meter.tokens_per_second

        return alternate(lambda number: ours.tokens_per_second(job, number), theirs_rate, chosen.rounds, "tokens/s")


def _model(shape: Shape) -> dict[str, Any]:
    widths = {
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_attention_heads": shape.hidden_size // 64,
        "intermediate_size": 4 * shape.hidden_size,
    }
    return ours.BERT_TINY | widths


def flops_per_token(shape: Shape) -> float:
    """Return the training FLOPs per token of a full row (Kaplan et al. 2020, section 2.1), the head at targets only."""
    width, depth = shape.hidden_size, shape.num_hidden_layers
    layer = 12 * width * width + 2 * MAX_LENGTH * width
    head = ours.MASK_RATE * (width * width + width * VOCAB_SIZE)
    return 6 * (depth * layer + head)


def _table(measured: Mapping[str, Rounds]) -> dict[str, dict[str, float | None]]:
    name = torch.cuda.get_device_name()
    peak = next((flops for part, flops in PEAK_FLOPS.items() if part in name), None)
    table: dict[str, dict[str, float | None]] = {}
    for size, rounds in measured.items():
        mine, theirs = median(rounds.ours), median(rounds.theirs)
        cost = flops_per_token(SHAPES[size])
        table[size] = {
            "ours": mine,
            "theirs": theirs,
            "ratio": mine / theirs,
            "ours_mfu": mine * cost / peak if peak else None,
            "theirs_mfu": theirs * cost / peak if peak else None,
        }
    return table
