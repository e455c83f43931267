"""A tiny pre-training whose batch is too large for the available memory; a test runs it in a process of its own."""

import sys
from pathlib import Path

from clozeline.params.pretraining import PretrainParams
from clozeline.pretraining import job as pretraining
from tests.make.processes import with_little_and_with_enough
from tests.training.prepared import changed


def losses(params: PretrainParams, tokens: Path, tokenizer: Path) -> list[float]:
    trained = pretraining.pretrain(params, seed=1, tokens=tokens, tokenizer=tokenizer)
    return [point.loss for point in trained.state.curve]


def main(params: Path, tokens: Path, tokenizer: Path) -> None:
    large = PretrainParams.model_validate_json(params.read_text(encoding="utf-8"))
    losses(changed(large, batch_tokens=64, steps=1), tokens, tokenizer)
    with_little_and_with_enough(lambda: losses(large, tokens, tokenizer))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
