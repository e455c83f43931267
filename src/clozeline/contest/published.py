"""Loading of any trained language model, by this project or by others: a folder, or a name on the hub."""

from pathlib import Path
from typing import Any

from transformers import PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from clozeline.encoder.checkpoints import Checkpoint, opened
from clozeline.encoder.families import FORMS, LanguageHead
from clozeline.encoder.own_config import OWN_MODEL_TYPE
from clozeline.errors import ArtifactError
from clozeline.foreign.hub import asking_hub, pinned
from clozeline.foreign.inspection import inspect_model
from clozeline.language_modelling import language_model
from clozeline.language_modelling.language_model import LanguageModel


def open_published(name: str, family: str | None = None, revision: str | None = None) -> LanguageModel:
    """Load the model saved as `name`, in single precision, with the head that it was saved with.

    The model can be of a family that can be trained here, or of any architecture with a masked head in transformers.

    Args:
        family: see `language_model.load`.
        revision: a state of a name on the hub.

    Raises:
        ArtifactError: the model is missing, damaged, built by code that is not `family`, or without a trained head that
            predicts tokens.
    """
    checkpoint, facts = _found(name, revision)
    inspect_model(name, checkpoint.revision)
    architecture = (facts.get("architectures") or ["none"])[0]
    head, _ = FORMS.get(architecture, (None, None))
    if checkpoint.is_folder and (facts.get("model_type") == OWN_MODEL_TYPE or head == "rtd"):
        return language_model.load(Path(name), family)
    if head is not None and head != "rtd":
        return _loaded(checkpoint, head)
    if facts.get("model_type") in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        return _loaded(checkpoint, "mlm")
    raise ArtifactError(
        f"{name} holds a model that does not predict tokens",
        given=f"model_type {facts.get('model_type', 'none')}, architecture {architecture}",
        expected="a masked language model, or a causal one of a family that Clozeline trains",
        do="give another model",
    )


def published_config(name: str) -> Any:
    """Return the configuration of the model `name`. Its weights are neither inspected nor downloaded.

    Raises:
        ArtifactError: there is no such model, it asks for code of its own, or transformers does not know its class.
    """
    checkpoint, _ = _found(name, None)
    return checkpoint.config(has_weights=False)


def _found(name: str, revision: str | None) -> tuple[Checkpoint, dict[str, Any]]:
    try:
        with asking_hub(name):
            checkpoint = Checkpoint(name, pinned(name, revision))
            facts, _ = PretrainedConfig.get_config_dict(**checkpoint.where)
    except OSError as error:
        raise ArtifactError(
            f"{name}: there is no such model",
            given="no config.json in it" if Path(name).is_dir() else "no folder, and none on the hub, or no answer",
            expected="a folder with config.json and weights, or a name on the hub and a network",
            do=f"check the name; with a network, run `hf download {name} --local-dir FOLDER`",
        ) from error
    return checkpoint, dict(facts)


def _loaded(checkpoint: Checkpoint, head: LanguageHead) -> LanguageModel:
    model, missing = opened(checkpoint, checkpoint.config(), head)
    if missing:
        raise ArtifactError(
            f"{checkpoint.name} was saved without the weights of a head that predicts tokens",
            given=f"{len(missing)} weights are missing, such as {missing[0]}",
            expected="a masked language model with its head, whose predictions of hidden tokens are evaluated",
            do="give a model that was pre-trained by masking, or pre-train this one further (`start`)",
        )
    return model.eval()
