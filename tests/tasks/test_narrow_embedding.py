"""Claim: an embedding narrowed to the tokens of a training is trained as the whole one is, in every family."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from clozeline.encoder.families import FAMILIES
from clozeline.language import models
from clozeline.tasks import adapters
from clozeline.tasks import heads as classifier
from clozeline.tasks.adapters import NarrowEmbedding, narrow, widen
from clozeline.tasks.heads import TaskModel

LABELS = ("x", "y")
ROWS = torch.tensor([[2, 10, 11, 3], [2, 12, 10, 3]])
UNSEEN = torch.tensor([[2, 40, 10, 50, 3]])
"""A row with tokens that no training row has, among tokens that the training rows have."""
TRAINED = [2, 3, 10, 11, 12]

Built = Callable[[], TaskModel]


@pytest.fixture(params=sorted(FAMILIES))
def built(request, params_of, ids, tiny_tokenizer, tmp_path: Path) -> Built:
    """Function that returns the same classifier at each call."""
    encoder = models.build(params_of(request.param), "mlm", ids, seed=0)
    models.save(encoder, tiny_tokenizer, tmp_path)
    return lambda: classifier.build_classifier(tmp_path, LABELS, 1)


def train(model: TaskModel, weight_decay: float = 0.0) -> None:
    """Train `model` for three steps, without randomness."""
    model.eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=weight_decay)
    for _ in range(3):
        cross_entropy(model(ROWS).logits, torch.tensor([0, 1])).backward()
        optimizer.step()
        optimizer.zero_grad()


def table_of(model: TaskModel) -> torch.Tensor:
    return model.get_input_embeddings().weight.detach()


def test_training_with_a_narrow_table_gives_the_same_weights(built: Built) -> None:
    whole, narrowed = built(), built()
    narrow(narrowed, ROWS.numpy())
    assert isinstance(narrowed.get_input_embeddings(), NarrowEmbedding)
    assert table_of(narrowed).shape[0] == len(TRAINED)
    train(whole)
    train(narrowed)
    with torch.no_grad():
        assert torch.allclose(narrowed(UNSEEN).logits, whole(UNSEEN).logits, atol=1e-6)
    widen(narrowed)
    assert type(narrowed.get_input_embeddings()) is nn.Embedding
    assert narrowed.get_input_embeddings().padding_idx == whole.get_input_embeddings().padding_idx
    assert narrowed.state_dict().keys() == whole.state_dict().keys()
    for name, weight in whole.state_dict().items():
        torch.testing.assert_close(narrowed.state_dict()[name], weight, atol=1e-6, rtol=0, msg=name)


def test_words_absent_from_all_texts_keep_their_vectors_despite_weight_decay(built: Built) -> None:
    model = built()
    before = table_of(model).clone()
    narrow(model, ROWS.numpy())
    train(model, weight_decay=0.1)
    widen(model)
    has_changed = (table_of(model) != before).any(dim=1)
    assert has_changed.nonzero().flatten().tolist() == TRAINED


def test_a_checkpoint_of_a_narrow_embedding_is_restored(built: Built) -> None:
    """A checkpoint holds only the rows; the token ids restore their positions."""
    first, again = built(), built()
    for model in (first, again):
        narrow(model, ROWS.numpy())
    train(first)
    again.load_state_dict(first.state_dict())
    for model in (first, again):
        widen(model)
    assert torch.equal(table_of(first), table_of(again))


def frozen(model: TaskModel) -> None:
    adapters.freeze(model, 1)


def tied(model: TaskModel) -> None:
    model.second = nn.Linear(*reversed(table_of(model).shape), bias=False)
    model.second.weight = model.get_input_embeddings().weight


@pytest.mark.parametrize("made", [frozen, tied])
@pytest.mark.parametrize("built", ["bert"], indirect=True)
def test_a_frozen_or_shared_embedding_stays_whole(made: Callable[[TaskModel], None], built: Built) -> None:
    model = built()
    made(model)
    narrow(model, ROWS.numpy())
    assert type(model.get_input_embeddings()) is nn.Embedding


@pytest.mark.parametrize("tokens", [np.empty((0, 4), dtype=np.int64), np.arange(33)[None]])
@pytest.mark.parametrize("built", ["bert"], indirect=True)
def test_the_table_stays_whole_for_no_tokens_or_most_of_the_vocabulary(tokens: np.ndarray, built: Built) -> None:
    model = built()
    assert table_of(model).shape[0] == 64
    narrow(model, tokens)
    assert type(model.get_input_embeddings()) is nn.Embedding
    widen(model)
    assert type(model.get_input_embeddings()) is nn.Embedding
