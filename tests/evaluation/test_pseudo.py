"""Claim: for documents spread over a split, each token is predicted from all the others."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from clozeline.evaluation import groups, measuring
from clozeline.language.models import LanguageModel
from clozeline.language.objectives import Split
from clozeline.language.shards import TokenShards

MASK = 4


def measured(model: LanguageModel, split: Split, num_documents: int, batch_tokens: int = 512) -> dict[str, float]:
    some, document_D = measuring.spread(split, num_documents)
    rows_done: list[int] = []
    with torch.inference_mode():
        figures = measuring.measured(
            model, some, document_D, batch_tokens=batch_tokens, seed=1, num_samples=200, advance=rows_done.append
        )
    assert sum(rows_done) == groups.num_copies(some)
    return figures


@torch.inference_mode()
def test_the_figures_equal_those_of_the_stock_model_with_one_token_masked_at_a_time(
    model: LanguageModel, split: Split
) -> None:
    some, document_D = measuring.spread(split, 5)
    assert document_D.tolist() == [0, 9, 19, 29, 39]
    losses = []
    for row in range(len(some.rows)):
        input_ids_N = some.read(np.array([row])).input_ids_N
        for place, label in enumerate(input_ids_N.tolist()):
            shown_N = input_ids_N.copy()
            shown_N[place] = MASK
            logits_BLV = model(torch.tensor([[2, *shown_N.tolist(), 3]])).logits
            losses.append(functional.cross_entropy(logits_BLV[0, place + 1][None], torch.tensor([label])).item())
    figures = measured(model, split, 5)
    sizes = np.diff(split.shards.offsets.astype(np.int64))[document_D]
    assert figures["pseudo_target_tokens"] == len(losses) == sizes.sum()
    assert figures["pseudo_documents"] == 5
    assert figures["pseudo_loss_nats_per_token"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert figures["pseudo_perplexity"] == pytest.approx(np.exp(np.mean(losses)), rel=1e-5)
    assert figures["pseudo_nats_per_byte"] == pytest.approx(sum(losses) / (4 * len(losses)), rel=1e-5)
    for name in ("loss_nats_per_token", "perplexity", "nats_per_byte"):
        assert figures[f"pseudo_{name}_low"] < figures[f"pseudo_{name}"] < figures[f"pseudo_{name}_high"]


def test_batch_size_changes_nothing_and_asking_for_too_many_documents_uses_all(
    model: LanguageModel, split: Split
) -> None:
    assert measured(model, split, 5, batch_tokens=40) == pytest.approx(measured(model, split, 5), rel=1e-6)
    assert measured(model, split, 1000)["pseudo_target_tokens"] == split.shards.num_tokens


def test_documents_without_a_known_token_have_no_figures(
    model: LanguageModel, make_tokens: Callable[..., Path]
) -> None:
    unknown = [np.array([1, 1, 1])]
    split = Split.open(TokenShards.open(make_tokens(unknown, unknown), "validation"), max_length=32)
    assert measured(model, split, 3) == {}
