"""What a published checkpoint is, and every reason not to import it, found before anything is converted.

Pooling, prompts and length of a sentence encoder are read from the files of sentence-transformers.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, PositiveInt, TypeAdapter, ValidationError
from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer

from clozeline.encoder import architecture, checkpoints, families, layers
from clozeline.exporting import to_onnx, trained
from clozeline.inference.package import MODEL_KINDS
from clozeline.params.model import NOT_EXPORTED
from clozeline.records.package import Task
from clozeline.records.published import INDEX, POOLING, TOKENIZER, WEIGHTS, Published
from clozeline.system.errors import ArtifactError
from clozeline.system.machine import available_bytes

MODULES = "modules.json"
# Key that switches a pooling on, or since version 5 value of `pooling_mode` → our name.
_MODES: Mapping[str, str] = {row.switch: name for name, row in layers.POOLINGS.items()} | {
    name: name for name in layers.POOLINGS
}
# Modules whose work the graph does.
_KNOWN = ("Transformer", "Pooling", "Normalize")
# Estimated memory of a conversion / size of the weights: the model, its copy in transformers, graphs and sessions.
# all-MiniLM-L6-v2 (91 MB) peaks at 1.33 GB, libraries included.
_BYTES_PER_WEIGHT_BYTE = 6
# Family that is not exported → the next one that is.
_INSTEAD: Mapping[str, str] = {
    "deberta": "microsoft/deberta-v3-base, or a model trained from it",
    "longformer": "answerdotai/ModernBERT-base, which reads 8,192 tokens",
    "xlm-roberta-xl": "FacebookAI/xlm-roberta-large, or a model trained from it",
}
_SETTINGS = "tokenizer_config.json"
_CAPITAL = re.compile("[A-Z][a-z]+")
# One token of so many is a word with a capital: the vocabulary is one of cased text.
_MANY = 100
_NO_LABEL = re.compile(r"LABEL_\d+")
_ENTAILMENT = "entailment"
_PAIR_MARKS = ("reads_pairs", "sentence_transformers", "sbert_ce_default_activation_function")
_EMBEDDING = "feature-extraction"
_MASKS = "fill-mask"
# Architectures with the head of masks and, in BERT, ALBERT and BigBird, one for pairs of sentences, which is left out;
# transformers has no such class of the other families.
_WITH_TWO_HEADS = {
    families.layout.class_name_of(row.forms["mlm"], "rtd")
    for row in families.FAMILIES.values()
    if "rtd" not in row.forms
}


class _File(BaseModel):
    """The keys of a file that are read; their types are checked, and other keys are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)


class _Module(_File):
    type: str


class _Prompted(_File):
    prompts: dict[str, str | None] | None = None
    default_prompt_name: str | None = None
    similarity_fn_name: str | None = None


class _Length(_File):
    max_seq_length: PositiveInt | None = None


_Form = TypeVar("_Form")


@dataclass(frozen=True)
class SentenceVectors:
    """How a published encoder turns a text into a vector."""

    pooling: str = "mean"
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    max_length: int | None = None  # longest text in tokens; None: as its positions allow


def sentence_vectors(published: Published, hidden_size: int) -> SentenceVectors | None:
    """Return what the files of sentence-transformers say; None: the model has none.

    Raises:
        ArtifactError: the model has modules that the graph does not compute, its pooling is unclear, or a key has the
            wrong type.
    """
    if published.file(MODULES) is None:
        return None
    modules = [module.type.rpartition(".")[2] for module in _read(published, MODULES, list[_Module])]
    if unknown := [module for module in modules if module not in _KNOWN]:
        problem = f"{published.name} has the modules {', '.join(modules)} ({MODULES}), not {', '.join(_KNOWN)} alone"
        raise ArtifactError(problem, do=f"import another model: {unknown[0]} is not exported")
    prompted = _read(published, "config_sentence_transformers.json", _Prompted)
    pooling = _read(published, POOLING, dict[str, Any]) if "Pooling" in modules else {}
    prompts = {name: text for name, text in (prompted.prompts or {}).items() if text}
    if prompts and pooling.get("include_prompt") is False:
        problem = f"{published.name} was trained with `include_prompt: false` ({POOLING}), vectors of the text alone"
        raise ArtifactError(problem, do="import another model: its vectors leave the prompt's tokens out")
    if prompted.similarity_fn_name == "dot" and "Normalize" not in modules:
        raise ArtifactError(
            f"{published.name} was trained for dot products (`similarity_fn_name: dot`), not cosines",
            do="import the model of the same family that was trained for cosines (often `…-cos-…`)",
        )
    default = prompted.default_prompt_name
    return SentenceVectors(
        pooling=_pooling(published, pooling, hidden_size),
        prompts=prompts,
        default_prompt=default if default in prompts else None,
        max_length=_read(published, "sentence_bert_config.json", _Length).max_seq_length,
    )


