"""Tokenizers as others publish them: a folder, or a name on the hub, in any layout that has a fast version."""

from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer

from clozeline.errors import DataError
from clozeline.tokenizer.hub import asking_hub


def open_published(name: str, revision: str | None = None) -> Any:
    """The fast tokenizer of transformers: from tokenizer.json, from the vocabulary (vocab.txt; vocab.json with
    merges.txt), or from the file of SentencePiece that ALBERT, DeBERTa-v2 and -v3 and XLM-RoBERTa are published with.

    Args:
        name: a folder, or a name on the hub; `revision` is a commit there.

    Raises:
        DataError: there is no such tokenizer, or it has no fast version.
    """
    from google.protobuf.message import DecodeError
    from transformers import AutoTokenizer

    from clozeline.tokenizer.published.sentencepiece import find_sentencepiece

    try:
        with asking_hub(name):
            found = find_sentencepiece(name, revision)
            tokenizer = found.converted() if found else AutoTokenizer.from_pretrained(name, revision=revision)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError, DecodeError) as error:
        raise _not_a_tokenizer(name, str(error).strip().partition("\n")[0]) from error
    if not tokenizer.is_fast:
        raise _not_a_tokenizer(name, f"{type(tokenizer).__name__}, which has no fast version")
    return tokenizer


def vocabulary_of(name: str, revision: str | None) -> Mapping[str, int]:
    """The id of every token of the tokenizer `name`.

    Raises:
        DataError: there is no such tokenizer, or it has no fast version.
    """
    from clozeline.tokenizer.published.sentencepiece import published_file

    path = published_file(name, "tokenizer.json", revision)
    tokenizer = Tokenizer.from_file(str(path)) if path else open_published(name, revision)
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    return vocabulary


def _not_a_tokenizer(name: str, given: str) -> DataError:
    return DataError(
        f"tokenizer `{name}` cannot be used",
        given=given,
        expected="a folder or hub name with a fast tokenizer (one with a tokenizer.json), or what one is made from",
        do="correct `existing`, or set `algorithm` to wordpiece, which trains one; of another kind of "
        "SentencePiece write a tokenizer.json where the package sentencepiece is: "
        f'AutoTokenizer.from_pretrained("{name}").save_pretrained("FOLDER")',
    )
