"""Spelling of a tokenizer's tokens: the id of each token text, and which tokens continue the preceding word.

Shapes: N tokens, V vocabulary.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from clozeline.errors import ArtifactError
from clozeline.tokens.draws import Flags, Ids
from clozeline.tokens.token_ends import Ends, reader_for

_TOKENIZER_FILE = "tokenizer.json"


@dataclass(frozen=True)
class Spelling:
    """Spelling of a vocabulary.

    A token continues a word if it can continue one, the token before it can be continued, and the two touch.
    """

    ids: Mapping[str, int]
    """Id of every token, added ones included, as the vocabulary spells it."""
    ends: Ends[Flags]
    """Flags indexed by token id."""
    marks_words: bool
    """Whether the vocabulary distinguishes the first token of a word from the others."""

    @classmethod
    def open(cls, tokenizer: Path) -> Self:
        """Read the tokenizer.json of the folder `tokenizer`.

        Raises:
            ArtifactError: the file is missing or damaged.
        """
        path = tokenizer / _TOKENIZER_FILE
        try:
            return cls.of(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, KeyError) as error:
            raise ArtifactError(
                f"{path} cannot be read: {str(error) or type(error).__name__}", do="rebuild it: `dvc repro -f tokenize`"
            ) from error

    @classmethod
    def of(cls, tokenizer_json: str) -> Self:
        """Return the spelling given by the text of a tokenizer.json."""
        description = json.loads(tokenizer_json)
        ids = _vocabulary(description["model"])
        added = {token["content"]: token["id"] for token in description["added_tokens"]}
        read = reader_for(description, ids)
        ends = {id_: read(token) for token, id_ in ids.items()} if read else {}
        for id_ in added.values():  # the tokenizer cuts these out of a text before it looks for words
            ends.pop(id_, None)
        size = max([*ids.values(), *added.values()]) + 1
        return cls({**ids, **added}, _table(ends, size), marks_words=read is not None)

    def continues_word(self, input_ids_N: Ids, follows_N: Flags) -> Flags:
        """Return whether each token belongs to the word of the token before it.

        Args:
            input_ids_N: token ids in reading order.
            follows_N: whether the preceding token of the array also precedes it in the document.
        """
        # A token that holds only the rest of a character ends like the token that began the character.
        begins_N = ~self.ends.is_rest_of_character[input_ids_N]
        head_N = np.maximum.accumulate(np.where(begins_N, np.arange(len(input_ids_N)), 0))
        can_be_continued_N = self.ends.can_be_continued[input_ids_N[head_N]]
        continues_N = self.ends.can_continue[input_ids_N] & follows_N
        continues_N[1:] &= can_be_continued_N[:-1]
        return continues_N | (self.ends.begins_in_character[input_ids_N] & follows_N)


def _vocabulary(model: Mapping[str, Any]) -> dict[str, int]:
    """Return the id of each token. Unigram lists its pieces in the order of ids; other models map token to id."""
    if isinstance(model["vocab"], list):
        return {token: id_ for id_, (token, _) in enumerate(model["vocab"])}
    return dict(model["vocab"])


def _table(ends: Mapping[int, Ends[bool]], size: int) -> Ends[Flags]:
    table = np.zeros((len(Ends._fields), size), dtype=bool)
    if ends:
        table[:, list(ends)] = np.array(list(ends.values()), dtype=bool).T
    return Ends(*table)
