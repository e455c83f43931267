"""Which training this is: all that its result depends on, as the name of its checkpoints' folder."""

from importlib.metadata import version
from pathlib import Path

import torch

from clozeline.encoder.encoders import sources_of
from clozeline.encoder.language_model import LanguageModel
from clozeline.encoder.starting import commit_of, sources_of_start
from clozeline.params import PretrainParams
from clozeline.tokens.info import INFO_NAME
from clozeline.training.checkpoint import code_of, fingerprint
from clozeline.training.precision import Precision

CODE = (
    "encoder",
    "pretraining",
    "tokenizer/published",
    "tokenizer/special_ids.py",
    "tokens",
    "training",
    "words/numbers",
)
"""Folders and files of the package that decide the result: the code that the stage depends on in dvc.yaml."""
_NOT_OF_THE_RESULT = {"checkpoint_every_steps", "num_checkpoints", "num_workers"}


def name_of_training(
    params: PretrainParams, seed: int, tokens: Path, total_steps: int, model: LanguageModel, precision: Precision
) -> str:
    """Of an encoder of one's own the files that define it are part of it; of stock classes transformers' version is; of
    a model that training goes on from its files, or its commit."""
    facts = {
        "params": params.model_dump(exclude=_NOT_OF_THE_RESULT),
        "seed": seed,
        "total_steps": total_steps,
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "device": precision.device.type,
        "precision": precision.name,
        "num_threads": torch.get_num_threads() if precision.device.type == "cpu" else None,
        "start_commit": commit_of(model),
    }
    return fingerprint(facts, [tokens / INFO_NAME, *code_of(CODE), *sources_of(model), *sources_of_start(params.start)])
