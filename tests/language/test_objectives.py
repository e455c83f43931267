"""Claim: each objective has the targets that it states, and no target is visible to the model."""

from pathlib import Path

import numpy as np
import pytest
import torch

from clozeline.language.masking import Masker
from clozeline.language.objectives import OBJECTIVES, DetectionBatch, Split, TargetBatch, token_counts, unigram_entropy
from clozeline.language.shards import TokenShards
from clozeline.params.pretraining import PretrainParams
from tests.training.prepared import changed

MAX_LENGTH = 16
CLS, SEP = 2, 3


@pytest.fixture
def split(tiny_tokens: Path) -> Split:
    """Split of documents of 5 to 39 tokens, so that many are cut into rows."""
    return Split.open(TokenShards.open(tiny_tokens, "train"), MAX_LENGTH)


def training_batch(objective: str, split: Split, params: PretrainParams, rows_B: np.ndarray) -> TargetBatch:
    masker = Masker.create(params.masking, split.vocabulary, seed=1)
    return OBJECTIVES[objective].training_batch(split, masker, split.read(rows_B), 0, 0.0)


def test_the_end_of_a_document_is_a_target_but_a_cut_inside_it_is_not(split, tiny_pretraining) -> None:
    """P19: [SEP] ends a text; its label is there though padding follows, and only where a document ends. All but [CLS]
    is predicted from the position before it."""
    batch = training_batch("clm", split, tiny_pretraining, np.arange(len(split.rows)))
    flat, length = batch.input_ids_BL.reshape(-1), batch.input_ids_BL.shape[1]
    assert torch.equal(flat[batch.slot_T + 1], batch.labels_T)
    assert (batch.labels_T != SEP).sum() == ((flat != 0) & (flat != CLS) & (flat != SEP)).sum()
    rows_that_end = {int(slot) // length for slot in batch.slot_T[batch.labels_T == SEP]}
    last_row_of = {int(document): row for row, document in enumerate(split.rows.document_R)}
    assert rows_that_end == set(last_row_of.values())
    assert len(rows_that_end) < len(split.rows)


@pytest.mark.parametrize("objective", list(OBJECTIVES))
def test_every_token_is_a_target_once_over_all_folds_and_hidden_there(objective: str, split: Split) -> None:
    rows = split.read(np.arange(len(split.rows)))
    written_N = torch.from_numpy(rows.padded(rows.input_ids_N, split.boundary)).reshape(-1)
    judged = [OBJECTIVES[objective].evaluation_batch(split, rows, 5, fold, 7) for fold in range(7)]
    slots = sorted(slot for batch in judged for slot in batch.slot_T.tolist())
    assert slots == sorted((rows.slot_N - (objective == "clm")).tolist())
    for batch in judged:
        shown_N = batch.input_ids_BL.reshape(-1)
        assert torch.equal(written_N[batch.slot_T + (objective == "clm")], batch.labels_T)
        if objective == "mlm":
            assert (shown_N[batch.slot_T] == split.vocabulary.mask_id).all()
            assert torch.equal(shown_N.index_put((batch.slot_T,), batch.labels_T), written_N)


@pytest.mark.parametrize("objective", list(OBJECTIVES))
def test_rows_selected_from_a_batch_keep_their_targets(
    objective: str, split: Split, tiny_pretraining: PretrainParams
) -> None:
    whole = training_batch(objective, split, tiny_pretraining, np.arange(20))
    for first, last in ((0, 7), (7, 20)):
        part, length = whole.rows(first, last), whole.input_ids_BL.shape[1]
        of_part = (whole.slot_T >= first * length) & (whole.slot_T < last * length)
        assert torch.equal(part.labels_T, whole.labels_T[of_part])
        assert torch.equal(part.slot_T, whole.slot_T[of_part] - first * length)
        assert torch.equal(part.input_ids_BL, whole.input_ids_BL[first:last])


def test_rows_without_a_target_are_counted(split: Split, tiny_pretraining: PretrainParams) -> None:
    """P16: at a low rate short rows often have none."""
    params = changed(tiny_pretraining, masking__mask_rate=0.05)
    batch = training_batch("mlm", split, params, np.arange(len(split.rows)))
    with_target = (batch.slot_T // batch.input_ids_BL.shape[1]).unique()
    assert batch.num_rows_without_target == len(split.rows) - len(with_target) > 10


@pytest.mark.parametrize("objective", ["mlm", "rtd"])
def test_only_padding_is_masked_from_attention(objective: str, split: Split, tiny_pretraining: PretrainParams) -> None:
    rows_B = np.arange(len(split.rows))
    batch = training_batch(objective, split, tiny_pretraining, rows_B)
    assert batch.attention_mask_BL is not None
    assert torch.equal(batch.attention_mask_BL.sum(dim=1), torch.from_numpy(split.read(rows_B).length_B))
    assert torch.equal(batch.attention_mask_BL == 0, batch.input_ids_BL == split.boundary.pad)


def detection_batch(split: Split, params: PretrainParams, rows_B: np.ndarray, epoch: int = 0) -> DetectionBatch:
    masker = Masker.create(params.masking, split.vocabulary, seed=1)
    batch = OBJECTIVES["rtd"].training_batch(split, masker, split.read(rows_B), epoch, 0.0)
    assert isinstance(batch, DetectionBatch)
    return batch


def test_the_replacement_number_depends_only_on_target_and_epoch(split, tiny_pretraining) -> None:
    """P4, P5: the same number in any batch and any part of one, another in each epoch."""
    rows_B = np.arange(20)
    whole = detection_batch(split, tiny_pretraining, rows_B)
    part = whole.rows(7, 15)
    assert torch.equal(part.uniform_T, detection_batch(split, tiny_pretraining, rows_B[7:15]).uniform_T)
    assert len(part.uniform_T) == len(part.labels_T)
    shared = np.isin(whole.uniform_T, detection_batch(split, tiny_pretraining, rows_B, epoch=1).uniform_T)
    assert not shared.any()
    assert len(torch.unique(whole.uniform_T)) == len(whole.uniform_T)
    expected = len(whole.labels_T) / int((whole.text_ids_BL != 0).sum())
    assert whole.targets_per_token.item() == part.targets_per_token.item() == pytest.approx(expected)
    assert whole.as_part_of(10, 80).targets_per_token.item() == 0.125


def test_the_discriminator_reads_the_text_with_a_replacement_at_each_target(split, tiny_pretraining) -> None:
    """A right guess replaces nothing."""
    rows_B = np.arange(20)
    batch = detection_batch(split, tiny_pretraining, rows_B)
    tokens = split.read(rows_B)
    written_BL = torch.from_numpy(tokens.padded(tokens.input_ids_N, split.boundary))
    guess_T = batch.labels_T.clone()
    guess_T[::2] = 5 + (guess_T[::2] - 4) % 59
    ids_BL, is_replaced_BL = batch.with_guesses(guess_T)
    assert torch.equal(is_replaced_BL.reshape(-1).nonzero()[:, 0], batch.slot_T[::2])
    assert torch.equal(ids_BL.reshape(-1)[batch.slot_T], guess_T)
    assert torch.equal(ids_BL[~is_replaced_BL], written_BL[~is_replaced_BL])


def test_each_token_is_counted_once(split: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the tiny language 59 words are almost equally frequent: ln 59 = 4.08."""
    monkeypatch.setattr("clozeline.language.objectives._CHUNK_TOKENS", 7)
    assert token_counts(split.shards, split.vocabulary).sum() == split.shards.num_tokens
    assert unigram_entropy(split.shards, split.vocabulary) == pytest.approx(4.07, abs=0.02)
