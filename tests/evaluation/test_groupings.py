import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from clozeline.evaluation.groups import (
    Asked,
    ByConfidence,
    ByDocument,
    ByFrequency,
    ByPlace,
    ByWordClass,
    Judged,
    in_folds,
)
from clozeline.language.objectives import Split
from clozeline.language.shards import TokenShards
from clozeline.language.spelling import Spelling

TokensMaker = Callable[..., Path]
NONE = Judged(np.zeros(0), np.zeros(0, bool), np.zeros(0, bool), np.zeros(0))


def everything_asked(split: Split) -> Asked:
    """Return the targets of a causal model: all tokens at once, in reading order."""
    (asked,) = in_folds("clm", split, seed=1, num_folds=1, batch_tokens=10_000)
    return asked


def split_of(make_tokens: TokensMaker, *documents: list[int], max_length: int = 32) -> Split:
    arrays = [np.array(document) for document in documents]
    return Split.open(TokenShards.open(make_tokens(arrays, arrays), "validation"), max_length)


def test_targets_are_grouped_by_their_document(make_tokens: TokensMaker) -> None:
    asked = everything_asked(split_of(make_tokens, [5, 6], [7, 8, 9], [5, 6, 7, 8]))
    assert ByDocument(3).groups(asked, NONE).tolist() == [0, 0, 1, 1, 1, 2, 2, 2, 2]
    assert ByDocument(2).groups(asked, NONE).tolist() == [0, 0, 1, 1, 1, 0, 0, 0, 0]


@pytest.mark.parametrize(("confidence", "group"), [(0.001, 0), (1 / 15, 0), (0.07, 1), (0.5, 7), (0.94, 14), (1.0, 14)])
def test_bins_of_confidence_are_of_equal_width(split: Split, confidence: float, group: int) -> None:
    judged = Judged(np.zeros(1), np.zeros(1, bool), np.zeros(1, bool), np.array([confidence]))
    assert ByConfidence().groups(everything_asked(split), judged).tolist() == [group]


def test_bins_of_frequency_are_decades_of_the_training_text(make_tokens: TokensMaker) -> None:
    split = split_of(make_tokens, [5, 6, 7, 8, 9])
    counts_V = np.zeros(64, dtype=np.int64)
    counts_V[[6, 7, 8, 9]] = 1, 9, 10, 2345
    grouping = ByFrequency.of(counts_V, split)
    groups = grouping.groups(everything_asked(split), NONE)
    assert [grouping.names[group] for group in groups] == ["0", "1-9", "1-9", "10-99", "1000-9999"]
    assert grouping.num_kinds_G.tolist() == [55, 2, 1, 0, 1]  # of 59 ordinary tokens


def test_places_are_positions_in_the_row_up_to_its_end(make_tokens: TokensMaker) -> None:
    split = split_of(make_tokens, list(range(5, 45)), max_length=42)
    grouping = ByPlace.of(42)
    groups = grouping.groups(everything_asked(split), NONE).tolist()
    assert groups == [place // 3 for place in range(40)]
    assert [grouping.places(group) for group in (0, 13)] == [(1, 3), (40, 40)]
    assert grouping.num_groups == 14


def test_single_token_words_first_pieces_and_continuations_are_separate_groups(make_tokens: TokensMaker) -> None:
    vocabulary = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4, "un": 5, "##believ": 6, "##able": 7}
    vocabulary["list"] = 8
    model = {"type": "WordPiece", "continuing_subword_prefix": "##", "vocab": vocabulary}
    spelling = Spelling.of(json.dumps({"model": model, "added_tokens": [], "pre_tokenizer": None}))
    asked = everything_asked(split_of(make_tokens, [8, 5, 6, 7, 8], [5, 8, 5, 7, 8, 5]))
    assert ByWordClass(spelling).groups(asked, NONE).tolist() == [0, 1, 2, 2, 0, 0, 0, 1, 2, 0, 0]