def _pooling(published: Published, facts: Mapping[str, Any], hidden_size: int) -> str:
    """Return the only pooling that the configuration switches on."""
    on = [name for name, value in facts.items() if name.startswith("pooling_mode_") and value is True]
    modes = facts.get("pooling_mode", [])
    on += [str(mode) for mode in (modes if isinstance(modes, list) else [modes])]
    size = facts.get("word_embedding_dimension", facts.get("embedding_dimension", hidden_size))
    if len(on) != 1 or on[0] not in _MODES or size != hidden_size:
        raise ArtifactError(
            f"{published.name} has {', '.join(on) or 'no pooling'} and vectors of {size} ({POOLING}), not one of"
            f" {', '.join(_MODES)} and the hidden states' {hidden_size}",
            do="correct the file if you know how the model was trained, or import another model",
        )
    return _MODES[on[0]]


def _read(published: Published, name: str, form: type[_Form]) -> _Form:
    """Return the content of a file, empty if it is missing, in this form."""
    path, kind = published.file(name), list if name == MODULES else dict
    try:
        return TypeAdapter(form).validate_python({} if path is None else trained.facts_in(path, kind=kind))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "an entry"
        raise trained.damaged(Path(published.name) / name, f"{key}: {first['input']!r}", first["msg"]) from error


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
    trained.facts_in(published.file("config.json") or Path())  # refuses a damaged one, of which transformers tells less
    config = checkpoints.Checkpoint(published.name, published.revision).config()
    _check_family(published, config)
    _check_weights(published)
    vectors = sentence_vectors(published, config.hidden_size)
    chosen = _task(published, task, is_sentence_encoder=vectors is not None)
    _check_tokenizer(published, config)
    labels = _labels(published, config, chosen)
    longest = architecture.longest_row_of(config)
    vectors = vectors or SentenceVectors()
    says_pairs = _names_entailment(labels) or any(getattr(config, it, None) for it in _PAIR_MARKS)
    if reads_pairs and MODEL_KINDS[chosen].labels != "of a text":
        raise ArtifactError(f"{published.name} is for {chosen}: only a classifier reads pairs", do="omit `--pairs`")
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
    if kind not in to_onnx.FAMILIES:
        other = f", such as {_INSTEAD[kind]}" if kind in _INSTEAD else ""
        raise ArtifactError(
            f"{published.name} cannot be imported: its model_type is {kind}"
            + (f": {NOT_EXPORTED[kind]}" if kind in NOT_EXPORTED else ""),
            do=f"import a model of one of the families {', '.join(to_onnx.FAMILIES)}{other}",
        )


def _check_weights(published: Published) -> None:
    sizes = published.weights()
    size_bytes = sum(sizes.values())
    if not size_bytes:
        raise ArtifactError(
            f"{published.name} has no {WEIGHTS}, whole or in shards with {INDEX}", do="download or save the model again"
        )
    for file in (Path(published.name) / name for name in sizes):
        if file.suffix == ".safetensors" and file.is_file():  # on the hub they are downloaded later
            try:
                with safe_open(file, framework="numpy") as weights:
                    weights.keys()
            except SafetensorError as error:
                raise ArtifactError(
                    f"{file.name} of {published.name} is no safetensors: {error}", do="download or save the model again"
                ) from error
    needed, free = _BYTES_PER_WEIGHT_BYTE * size_bytes, available_bytes()
    if needed > free:
        raise ArtifactError(
            f"{published.name} ({size_bytes / 1e9:.1f} GB) takes {needed / 1e9:.1f} GB of memory, and"
            f" {free / 1e9:.1f} GB are free",
            do="import a smaller model, or import this one on a machine with more memory",
        )


def _task(published: Published, asked: str | None, *, is_sentence_encoder: bool) -> Task:
    """Return the kind of model: as asked, a sentence encoder, or by the head in config.json."""
    names, ours = trained.architectures_in(published.file("config.json") or Path())
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
        trained.facts_in(settings)
    tokenizer = _tokenizer(published)
    largest = max(tokenizer.get_vocab().values(), default=0)
    if largest >= config.vocab_size:
        problem = f"{published.name}: the tokenizer has ids up to {largest:,}, the weights {config.vocab_size:,} tokens"
        raise ArtifactError(problem, do="put the tokenizer.json that the model was trained with beside the weights")


def _tokenizer(published: Published) -> Tokenizer:
    file = published.file(TOKENIZER)
    if file is None:
        made = trained.tokenizer_of_vocabulary(published.name, published.revision)
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
    is_said = settings is not None and "do_lower_case" in trained.facts_in(settings)
    is_lowered = made.normalizer is not None and made.normalizer.normalize_str("A") == "a"
    capitals = [token for token in made.get_vocab() if _CAPITAL.fullmatch(token)]
    if is_lowered and not is_said and len(capitals) > made.get_vocab_size() / _MANY:
        raise ArtifactError(
            f"{published.name} lowercases texts, so it misses {len(capitals):,} words such as {min(capitals)}",
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
