"""Published tokenizers: a folder or a hub name, in any layout that has a fast version.

Some are published as a SentencePiece file alone, without a tokenizer.json. transformers turns such a file into a fast
tokenizer by way of its slow one, which needs the package sentencepiece. Its converters only read the file, so here they
get the few attributes that they need of a slow tokenizer.
"""

from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer

from clozeline.records.published import asking_hub, inspect_settings, pinned, published_file
from clozeline.system.errors import DataError

TOKENIZER_FILE = "tokenizer.json"


# `model_type` in config.json → class of transformers, and the attributes that its converter reads, with their values
# where tokenizer_config.json is silent.
_SENTENCEPIECE_KINDS: Mapping[str, tuple[str, Mapping[str, bool]]] = {
    "albert": ("AlbertTokenizer", {"do_lower_case": True, "keep_accents": False}),
    "deberta-v2": ("DebertaV2Tokenizer", {"do_lower_case": False, "split_by_punct": False}),
    "xlm-roberta": ("XLMRobertaTokenizer", {}),
}


def open_published(name: str, revision: str | None = None) -> Any:
    """Return a `PreTrainedTokenizerFast`.

    It is read from tokenizer.json, from the vocabulary (vocab.txt; vocab.json with merges.txt), or from the
    SentencePiece file with which ALBERT, DeBERTa-v2 and -v3 and XLM-RoBERTa are published. Its roles (`mask_token`, …)
    are those of the class in transformers. Its rules are those of the file: from version 5 on, many classes of
    transformers take only the vocabulary from tokenizer.json, and rebuild normalization and pre-tokenization.

    Args:
        name: a folder, or a name on the hub; `revision` is a commit there.

    Raises:
        ArtifactError: the tokenizer needs code that is not in transformers.
        DataError: the tokenizer does not exist or has no fast version.
    """
    from google.protobuf.message import DecodeError
    from transformers import AutoTokenizer

    try:
        with asking_hub(name):
            revision = pinned(name, revision)
            inspect_settings(name, revision)
            found, file = _opened_sentencepiece(name, revision), published_file(name, TOKENIZER_FILE, revision)
            if found:
                return _with_rules(*found)
            stock = AutoTokenizer.from_pretrained(name, revision=revision, trust_remote_code=False)
            if file:
                return _with_rules(stock, Tokenizer.from_file(str(file)))
            # Without a vocabulary, a class of transformers builds a tokenizer of five special tokens.
            if not any(published_file(name, known, revision) for known in stock.vocab_files_names.values()):
                raise _not_a_tokenizer(name, f"none of {', '.join(stock.vocab_files_names.values())}")
            if stock.is_fast:
                return _with_rules(stock, stock.backend_tokenizer)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError, DecodeError) as error:
        raise _not_a_tokenizer(name, str(error).strip().partition("\n")[0]) from error
    raise _not_a_tokenizer(name, f"{type(stock).__name__}, which has no fast version")


class _Described:
    """Stand-in for a slow tokenizer, with what a converter reads of it."""

    def __init__(self, vocab_file: str, settings: Mapping[str, bool]) -> None:
        self.vocab_file = vocab_file
        self.__dict__.update(settings)
        self.ids: Mapping[str, int] = {}

    def convert_tokens_to_ids(self, token: str) -> int:
        return self.ids[token]


def _opened_sentencepiece(name: str, revision: str | None) -> tuple[Any, Tokenizer] | None:
    """Return transformers' configured tokenizer, and a `Tokenizer` with the file's pieces, ids and normalization.

    None: `name` has a tokenizer.json, no SentencePiece file, or another kind of it.

    Raises:
        DecodeError: the file is damaged.
        ImportError: the pieces are merged, not chosen by likelihood, which needs the package sentencepiece.
    """
    import transformers
    from transformers.convert_slow_tokenizer import SLOW_TO_FAST_CONVERTERS
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    if published_file(name, TOKENIZER_FILE, revision) or not published_file(name, "config.json", revision):
        return None
    facts, _ = transformers.PretrainedConfig.get_config_dict(name, revision=revision)
    named, defaults = _SENTENCEPIECE_KINDS.get(facts.get("model_type", ""), ("", {}))
    tokenizer = getattr(transformers, named) if named else None
    path = published_file(name, tokenizer.vocab_files_names["vocab_file"], revision) if tokenizer else None
    if not (tokenizer and path):
        return None
    given = get_tokenizer_config(name, revision=revision)
    described = _Described(str(path), {key: given.get(key, value) for key, value in defaults.items()})
    converter = SLOW_TO_FAST_CONVERTERS[named](described)
    described.ids = {piece: id_ for id_, (piece, _) in enumerate(converter.vocab(converter.proto))}
    known = (*transformers.PreTrainedTokenizerFast.SPECIAL_TOKENS_ATTRIBUTES, "model_max_length")
    settings = {key: given[key] for key in given if key in known}
    return tokenizer(**settings), converter.converted()


def _with_rules(stock: Any, rules: Tokenizer) -> Any:
    from transformers import PreTrainedTokenizerFast

    roles = {role: token for role, token in stock._special_tokens_map.items() if token is not None}
    return PreTrainedTokenizerFast(
        tokenizer_object=rules,
        **roles,
        model_max_length=stock.model_max_length,
        model_input_names=stock.model_input_names,
        clean_up_tokenization_spaces=stock.clean_up_tokenization_spaces,
    )


def vocabulary_of(name: str, revision: str | None) -> Mapping[str, int]:
    """Return the id of every token of the tokenizer `name`.

    Raises:
        DataError: the tokenizer does not exist or has no fast version.
    """
    revision = pinned(name, revision)
    path = published_file(name, TOKENIZER_FILE, revision)
    tokenizer = Tokenizer.from_file(str(path)) if path else open_published(name, revision)
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    return vocabulary


def _not_a_tokenizer(name: str, given: str) -> DataError:
    return DataError(
        f"tokenizer `{name}` cannot be used: {given}",
        do="set `existing` to a folder or hub name with a tokenizer.json, or train one; SentencePiece is converted by"
        f' `AutoTokenizer.from_pretrained("{name}").save_pretrained("FOLDER")` where sentencepiece is installed',
    )
