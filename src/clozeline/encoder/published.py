"""Any trained language model, ours or somebody else's, opened to be asked as it is: a folder, or a name on the hub."""

from pathlib import Path
from typing import Any

from transformers import PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from clozeline.encoder import language_model
from clozeline.encoder.checkpoints import Checkpoint, opened
from clozeline.encoder.encoders import OWN_ARCHITECTURE
from clozeline.encoder.families import FORMS, Objective
from clozeline.encoder.language_model import LanguageModel
from clozeline.errors import ArtifactError
from clozeline.tokenizer.foreign import inspect_model
from clozeline.tokenizer.hub import asking_hub


def open_published(name: str) -> LanguageModel:
    """The model saved as `name`, in single precision, with the head that it was saved with.

    Beside the families that can be trained here, every other that transformers has a masked head for.

    Raises:
        ArtifactError: there is no such model, it is damaged, or it has no trained head that names tokens.
    """
    checkpoint = Checkpoint(name)
    facts = _facts(checkpoint)
    architecture = (facts.get("architectures") or ["none"])[0]
    objective, _ = FORMS.get(architecture, (None, None))
    if architecture == OWN_ARCHITECTURE or (objective == "rtd" and checkpoint.is_folder):
        return language_model.load(Path(name))
    if objective is not None and objective != "rtd":
        return _loaded(checkpoint, objective)
    if facts.get("model_type") in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        return _loaded(checkpoint, "mlm")
    raise ArtifactError(
        f"{name} holds a model that names no tokens",
        given=f"model_type {facts.get('model_type', 'none')}, architecture {architecture}",
        expected="a masked language model, or a causal one of a family that is trained here",
        do="give another model",
    )


def _facts(checkpoint: Checkpoint) -> dict[str, Any]:
    try:
        with asking_hub(checkpoint.name):
            facts, _ = PretrainedConfig.get_config_dict(**checkpoint.where)
    except OSError as error:
        raise ArtifactError(
            f"{checkpoint.name}: there is no such model",
            given="no config.json in it" if checkpoint.is_folder else "no folder here; the hub has none, or no answer",
            expected="a folder with config.json and weights, or a name on the hub and a network",
            do=f"check the name; where there is a network, `hf download {checkpoint.name} --local-dir FOLDER`",
        ) from error
    inspect_model(checkpoint.name, checkpoint.revision)
    return dict(facts)


def _loaded(checkpoint: Checkpoint, objective: Objective) -> LanguageModel:
    model, missing = opened(checkpoint, checkpoint.config(), objective)
    if missing:
        raise ArtifactError(
            f"{checkpoint.name} was saved without the weights of a head that names tokens",
            given=f"{len(missing)} weights are missing, such as {missing[0]}",
            expected="a masked language model with its head: what it says of hidden tokens is what is judged",
            do="give one that was pre-trained by masking, or pre-train on from this one (`pretrain.start`)",
        )
    return model.eval()
