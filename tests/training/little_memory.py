"""What a test runs in a process of its own, because its memory runs out: a tiny pre-training whose batch is too large;
or, without arguments, oneDNN making kernels.
"""

import json
import sys
from pathlib import Path

import torch
from torch.nn.functional import gelu

from clozeline.params.pretraining import PretrainParams
from clozeline.pretraining import job
from clozeline.training.micro_batches import noting_shortage
from tests.make.processes import at_most_more, with_little_and_with_enough
from tests.training.prepared import changed


def losses(params: PretrainParams, tokens: Path, tokenizer: Path) -> list[float]:
    return [point.loss for point in job.pretrain(params, seed=1, tokens=tokens, tokenizer=tokenizer).state.curve]


def train(params: Path, tokens: Path, tokenizer: Path) -> None:
    large = PretrainParams.model_validate_json(params.read_text(encoding="utf-8"))
    losses(changed(large, batch_tokens=64, steps=1), tokens, tokenizer)
    with_little_and_with_enough(lambda: losses(large, tokens, tokenizer))


def make_kernels() -> None:
    """Make kernels until memory runs out, each number of values needs its own; then one more with enough memory."""
    gelu(torch.ones(1))
    with at_most_more(0), noting_shortage() as shortage:
        for num_values in range(2, 100):
            gelu(torch.ones(num_values))
    json.dump({"told": shortage.requested, "later": gelu(torch.ones(1000)).sum().item()}, sys.stdout)


if __name__ == "__main__":
    train(*map(Path, sys.argv[1:])) if sys.argv[1:] else make_kernels()
