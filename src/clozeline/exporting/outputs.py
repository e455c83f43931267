"""What the graph of each task gives, as the manifest tells it."""

from clozeline.artifacts.manifest import TensorSpec
from clozeline.exporting.likeliest import num_likeliest
from clozeline.exporting.trained import TrainedModel
from clozeline.inference.encoder import TOP_IDS, TOP_SCORES
from clozeline.inference.model_kinds import kind_of, resolved


def outputs_of(trained: TrainedModel) -> tuple[TensorSpec, ...]:
    """The outputs of both graphs, in their order."""
    outputs: tuple[TensorSpec, ...] = resolved(kind_of(trained.task).outputs)(trained)
    return outputs


def _tensor(name: str, shape: tuple[str | int, ...], meaning: str) -> TensorSpec:
    return TensorSpec(name=name, dtype="float32", shape=shape, meaning=meaning)


def _embedding(trained: TrainedModel) -> TensorSpec:
    meaning = "mean of the last hidden states where attention_mask is 1, divided by its length"
    return _tensor("sentence_embedding", ("batch", trained.model.config.hidden_size), meaning)


def of_embeddings(trained: TrainedModel) -> tuple[TensorSpec, ...]:
    return (_embedding(trained),)


def at_masks(trained: TrainedModel) -> tuple[TensorSpec, ...]:
    vocab_size = trained.model.config.vocab_size
    top = ("masks", num_likeliest(vocab_size))
    meaning = "of the positions whose input id is the mask id, row by row of the batch; before softmax"
    return (
        _tensor("logits", ("masks", vocab_size), meaning),
        _embedding(trained),
        TensorSpec(name=TOP_IDS, dtype="int64", shape=top, meaning="of each mask the likeliest tokens, best first"),
        _tensor(TOP_SCORES, top, "their probabilities, among the whole vocabulary"),
    )


def of_labels(trained: TrainedModel) -> tuple[TensorSpec, ...]:
    before = "" if trained.label_scores == "none" else f", before {trained.label_scores}"
    return (_tensor("logits", ("batch", len(trained.labels)), f"one for each label{before}"),)


def of_tags(trained: TrainedModel) -> tuple[TensorSpec, ...]:
    meaning = "one for each tag of each token, before softmax; the first token of a word speaks for it"
    return (_tensor("logits", ("batch", "length", len(trained.labels)), meaning),)


def of_ends(trained: TrainedModel) -> tuple[TensorSpec, ...]:
    meaning = "that the {} token of the answer is here, before softmax; at the first token of the row: no answer"
    return tuple(
        _tensor(f"{name}_logits", ("batch", "length"), meaning.format(which))
        for name, which in (("start", "first"), ("end", "last"))
    )
