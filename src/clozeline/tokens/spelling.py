"""How a tokenizer writes its tokens: which id is which text, and which tokens continue the word before them.

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
    """A token continues a word where the token before it can be continued, it can continue one, and they touch."""

    ids: Mapping[str, int]
    """Of every token, added ones too, as the vocabulary spells them."""
    ends: Ends[Flags]
    """Indexed by token id."""
    marks_words: bool
    """Whether the vocabulary tells a word's first token from the others at all."""

    @classmethod
    def open(cls, tokenizer: Path) -> Self:
        """Read the tokenizer.json of the folder `tokenizer`.

        Raises:
            ArtifactError: it is missing or damaged.
        """
        path = tokenizer / _TOKENIZER_FILE
        try:
            return cls.of(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, KeyError) as error:
            raise ArtifactError(
                f"{path} cannot be read",
                given=str(error) or type(error).__name__,
                expected="a whole tokenizer.json",
                do="rebuild it: `dvc repro --force tokenize`",
            ) from error

    @classmethod
    def of(cls, tokenizer_json: str) -> Self:
        """From the text of a tokenizer.json."""
        description = json.loads(tokenizer_json)
        ids = _vocabulary(description["model"])
        added = {token["content"]: token["id"] for token in description["added_tokens"]}
        read = reader_for(description, ids)
        ends = {id_: read(token) for token, id_ in ids.items()} if read else {}
        for id_ in added.values():  # cut out of a text before its words are
            ends.pop(id_, None)
        size = max([*ids.values(), *added.values()]) + 1
        return cls({**ids, **added}, _table(ends, size), marks_words=read is not None)

    def continues_word(self, input_ids_N: Ids, follows_N: Flags) -> Flags:
        """Whether each token belongs to the word of the token before it.

        Args:
            input_ids_N: token ids in reading order.
            follows_N: whether the token before it in the array is also the one before in the document.
        """
        # A token that is nothing but the rest of a character ends as the token that began the character.
        begins_N = ~self.ends.is_rest_of_character[input_ids_N]
        head_N = np.maximum.accumulate(np.where(begins_N, np.arange(len(input_ids_N)), 0))
        can_be_continued_N = self.ends.can_be_continued[input_ids_N[head_N]]
        continues_N = self.ends.can_continue[input_ids_N] & follows_N
        continues_N[1:] &= can_be_continued_N[:-1]
        return continues_N | (self.ends.begins_in_character[input_ids_N] & follows_N)


def _vocabulary(model: Mapping[str, Any]) -> dict[str, int]:
    """Unigram lists its pieces with their scores, in the order of their ids; the others map token to id."""
    if isinstance(model["vocab"], list):
        return {token: id_ for id_, (token, _) in enumerate(model["vocab"])}
    return dict(model["vocab"])


def _table(ends: Mapping[int, Ends[bool]], size: int) -> Ends[Flags]:
    table = np.zeros((len(Ends._fields), size), dtype=bool)
    if ends:
        table[:, list(ends)] = np.array(list(ends.values()), dtype=bool).T
    return Ends(*table)
