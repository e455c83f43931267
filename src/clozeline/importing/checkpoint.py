"""What a published checkpoint is, and every reason not to import it, found before anything is converted."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

from tokenizers import Tokenizer

from clozeline.encoder.checkpoints import Checkpoint
from clozeline.encoder.stock_classes import longest_row_of
from clozeline.errors import ArtifactError
from clozeline.exporting.architectures import NOT_EXPORTED, architectures_in
from clozeline.exporting.configurations import FAMILIES
from clozeline.foreign.published import WEIGHTS, Published
from clozeline.importing.sentence_vectors import SentenceVectors, sentence_vectors
from clozeline.inference.model_kinds import MODEL_KINDS
from clozeline.machine.memory import available_bytes
from clozeline.params.published import PublishedTask

_BYTES_PER_WEIGHT_BYTE: Final = 6
"""Estimated memory of a conversion / size of the weights: the model, its copy in transformers, graphs and sessions.
all-MiniLM-L6-v2 (91 MB) peaks at 1.33 GB, libraries included."""
_NO_LABEL: Final = re.compile(r"LABEL_\d+")
_ENTAILMENT: Final = "entailment"
_PAIR_MARKS: Final = ("reads_pairs", "sentence_transformers", "sbert_ce_default_activation_function")
_EMBEDDING: Final = "feature-extraction"


@dataclass(frozen=True)
class Described:
    """Facts of a checkpoint that can be imported."""

    task: PublishedTask
    family: str
    vectors: SentenceVectors
    max_length: int
    labels: tuple[str, ...]
    reads_pairs: bool


def described(published: Published, task: str | None = None, *, reads_pairs: bool = False) -> Described:
    """Return what a checkpoint is, or refuse it.

    Args:
        task: the kind of model to import; None: the one that the checkpoint names.
        reads_pairs: whether a classifier reads pairs although the checkpoint does not say so.

    Raises:
        ArtifactError: the model cannot be imported; the message says why.
        TransientError: the hub does not answer.
    """
    if published.file("config.json") is None:
        raise refused(
            published, "no config.json", "config.json, model.safetensors and tokenizer.json", "correct the path"
        )
    config = Checkpoint(published.name, published.revision).config()
    _check_family(published, config)
    _check_weights(published)
    vectors = sentence_vectors(published, config.hidden_size)
    chosen = _task(published, task, is_sentence_encoder=vectors is not None)
    _check_tokenizer(published, config)
    labels = _labels(published, config, chosen)
    longest = longest_row_of(config)
    vectors = vectors or SentenceVectors()
    says_pairs = any(label.lower() == _ENTAILMENT for label in labels) or any(
        getattr(config, it, None) for it in _PAIR_MARKS
    )
    return Described(
        task=chosen,
        family=config.model_type,
        vectors=vectors if chosen == _EMBEDDING else SentenceVectors(),
        max_length=min(longest, vectors.max_length or longest) if chosen == _EMBEDDING else longest,
        labels=labels,
        reads_pairs=MODEL_KINDS[chosen].labels == "of a text" and (reads_pairs or says_pairs),
    )


def _check_family(published: Published, config: Any) -> None:
    kind = config.model_type
    if kind not in FAMILIES:
        raise refused(
            published,
            f"model_type {kind}" + (f": {NOT_EXPORTED[kind]}" if kind in NOT_EXPORTED else ""),
            f"a model of one of the families {', '.join(FAMILIES)}",
            "import a model of one of these families",
        )


def _check_weights(published: Published) -> None:
    size_bytes = published.weight_bytes()
    if size_bytes is None:
        raise refused(
            published,
            f"no {WEIGHTS}",
            f"all weights in one file {WEIGHTS}",
            "save it whole: `model.save_pretrained(FOLDER, max_shard_size='100GB')`, then import the folder",
        )
    needed, free = _BYTES_PER_WEIGHT_BYTE * size_bytes, available_bytes()
    if needed > free:
        raise refused(
            published,
            f"weights of {size_bytes / 1e9:.1f} GB, which need about {needed / 1e9:.1f} GB of memory to be converted",
            f"at most the {free / 1e9:.1f} GB that are available here",
            "import a smaller model, or import this one on a machine with more memory",
        )


def _task(published: Published, asked: str | None, *, is_sentence_encoder: bool) -> PublishedTask:
    """Return the kind of model: as asked, a sentence encoder, or by the head in config.json."""
    names, ours = architectures_in(published.file("config.json") or Path())
    known = [*ours, *([] if _EMBEDDING in ours else [_EMBEDDING])]
    if asked is None:
        if is_sentence_encoder:
            return _EMBEDDING
        if len(ours) == 1:
            found: PublishedTask = ours[0]  # type: ignore[assignment]  # the names of MODEL_KINDS
            return found
        raise refused(
            published,
            f"architectures: {', '.join(names) or 'none'}",
            f"a head for one of: {', '.join(get_args(PublishedTask))}",
            f"import the encoder alone: `--task {_EMBEDDING}`",
        )
    if asked not in known:
        raise refused(
            published,
            f"--task {asked}; architectures: {', '.join(names) or 'none'}",
            f"one of: {', '.join(known)}",
            "leave `--task` out; a head that the model lacks has to be fine-tuned (docs/tasks.md)",
        )
    return asked  # type: ignore[return-value]  # one of MODEL_KINDS


def _check_tokenizer(published: Published, config: Any) -> None:
    file = published.file("tokenizer.json")
    if file is None:
        raise refused(
            published,
            "no tokenizer.json",
            "the tokenizer in the form of the library tokenizers",
            "convert it: `AutoTokenizer.from_pretrained(MODEL).save_pretrained(FOLDER)`, then import the folder",
        )
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises nothing narrower
        raise refused(
            published, f"tokenizer.json: {error}", "a tokenizer that can be opened", "download it again"
        ) from error
    largest = max(tokenizer.get_vocab().values(), default=0)
    if largest >= config.vocab_size:
        raise refused(
            published,
            f"a tokenizer with ids up to {largest:,}, weights for {config.vocab_size:,} tokens",
            "the tokenizer that the model was trained with",
            "put the right tokenizer.json beside the weights",
        )


def _labels(published: Published, config: Any, task: str) -> tuple[str, ...]:
    if MODEL_KINDS[task].labels == "none":
        return ()
    names: Mapping[int, str] = config.id2label
    labels = tuple(str(names[place]) for place in sorted(names))
    if len(labels) > 1 and all(_NO_LABEL.fullmatch(label) for label in labels):
        raise refused(
            published,
            f"the labels {', '.join(labels[:3])}, …",
            "labels with a meaning, in `id2label` of config.json",
            'write them there in a copy: "id2label": {"0": "negative", "1": "positive"}, then import the copy',
        )
    return labels


def refused(published: Published, given: str, expected: str, do: str) -> ArtifactError:
    """Return the error for a model that cannot be imported."""
    return ArtifactError(f"{published.name} cannot be imported", given=given, expected=expected, do=do)
