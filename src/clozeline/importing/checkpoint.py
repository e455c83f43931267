"""What a published checkpoint is, and every reason not to import it, found before anything is converted."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer

from clozeline.artifacts.export.manifest import Task
from clozeline.encoder.checkpoints import Checkpoint
from clozeline.encoder.stock_classes import longest_row_of
from clozeline.errors import ArtifactError
from clozeline.exporting.architectures import NOT_EXPORTED, architectures_in, facts_in
from clozeline.exporting.configurations import FAMILIES
from clozeline.exporting.trained import tokenizer_of_vocabulary
from clozeline.foreign.published import INDEX, TOKENIZER, WEIGHTS, Published
from clozeline.importing.sentence_vectors import SentenceVectors, sentence_vectors
from clozeline.inference.model_kinds import MODEL_KINDS
from clozeline.machine.memory import available_bytes

_BYTES_PER_WEIGHT_BYTE: Final = 6
"""Estimated memory of a conversion / size of the weights: the model, its copy in transformers, graphs and sessions.
all-MiniLM-L6-v2 (91 MB) peaks at 1.33 GB, libraries included."""
_INSTEAD: Final[Mapping[str, str]] = MappingProxyType(
    {
        "deberta": "microsoft/deberta-v3-base, or a model trained from it",
        "longformer": "answerdotai/ModernBERT-base, which reads 8,192 tokens",
        "xlm-roberta-xl": "FacebookAI/xlm-roberta-large, or a model trained from it",
    }
)
"""Family that is not exported → the next one that is."""
_SETTINGS: Final = "tokenizer_config.json"
_CAPITAL: Final = re.compile("[A-Z][a-z]+")
_MANY: Final = 100
"""One token of so many is a word with a capital: the vocabulary is one of cased text."""
_NO_LABEL: Final = re.compile(r"LABEL_\d+")
_ENTAILMENT: Final = "entailment"
_PAIR_MARKS: Final = ("reads_pairs", "sentence_transformers", "sbert_ce_default_activation_function")
_EMBEDDING: Final = "feature-extraction"
_MASKS: Final = "fill-mask"
_WITH_TWO_HEADS: Final = ("AlbertForPreTraining", "BertForPreTraining", "BigBirdForPreTraining")
"""Architectures with the head of masks and one for pairs of sentences, which is left out."""


@dataclass(frozen=True)
class Described:
    """Facts of a checkpoint that can be imported."""

    task: Task
    family: str
    vectors: SentenceVectors
    max_length: int
    labels: tuple[str, ...]
    reads_pairs: bool

    @property
    def tells_entailment(self) -> bool:
        """Whether it says if its second text follows from the first: zero-shot classification asks that."""
        return self.reads_pairs and _names_entailment(self.labels)


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
        raise ArtifactError(
            f"{published.name} cannot be imported: it has no config.json",
            do="correct the path: a model has config.json, model.safetensors and tokenizer.json",
        )
    facts_in(published.file("config.json") or Path())  # refuses a damaged one, of which transformers tells less
    config = Checkpoint(published.name, published.revision).config()
    _check_family(published, config)
    _check_weights(published)
    vectors = sentence_vectors(published, config.hidden_size)
    chosen = _task(published, task, is_sentence_encoder=vectors is not None)
    _check_tokenizer(published, config)
    labels = _labels(published, config, chosen)
    longest = longest_row_of(config)
    vectors = vectors or SentenceVectors()
    says_pairs = _names_entailment(labels) or any(getattr(config, it, None) for it in _PAIR_MARKS)
    if reads_pairs and MODEL_KINDS[chosen].labels != "of a text":
        raise ArtifactError(
            f"{published.name} is for {chosen}: only a classifier reads pairs of texts", do="leave `--pairs` out"
        )
    return Described(
        task=chosen,
        family=config.model_type,
        vectors=vectors if chosen == _EMBEDDING else SentenceVectors(),
        max_length=min(longest, vectors.max_length or longest) if chosen == _EMBEDDING else longest,
        labels=labels,
        reads_pairs=MODEL_KINDS[chosen].labels == "of a text" and (reads_pairs or says_pairs),
    )


def _names_entailment(labels: tuple[str, ...]) -> bool:
    return any(label.lower() == _ENTAILMENT for label in labels)


def _check_family(published: Published, config: Any) -> None:
    kind = config.model_type
    if kind not in FAMILIES:
        other = f", such as {_INSTEAD[kind]}" if kind in _INSTEAD else ""
        raise ArtifactError(
            f"{published.name} cannot be imported: its model_type is {kind}"
            + (f": {NOT_EXPORTED[kind]}" if kind in NOT_EXPORTED else ""),
            do=f"import a model of one of the families {', '.join(FAMILIES)}{other}",
        )


def _check_weights(published: Published) -> None:
    sizes = published.weights()
    size_bytes = sum(sizes.values())
    if not size_bytes:
        raise ArtifactError(
            f"{published.name} has no {WEIGHTS}, whole or in shards with {INDEX}", do="download or save the model again"
        )
    for name in sizes:
        _check_readable(published, name)
    needed, free = _BYTES_PER_WEIGHT_BYTE * size_bytes, available_bytes()
    if needed > free:
        raise ArtifactError(
            f"{published.name} has {size_bytes / 1e9:.1f} GB of weights, to convert in {needed / 1e9:.1f} GB of memory;"
            f" {free / 1e9:.1f} GB are available here",
            do="import a smaller model, or import this one on a machine with more memory",
        )


def _check_readable(published: Published, name: str) -> None:
    """Refuse a damaged file of weights in a folder; on the hub they are downloaded later."""
    file = Path(published.name) / name
    if file.suffix != ".safetensors" or not file.is_file():
        return
    try:
        with safe_open(file, framework="numpy") as weights:
            weights.keys()
    except SafetensorError as error:
        raise ArtifactError(
            f"{name} of {published.name} is no safetensors: {error}", do="download or save the model again"
        ) from error


def _task(published: Published, asked: str | None, *, is_sentence_encoder: bool) -> Task:
    """Return the kind of model: as asked, a sentence encoder, or by the head in config.json."""
    names, ours = architectures_in(published.file("config.json") or Path())
    ours += [_MASKS for name in names if name in _WITH_TWO_HEADS]
    # Without a name, only the weights say which head there is: the stage refuses a model that lacks some.
    known = list(MODEL_KINDS) if not names else [*ours, *([] if _EMBEDDING in ours else [_EMBEDDING])]
    if asked is None:
        if is_sentence_encoder:
            return _EMBEDDING
        if len(ours) == 1:
            return ours[0]
        raise ArtifactError(
            f"{published.name} ({', '.join(names) or 'no architectures'}) has no head for {', '.join(MODEL_KINDS)}",
            do=f"import the encoder alone, `--task {_EMBEDDING}`"
            + (f", or its head: `--task {_MASKS}`" if not names else ""),
        )
    if asked not in known:
        raise ArtifactError(
            f"{published.name} ({', '.join(names) or 'no architectures'}): `--task {asked}` must be {', '.join(known)}",
            do="leave `--task` out; a head that the model lacks has to be fine-tuned (docs/tasks.md)",
        )
    return asked


def _check_tokenizer(published: Published, config: Any) -> None:
    if settings := published.file(_SETTINGS):
        facts_in(settings)
    tokenizer = _tokenizer(published)
    largest = max(tokenizer.get_vocab().values(), default=0)
    if largest >= config.vocab_size:
        raise ArtifactError(
            f"{published.name}: the tokenizer has ids up to {largest:,}, the weights {config.vocab_size:,} tokens",
            do="put the tokenizer.json that the model was trained with beside the weights",
        )


def _tokenizer(published: Published) -> Tokenizer:
    file = published.file(TOKENIZER)
    if file is None:
        made = tokenizer_of_vocabulary(published.name, published.revision)
        _check_case(published, made)
        return made
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises nothing narrower
        raise ArtifactError(
            f"{TOKENIZER} of {published.name} cannot be opened: {error}", do="download it again"
        ) from error


def _check_case(published: Published, made: Tokenizer) -> None:
    """Refuse a vocabulary with upper case whose texts would be lowercased because no file says otherwise."""
    settings = published.file(_SETTINGS)
    is_said = settings is not None and "do_lower_case" in facts_in(settings)
    is_lowered = made.normalizer is not None and made.normalizer.normalize_str("A") == "a"
    capitals = [token for token in made.get_vocab() if _CAPITAL.fullmatch(token)]
    if is_lowered and not is_said and len(capitals) > made.get_vocab_size() / _MANY:
        raise ArtifactError(
            f"{published.name} lowercases texts, so that it misses {len(capitals):,} words such as {min(capitals)}:"
            f" {_SETTINGS} does not say `do_lower_case`",
            do=f'write {{"do_lower_case": false}} into {_SETTINGS} of a copy, then import the copy',
        )


def _labels(published: Published, config: Any, task: str) -> tuple[str, ...]:
    if MODEL_KINDS[task].labels == "none":
        return ()
    names: Mapping[int, str] = config.id2label
    labels = tuple(str(names[place]) for place in sorted(names))
    if len(labels) > 1 and all(_NO_LABEL.fullmatch(label) for label in labels):
        raise ArtifactError(
            f"{published.name}: `id2label` of config.json has labels without a meaning: {', '.join(labels[:3])}, …",
            do='write them there in a copy: "id2label": {"0": "negative", "1": "positive"}, then import the copy',
        )
    return labels
