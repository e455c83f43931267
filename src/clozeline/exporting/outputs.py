"""Outputs of the graph of each kind of model, as described in the manifest."""

from clozeline.artifacts.export.manifest import TensorSpec
from clozeline.exporting.likeliest import num_likeliest
from clozeline.exporting.trained import TrainedModel
from clozeline.inference.language_model import TOP_IDS, TOP_SCORES
from clozeline.inference.model_kinds import kind_of, resolved


def outputs_of(trained: TrainedModel) -> tuple[TensorSpec, ...]:
    """Return the outputs of the fp32 and the INT8 graph, in order."""
    outputs: tuple[TensorSpec, ...] = resolved(kind_of(trained.task).outputs)(trained)
    return outputs


def _tensor(name: str, shape: tuple[str | int, ...], meaning: str) -> TensorSpec:
    return TensorSpec(name=name, dtype="float32", shape=shape, meaning=meaning)


def _embedding(trained: TrainedModel) -> TensorSpec:
    meaning = "mean of the last hidden states where attention_mask is 1, normalized to length 1"
    return _tensor("sentence_embedding", ("batch", trained.model.config.hidden_size), meaning)


def of_embeddings(trained: TrainedModel) -> tuple[TensorSpec, ...]:
    return (_embedding(trained),)


def at_masks(trained: TrainedModel) -> tuple[TensorSpec, ...]:
    return _of_tokens(trained, "masks", "at each mask, row by row of the batch")


def at_end(trained: TrainedModel) -> tuple[TensorSpec, ...]:
    return _of_tokens(trained, "batch", "after the last token of each text")


def _of_tokens(trained: TrainedModel, axis: str, where: str) -> tuple[TensorSpec, ...]:
    vocab_size = trained.model.config.vocab_size
    top = (axis, num_likeliest(vocab_size))
    return (
        _tensor("logits", (axis, vocab_size), f"one for each token of the vocabulary {where}, before softmax"),
        _embedding(trained),
        TensorSpec(name=TOP_IDS, dtype="int64", shape=top, meaning=f"the likeliest tokens {where}, best first"),
        _tensor(TOP_SCORES, top, "probabilities of top_ids over the whole vocabulary"),
    )


def of_labels(trained: TrainedModel) -> tuple[TensorSpec, ...]:
    before = "" if trained.label_scores == "none" else f", before {trained.label_scores}"
    return (_tensor("logits", ("batch", len(trained.labels)), f"one for each label{before}"),)


def of_tags(trained: TrainedModel) -> tuple[TensorSpec, ...]:
    meaning = "one for each tag at each token, before softmax; the first token of a word decides its tag"
    return (_tensor("logits", ("batch", "length", len(trained.labels)), meaning),)


def of_ends(trained: TrainedModel) -> tuple[TensorSpec, ...]:
    meaning = "one for each token as the {} token of the answer, before softmax; the row's first token means no answer"
    return tuple(
        _tensor(f"{name}_logits", ("batch", "length"), meaning.format(which))
        for name, which in (("start", "first"), ("end", "last"))
    )
