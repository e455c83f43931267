import numpy as np
import pytest

from clozeline.evaluation.groups import Asked, in_folds, num_copies, one_by_one
from clozeline.language.objectives import Split

MASK = 4


def identities(asked: Asked) -> list[tuple[int, int]]:
    """Return (document, position) of each target."""
    documents, positions = asked.tokens.document_N[asked.target_T], asked.tokens.position_N[asked.target_T]
    return list(zip(documents.tolist(), positions.tolist(), strict=True))


def every_token(split: Split) -> list[tuple[int, int]]:
    sizes = np.diff(split.shards.offsets.astype(np.int64)).tolist()
    return [(document, position) for document, size in enumerate(sizes) for position in range(size)]


@pytest.mark.parametrize("objective", ["mlm", "clm"])
def test_targets_come_in_the_order_of_their_labels(split: Split, objective: str) -> None:
    for asked in in_folds(objective, split, seed=1, num_folds=5, batch_tokens=256):
        assert asked.tokens.input_ids_N[asked.target_T].tolist() == asked.batch.labels_T.tolist()


@pytest.mark.parametrize("batch_tokens", [40, 500, 100_000])
def test_each_token_is_masked_alone_in_its_own_copy_of_the_row(split: Split, batch_tokens: int) -> None:
    asked_all = list(one_by_one(split, batch_tokens=batch_tokens))
    assert sorted(identity for asked in asked_all for identity in identities(asked)) == every_token(split)
    assert sum(asked.num_rows for asked in asked_all) == num_copies(split) == split.shards.num_tokens
    for asked in asked_all:
        hidden_BL = asked.batch.input_ids_BL == MASK
        assert (hidden_BL.sum(dim=1) == 1).all()
        assert asked.batch.labels_T.tolist() == asked.tokens.input_ids_N[asked.target_T].tolist()
        assert asked.batch.input_ids_BL.numel() <= max(batch_tokens, 32)
