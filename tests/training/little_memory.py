"""What a test runs in a process of its own, because its memory runs out: a tiny pre-training whose batch is too
large.
"""

import sys
from pathlib import Path

from clozeline.params.pretraining import PretrainParams
from clozeline.pretraining import job
from tests.make.processes import with_little_and_with_enough
from tests.training.prepared import changed


def losses(params: PretrainParams, tokens: Path, tokenizer: Path) -> list[float]:
    return [point.loss for point in job.pretrain(params, seed=1, tokens=tokens, tokenizer=tokenizer).state.curve]


def train(params: Path, tokens: Path, tokenizer: Path) -> None:
    large = PretrainParams.model_validate_json(params.read_text(encoding="utf-8"))
    losses(changed(large, batch_tokens=64, steps=1), tokens, tokenizer)
    with_little_and_with_enough(lambda: losses(large, tokens, tokenizer))


if __name__ == "__main__":
    train(*map(Path, sys.argv[1:]))
