"""What the graph of each task gives, as the manifest tells it."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from clozeline.artifacts.manifest import Task, TensorSpec
from clozeline.exporting.likeliest import num_likeliest
from clozeline.exporting.trained import TrainedModel
from clozeline.inference.encoder import TOP_IDS, TOP_SCORES


def outputs_of(trained: TrainedModel) -> tuple[TensorSpec, ...]:
    """The outputs of both graphs, in their order."""
    return _OUTPUTS[trained.task](trained)


def _tensor(name: str, shape: tuple[str | int, ...], meaning: str) -> TensorSpec:
    return TensorSpec(name=name, dtype="float32", shape=shape, meaning=meaning)


def _embedding(trained: TrainedModel) -> TensorSpec:
    meaning = "mean of the last hidden states where attention_mask is 1, divided by its length"
    return _tensor("sentence_embedding", ("batch", trained.model.config.hidden_size), meaning)


def _at_masks(trained: TrainedModel) -> tuple[TensorSpec, ...]:
    vocab_size = trained.model.config.vocab_size
    top = ("masks", num_likeliest(vocab_size))
    meaning = "of the positions whose input id is the mask id, row by row of the batch; before softmax"
    return (
        _tensor("logits", ("masks", vocab_size), meaning),
        _embedding(trained),
        TensorSpec(name=TOP_IDS, dtype="int64", shape=top, meaning="of each mask the likeliest tokens, best first"),
        _tensor(TOP_SCORES, top, "their probabilities, among the whole vocabulary"),
    )


def _of_labels(trained: TrainedModel) -> tuple[TensorSpec, ...]:
    before = "" if trained.label_scores == "none" else f", before {trained.label_scores}"
    return (_tensor("logits", ("batch", len(trained.labels)), f"one for each label{before}"),)


def _of_tags(trained: TrainedModel) -> tuple[TensorSpec, ...]:
    meaning = "one for each tag of each token, before softmax; the first token of a word speaks for it"
    return (_tensor("logits", ("batch", "length", len(trained.labels)), meaning),)


def _of_ends(trained: TrainedModel) -> tuple[TensorSpec, ...]:
    meaning = "that the {} token of the answer is here, before softmax; at the first token of the row: no answer"
    return tuple(
        _tensor(f"{name}_logits", ("batch", "length"), meaning.format(which))
        for name, which in (("start", "first"), ("end", "last"))
    )


_OUTPUTS: Mapping[Task, Callable[[TrainedModel], tuple[TensorSpec, ...]]] = MappingProxyType(
    {
        "fill-mask": _at_masks,
        "feature-extraction": lambda trained: (_embedding(trained),),
        "text-classification": _of_labels,
        "token-classification": _of_tags,
        "question-answering": _of_ends,
    }
)
