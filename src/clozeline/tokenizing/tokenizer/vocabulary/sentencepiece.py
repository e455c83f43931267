"""Vocabularies published as a SentencePiece file alone, without a tokenizer.json.

transformers turns such a file into a fast tokenizer by way of its slow one, which needs the package sentencepiece. Its
converters only read the file, so here they get the few attributes that they need of a slow tokenizer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tokenizers import Tokenizer
from transformers import (
    AlbertTokenizer,
    DebertaV2Tokenizer,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    XLMRobertaTokenizer,
)
from transformers.convert_slow_tokenizer import AlbertConverter, DebertaV2Converter, SpmConverter, XLMRobertaConverter
from transformers.models.auto.tokenization_auto import get_tokenizer_config

from clozeline.records.published import published_file

_NAMED = (*PreTrainedTokenizerFast.SPECIAL_TOKENS_ATTRIBUTES, "model_max_length")
"""Settings that tokenizer_config.json may override."""


@dataclass(frozen=True)
class _Kind:
    file: str
    stock_class: type[PreTrainedTokenizerFast]
    converter: type[SpmConverter]
    defaults: Mapping[str, bool]
    """Attributes that the converter reads, with their values where tokenizer_config.json is silent."""


_KINDS: Mapping[str, _Kind] = MappingProxyType(
    {
        "albert": _Kind(
            "spiece.model", AlbertTokenizer, AlbertConverter, {"do_lower_case": True, "keep_accents": False}
        ),
        "deberta-v2": _Kind(
            "spm.model", DebertaV2Tokenizer, DebertaV2Converter, {"do_lower_case": False, "split_by_punct": False}
        ),
        "xlm-roberta": _Kind("sentencepiece.bpe.model", XLMRobertaTokenizer, XLMRobertaConverter, {}),
    }
)
"""Kinds by `model_type` in config.json."""


class _Described:
    """Stand-in for a slow tokenizer, with what a converter reads of it."""

    def __init__(self, vocab_file: str, settings: Mapping[str, bool]) -> None:
        self.vocab_file = vocab_file
        self.__dict__.update(settings)
        self.ids: Mapping[str, int] = {}

    def convert_tokens_to_ids(self, token: str) -> int:
        return self.ids[token]


@dataclass(frozen=True)
class SentencePieceFile:
    """SentencePiece file of a supported kind of tokenizer."""

    name: str
    """Folder, or name on the hub."""
    revision: str | None
    kind: _Kind
    path: Path

    def converted(self) -> tuple[PreTrainedTokenizerFast, Tokenizer]:
        """Return transformers' configured tokenizer, and a `Tokenizer` with the file's pieces, ids and normalization.

        Raises:
            DecodeError: the file is damaged.
            ImportError: the pieces are merged, not chosen by likelihood, which needs the package sentencepiece.
        """
        given = get_tokenizer_config(self.name, revision=self.revision)
        settings = {key: given.get(key, value) for key, value in self.kind.defaults.items()}
        described = _Described(str(self.path), settings)
        converter = self.kind.converter(described)
        described.ids = {piece: id_ for id_, (piece, _) in enumerate(converter.vocab(converter.proto))}
        named = {key: value for key, value in given.items() if key in _NAMED}
        return self.kind.stock_class(**named), converter.converted()


def find_sentencepiece(name: str, revision: str | None) -> SentencePieceFile | None:
    """Return the SentencePiece file of `name`; None if it has a tokenizer.json, no such file, or another kind of it."""
    if published_file(name, "tokenizer.json", revision) or not published_file(name, "config.json", revision):
        return None
    facts, _ = PretrainedConfig.get_config_dict(name, revision=revision)
    kind = _KINDS.get(facts.get("model_type", ""))
    path = published_file(name, kind.file, revision) if kind else None
    return SentencePieceFile(name, revision, kind, path) if kind and path else None
