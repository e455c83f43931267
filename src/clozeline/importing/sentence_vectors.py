"""Pooling, prompts and length of a sentence encoder, read from the files of sentence-transformers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from clozeline.errors import ArtifactError
from clozeline.exporting.architectures import facts_in
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
        ArtifactError: the model has modules that the graph does not compute, or its pooling is unclear.
    """
    if published.file(MODULES) is None:
        return None
    modules = [str(module.get("type", "")).rpartition(".")[2] for module in _json(published, MODULES)]
    if unknown := [module for module in modules if module not in _KNOWN]:
        raise _refused(
            published,
            f"{MODULES}: {', '.join(modules)}",
            f"{', '.join(_KNOWN)} alone",
            f"import another model: {unknown[0]} is not exported",
        )
    prompted = _json(published, "config_sentence_transformers.json", {})
    pooling = _json(published, POOLING, {}) if "Pooling" in modules else {}
    prompts = {name: str(text) for name, text in (prompted.get("prompts") or {}).items() if text}
    if prompts and pooling.get("include_prompt") is False:
        raise _refused(
            published,
            f"{POOLING}: include_prompt: false",
            "vectors pooled over the prompt too",
            "import another model: its vectors leave the prompt's tokens out",
        )
    if prompted.get("similarity_fn_name") == "dot" and "Normalize" not in modules:
        raise _refused(
            published,
            "similarity_fn_name: dot, without a module Normalize",
            "vectors that are compared by their cosine: the graph normalizes them to length 1",
            "import the model of the same family that was trained for cosines (often `…-cos-…`)",
        )
    default = prompted.get("default_prompt_name")
    return SentenceVectors(
        pooling=_pooling(published, pooling, hidden_size),
        prompts=prompts,
        default_prompt=default if default in prompts else None,
        max_length=_json(published, "sentence_bert_config.json", {}).get("max_seq_length"),
    )


def _pooling(published: Published, facts: Mapping[str, Any], hidden_size: int) -> str:
    """Return the only pooling that the configuration switches on."""
    on = [name for name, value in facts.items() if name.startswith("pooling_mode_") and value is True]
    modes = facts.get("pooling_mode", [])
    on += [str(mode) for mode in (modes if isinstance(modes, list) else [modes])]
    size = facts.get("word_embedding_dimension", facts.get("embedding_dimension", hidden_size))
    if len(on) != 1 or on[0] not in _MODES or size != hidden_size:
        raise _refused(
            published,
            f"{POOLING}: {', '.join(on) or 'no pooling'}; vectors of {size}, hidden states of {hidden_size}",
            f"one of {', '.join(_MODES)}, and vectors as long as the hidden states",
            "correct the file if you know how the model was trained, or import another model",
        )
    return _MODES[on[0]]


def _json(published: Published, name: str, otherwise: Any = None) -> Any:
    path = published.file(name)
    if path is None:
        return otherwise
    return facts_in(path, kind=list if name == MODULES else dict)


def _refused(published: Published, given: str, expected: str, do: str) -> ArtifactError:
    return ArtifactError(
        f"{published.name}: the vectors of this sentence encoder cannot be computed as it was trained",
        given=given,
        expected=expected,
        do=do,
    )
