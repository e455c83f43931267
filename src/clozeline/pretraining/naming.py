"""Fingerprint of a training run: a hash of everything that its result depends on. It names the folder of the
checkpoints."""

from importlib.metadata import version
from pathlib import Path

import torch

from clozeline.encoder.own import sources_of
from clozeline.language_modelling.language_model import LanguageModel
from clozeline.params import PretrainParams
from clozeline.pretraining.starting import sources_of_start
from clozeline.storage.fingerprints import code_of, fingerprint
from clozeline.tokens.info import INFO_NAME, documents_path
from clozeline.training.precision import Precision

CODE = (
    "encoder",
    "language_modelling",
    "pretraining",
    "tokenizer/vocabulary",
    "tokens",
    "training",
    "words/numbers",
)
"""Folders and files of the package that decide the result: the code dependencies of the stage in dvc.yaml."""
NOT_OF_THE_RESULT = {"checkpoint_every_steps", "num_checkpoints", "num_workers"}
"""Knobs that do not affect the result; the stage in dvc.yaml does not list them as params."""


def name_of_training(
    params: PretrainParams, seed: int, tokens: Path, total_steps: int, model: LanguageModel, precision: Precision
) -> str:
    """Return the fingerprint.

    It covers the version of transformers, the files that define your own encoder, and the files of the model that
    training starts from; of a model on the hub `params.start_revision`, which is a commit.
    """
    facts = {
        "params": params.model_dump(exclude=NOT_OF_THE_RESULT),
        "seed": seed,
        "total_steps": total_steps,
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "device": precision.device.type,
        "precision": precision.name,
        "num_threads": torch.get_num_threads() if precision.device.type == "cpu" else None,
    }
    documents = [path for path in [documents_path(tokens, "train")] if path.is_file()]
    of_start = sources_of_start(params.start)
    return fingerprint(facts, [tokens / INFO_NAME, *documents, *code_of(CODE), *sources_of(model), *of_start])
