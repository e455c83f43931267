"""Comparison of a trained model's vocabulary with the tokens that it will be trained on."""

import logging
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from clozeline.encoder.families import TokenIds
from clozeline.encoder.own import OwnModel
from clozeline.errors import ArtifactError, DataError
from clozeline.tokenizer.vocabulary.opening import vocabulary_of

_LOG = logging.getLogger(__name__)
_TOKENIZER = "tokenizer.json"
_MOST_NEW_TOKENS = 16
"""Special tokens that a tokenizer may have gained, such as [MASK] and [PAD]; more mean another vocabulary."""
_MOST_UNUSED_ROWS = 127
"""Published tables are padded to a multiple of 64 or 128 rows."""


def check_tokens(name: str, revision: str | None, tokenizer: Path) -> None:
    """Check that every token of the checkpoint has the same id here. If it has no tokenizer to compare, only warn.

    Raises:
        ArtifactError: a token differs.
    """
    try:
        theirs = vocabulary_of(name, revision)
    except DataError as error:
        _LOG.warning("%s: its tokenizer cannot be compared with the one that made the tokens: %s", name, error.cause)
        return
    ours = Tokenizer.from_file(str(tokenizer / _TOKENIZER)).get_vocab()
    for token, number in sorted(theirs.items(), key=lambda item: item[1]):
        if ours.get(token) != number:
            raise ArtifactError(
                f"the tokens were not made with the tokenizer of {name}: {token!r} is {ours.get(token)}, not {number}",
                do=f"tokenize with it: set `algorithm: existing` and `existing: {name}`",
            )


def fit_vocabulary(model: Any, name: str, ids: TokenIds, seed: int) -> None:
    """Give `model` a row for each token: new ones around the mean of the others, unused ones at the end dropped.

    New rows are drawn, by `seed`, from a normal distribution around the mean of the trained ones (Hewitt 2021,
    "Initializing new word embeddings"), narrow enough that predictions of old tokens hardly change.

    Raises:
        ArtifactError: the sizes differ by more than a few special tokens or a padded end.
    """
    trained: int = model.config.vocab_size
    gained = ids.vocab_size - trained
    if gained == 0:
        return
    if isinstance(model, OwnModel) or not -_MOST_UNUSED_ROWS <= gained <= _MOST_NEW_TOKENS:
        raise ArtifactError(
            f"the tokens were not made with the tokenizer of {name}: {ids.vocab_size:,} kinds, not {trained:,}",
            do=f"tokenize with it: set `algorithm: existing` and `existing: {name}`",
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model.resize_token_embeddings(ids.vocab_size)
    model.config.pad_token_id = ids.pad_id
    _LOG.info("vocabulary of %s: resized from %s to %s rows", name, f"{trained:,}", f"{ids.vocab_size:,}")
