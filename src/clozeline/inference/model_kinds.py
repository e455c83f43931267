"""Table of the kinds of model: everything that differs between kinds, from export to HTTP, is in one row.

Objects that need torch or a web server are named as `module:name` and imported on use, because inference needs neither.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pkgutil import resolve_name
from typing import Any, Literal

from clozeline.errors import ArtifactError
from clozeline.inference.answerer import Answerer
from clozeline.inference.classifier import Classifier
from clozeline.inference.completer import Completer
from clozeline.inference.embedder import Embedder
from clozeline.inference.encoder import Encoder
from clozeline.inference.open_model import OpenModel, PerToken
from clozeline.inference.tagger import Tagger

_TENSORS = "clozeline.serving.protocols.tensor_kinds"
_HOUSE = "clozeline.serving.protocols.house"
"""No stage imports these modules, because no output of a stage depends on them."""


@dataclass(frozen=True)
class ModelKind:
    """One kind of model, from the trained model to its answers."""

    architectures: tuple[str, ...]
    """Endings of the name in `architectures` of config.json."""
    head: str
    """Name of the head in the room `encoder`."""
    form: str
    """`module:name` of what the graph computes."""
    exam: str
    """`module:name` of the function that returns the exam, of an open model and a sample."""
    model: type[OpenModel]
    """Class that answers with the graph."""
    tensors: str
    """`module:name` of its tensors in the Open Inference Protocol."""
    invocations: str
    """`module:name` of the function that answers like MLflow's scoring server: records of what a client sent."""
    model_type: str = "embedding"
    """Name of the kind in text-embeddings-inference, where that has it."""
    says: str = ""
    """Description of its answers; empty: its labels."""
    labels: Literal["none", "of a text", "of each token"] = "none"
    """Unit to which a label of the configuration belongs."""
    is_language_model: bool = False
    """Whether the graph predicts tokens: at masks, or after the text."""
    fills_masks: bool = False
    is_always_asked_in_pairs: bool = False

    @property
    def is_per_token(self) -> bool:
        """Whether the graph gives an output for each token."""
        return issubclass(self.model, PerToken)


MODEL_KINDS: Mapping[str, ModelKind] = {
    "fill-mask": ModelKind(
        architectures=("ForMaskedLM",),
        head="mlm",
        form="clozeline.exporting.forms:MASKS",
        exam="clozeline.exporting.exams.of_encoders:masks_exam",
        model=Encoder,
        tensors=f"{_TENSORS}:MASKS",
        invocations=f"{_HOUSE}.fill_mask:records",
        says="a masked language model",
        is_language_model=True,
        fills_masks=True,
    ),
    "text-generation": ModelKind(
        architectures=("ForCausalLM", "LMHeadModel"),
        head="clm",
        form="clozeline.exporting.forms:NEXT_TOKENS",
        exam="clozeline.exporting.exams.of_encoders:next_tokens_exam",
        model=Completer,
        tensors=f"{_TENSORS}:NEXT_TOKENS",
        invocations=f"{_HOUSE}.complete:records",
        says="a causal language model",
        is_language_model=True,
    ),
    "text-classification": ModelKind(
        architectures=("ForSequenceClassification",),
        head="text-classification",
        form="clozeline.exporting.forms:LABELS",
        exam="clozeline.exporting.exams.of_labels:labels_exam",
        model=Classifier,
        tensors=f"{_TENSORS}:LABELS",
        invocations=f"{_HOUSE}.classify:records",
        model_type="classifier",
        labels="of a text",
    ),
    "token-classification": ModelKind(
        architectures=("ForTokenClassification",),
        head="token-classification",
        form="clozeline.exporting.forms:TAGS",
        exam="clozeline.exporting.exams.of_tokens:tags_exam",
        model=Tagger,
        tensors=f"{_TENSORS}:ENTITIES",
        invocations=f"{_HOUSE}.tag:records",
        model_type="token_classifier",
        labels="of each token",
    ),
    "question-answering": ModelKind(
        architectures=("ForQuestionAnswering",),
        head="question-answering",
        form="clozeline.exporting.forms:ENDS",
        exam="clozeline.exporting.exams.of_tokens:answers_exam",
        model=Answerer,
        tensors=f"{_TENSORS}:ANSWERS",
        invocations=f"{_HOUSE}.answer:records",
        model_type="question_answerer",
        says="the span of a context that answers a question",
        is_always_asked_in_pairs=True,
    ),
    "feature-extraction": ModelKind(
        architectures=("Model",),
        head="feature-extraction",
        form="clozeline.exporting.forms:EMBEDDINGS",
        exam="clozeline.exporting.exams.of_pairs:similarity_exam",
        model=Embedder,
        tensors=f"{_TENSORS}:EMBEDDINGS",
        invocations=f"{_HOUSE}.embed:records",
        says="a vector for each text",
    ),
}
"""Kinds of model, keyed by `task` of the manifest: the name of the task on the model hub, if it has one there."""


def kind_of(task: str) -> ModelKind:
    """Return the kind of model for a manifest's task.

    Raises:
        ArtifactError: the task is unknown.
    """
    if task not in MODEL_KINDS:
        raise ArtifactError(
            f"this version of Clozeline knows no models for the task {task}, only {', '.join(MODEL_KINDS)}",
            do="export the model again with this version (`dvc repro`)",
        )
    return MODEL_KINDS[task]


@cache
def resolved(name: str) -> Any:
    """Import the object that a row names as `module:name`."""
    return resolve_name(name)
