"""Loading of any trained language model, by this project or by others: a folder, or a name on the hub."""

from pathlib import Path

from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from clozeline.encoder.checkpoints import Checkpoint, find_checkpoint, opened
from clozeline.encoder.families import FORMS, LanguageHead
from clozeline.encoder.own_config import OWN_MODEL_TYPE
from clozeline.errors import ArtifactError
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
    checkpoint, facts = find_checkpoint(name, revision)
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
