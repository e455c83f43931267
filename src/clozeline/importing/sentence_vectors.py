"""Pooling, prompts and length of a sentence encoder, read from the files of sentence-transformers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError

from clozeline.errors import ArtifactError
from clozeline.exporting.architectures import damaged, facts_in
from clozeline.foreign.published import POOLING, Published

MODULES: Final = "modules.json"
_MODES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "pooling_mode_mean_tokens": "mean",
        "pooling_mode_cls_token": "cls",
        "pooling_mode_max_tokens": "max",
        "mean": "mean",
        "cls": "cls",
        "max": "max",
    }
)
"""Key that switches a pooling on, or since version 5 value of `pooling_mode` → our name."""
_KNOWN: Final = ("Transformer", "Pooling", "Normalize")
"""Modules whose work the graph does."""


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


_Form = TypeVar("_Form", bound=_File)


@dataclass(frozen=True)
class SentenceVectors:
    """How a published encoder turns a text into a vector."""

    pooling: str = "mean"
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    max_length: int | None = None
    """Longest text in tokens; None: as its positions allow."""


def sentence_vectors(published: Published, hidden_size: int) -> SentenceVectors | None:
    """Return what the files of sentence-transformers say; None: the model has none.

    Raises:
        ArtifactError: the model has modules that the graph does not compute, its pooling is unclear, or a key has the
            wrong type.
    """
    if published.file(MODULES) is None:
        return None
    listed = [_checked(published, MODULES, _Module, module) for module in _json(published, MODULES)]
    modules = [module.type.rpartition(".")[2] for module in listed]
    if unknown := [module for module in modules if module not in _KNOWN]:
        raise ArtifactError(
            f"{published.name} has the modules {', '.join(modules)} ({MODULES}), not {', '.join(_KNOWN)} alone",
            do=f"import another model: {unknown[0]} is not exported",
        )
    prompted = _read(published, "config_sentence_transformers.json", _Prompted)
    pooling = _json(published, POOLING, {}) if "Pooling" in modules else {}
    prompts = {name: text for name, text in (prompted.prompts or {}).items() if text}
    if prompts and pooling.get("include_prompt") is False:
        raise ArtifactError(
            f"{published.name} was trained with `include_prompt: false` ({POOLING}), vectors of the text alone",
            do="import another model: its vectors leave the prompt's tokens out",
        )
    if prompted.similarity_fn_name == "dot" and "Normalize" not in modules:
        raise ArtifactError(
            f"{published.name} was trained for dot products of vectors (`similarity_fn_name: dot`) that the graph"
            " normalizes to length 1",
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
    return _checked(published, name, form, _json(published, name, {}))


def _checked(published: Published, name: str, form: type[_Form], facts: Any) -> _Form:
    try:
        return form.model_validate(facts)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "an entry"
        raise damaged(Path(published.name) / name, f"{key}: {first['input']!r}", first["msg"]) from error


def _json(published: Published, name: str, otherwise: Any = None) -> Any:
    path = published.file(name)
    if path is None:
        return otherwise
    return facts_in(path, kind=list if name == MODULES else dict)
