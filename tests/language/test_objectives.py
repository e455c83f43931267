"""Claim: each objective has the targets that it states, and no target is visible to the model."""

from pathlib import Path

import numpy as np
import pytest
import torch

from clozeline.encoder.families.layout import TokenIds
from clozeline.language import models
from clozeline.language.masking import Masker
from clozeline.language.models import LanguageModel
from clozeline.language.objectives import OBJECTIVES, DetectionBatch, Split, TargetBatch, token_counts
from clozeline.language.shards import TokenShards
from clozeline.params.pretraining import PretrainParams

MAX_LENGTH = 16
NUM_FOLDS = 7
CLS, SEP = 2, 3


@pytest.fixture
def split(tiny_tokens: Path) -> Split:
    """Split of documents of 5 to 39 tokens, so that many are cut into rows."""
    return Split.open(TokenShards.open(tiny_tokens, "train"), MAX_LENGTH)


def training_batch(objective: str, split: Split, params: PretrainParams, rows_B: np.ndarray) -> TargetBatch:
    masker = Masker.create(params.masking, split.vocabulary, seed=1)
    return OBJECTIVES[objective].training_batch(split, masker, split.read(rows_B), 0, 0.0)


def all_rows(split: Split) -> np.ndarray:
    return np.arange(len(split.rows))


def test_tensors_are_pinned_for_the_copy_to_a_gpu(
    split: Split, tiny_pretraining: PretrainParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the processor waits for each copy, even if it is `non_blocking`."""
    batch = training_batch("mlm", split, tiny_pretraining, all_rows(split)[:5])
    send, sent = torch.Tensor.to, []
    pinned: list[torch.Tensor] = []

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tensor.clone())
        return pinned[-1]

    def to(tensor: torch.Tensor, device: torch.device, non_blocking: bool) -> torch.Tensor:
        sent.append(tensor)
        assert non_blocking
        return tensor if device.type == "cuda" else send(tensor, device)

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "to", to)
    batch.to(torch.device("cuda"))
    assert len(sent) == len(pinned) == 4
    assert all(one is other for one, other in zip(sent, pinned, strict=True))
    batch.to(torch.device("meta"))
    assert (len(sent), len(pinned)) == (8, 4)


def test_every_token_but_cls_is_predicted_from_the_position_before_it(
    split: Split, tiny_pretraining: PretrainParams
) -> None:
    batch = training_batch("clm", split, tiny_pretraining, all_rows(split)[:30])
    flat = batch.input_ids_BL.reshape(-1)
    assert torch.equal(flat[batch.slot_T + 1], batch.labels_T)
    content = int(((flat != 0) & (flat != CLS) & (flat != SEP)).sum())
    assert int((batch.labels_T != SEP).sum()) == content


def test_the_end_of_a_document_is_a_target_but_a_cut_inside_it_is_not(
    split: Split, tiny_pretraining: PretrainParams
) -> None:
    """P19: [SEP] ends a text; its label is there though padding follows, and only where a document ends."""
    rows_B = all_rows(split)
    batch = training_batch("clm", split, tiny_pretraining, rows_B)
    length = batch.input_ids_BL.shape[1]
    rows_that_end = {int(slot) // length for slot in batch.slot_T[batch.labels_T == SEP]}
    last_row_of = {int(document): row for row, document in enumerate(split.rows.document_R)}
    assert rows_that_end == set(last_row_of.values())
    assert len(rows_that_end) < len(rows_B)


@pytest.mark.parametrize("objective", list(OBJECTIVES))
def test_every_token_is_a_target_once_over_all_folds(objective: str, split: Split) -> None:
    rows = split.read(all_rows(split))
    judged = [OBJECTIVES[objective].evaluation_batch(split, rows, 5, fold, NUM_FOLDS) for fold in range(NUM_FOLDS)]
    slots = sorted(slot for batch in judged for slot in batch.slot_T.tolist())
    assert slots == sorted((rows.slot_N - (objective == "clm")).tolist())


@pytest.mark.parametrize("bounds", [(0, 7), (7, 20), (19, 20)])
@pytest.mark.parametrize("objective", list(OBJECTIVES))
def test_rows_selected_from_a_batch_keep_their_targets(
    objective: str, bounds: tuple[int, int], split: Split, tiny_pretraining: PretrainParams
) -> None:
    whole = training_batch(objective, split, tiny_pretraining, all_rows(split)[:20])
    part = whole.rows(*bounds)
    length = whole.input_ids_BL.shape[1]
    of_part = (whole.slot_T >= bounds[0] * length) & (whole.slot_T < bounds[1] * length)
    assert torch.equal(part.labels_T, whole.labels_T[of_part])
    assert torch.equal(part.slot_T, whole.slot_T[of_part] - bounds[0] * length)
    assert torch.equal(part.input_ids_BL, whole.input_ids_BL[slice(*bounds)])


def test_rows_without_a_target_are_counted(split: Split, tiny_pretraining: PretrainParams) -> None:
    """P16: at a low rate short rows often have none."""
    params = tiny_pretraining.model_copy(
        update={"masking": tiny_pretraining.masking.model_copy(update={"mask_rate": 0.05})}
    )
    batch = training_batch("mlm", split, params, all_rows(split))
    length = batch.input_ids_BL.shape[1]
    with_target = {int(slot) // length for slot in batch.slot_T}
    assert batch.num_rows_without_target == len(split.rows) - len(with_target) > 10


def build(objective: str, params: PretrainParams) -> LanguageModel:
    return models.build(params.model, objective, TokenIds(64, pad_id=0, cls_id=CLS, sep_id=SEP), seed=3).eval()


@torch.no_grad()
@pytest.mark.parametrize(("objective", "looks_ahead"), [("mlm", True), ("clm", False)])
def test_the_objective_makes_attention_bidirectional_or_causal(
    objective: str, looks_ahead: bool, tiny_pretraining: PretrainParams
) -> None:
    """P13: changing a later token changes earlier logits, or it does not."""
    model = build(objective, tiny_pretraining)
    row = torch.tensor([[CLS, 10, 11, 12, 13, 14, SEP]])
    slots = torch.tensor([1, 2, 3])
    changed = row.clone()
    changed[0, 5] = 60
    before_TV, after_TV = (
        models.target_logits(model, TargetBatch(ids_BL, None, slots, slots)) for ids_BL in (row, changed)
    )
    assert bool((before_TV != after_TV).any()) == looks_ahead


@torch.no_grad()
@pytest.mark.parametrize("phase", ["training", "judging"])
@pytest.mark.parametrize("objective", ["mlm", "clm"])
def test_a_row_has_the_same_logits_padded_and_unpadded(
    objective: str, phase: str, split: Split, tiny_pretraining: PretrainParams
) -> None:
    """Weights as large as after training: at the start attention is so even that padding hardly shows."""
    model = build(objective, tiny_pretraining).double()
    draw = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter += 0.3 * torch.randn(parameter.shape, generator=draw, dtype=torch.float64)
    lengths_R = split.rows.length_R
    short_B = np.flatnonzero(lengths_R == lengths_R.min())

    def batch_of(rows_B: np.ndarray) -> TargetBatch:
        if phase == "training":
            return training_batch(objective, split, tiny_pretraining, rows_B)
        return OBJECTIVES[objective].evaluation_batch(split, split.read(rows_B), 5, 0, 1)

    like, mixed = batch_of(short_B), batch_of(np.append(short_B, lengths_R.argmax()))
    assert mixed.input_ids_BL.shape[1] > like.input_ids_BL.shape[1]
    like_TV, mixed_TV = (models.target_logits(model, batch) for batch in (like, mixed))
    assert len(like_TV)
    assert (mixed_TV[: len(like_TV)] - like_TV).abs().max() <= 1e-9


@pytest.mark.parametrize("objective", ["mlm", "rtd"])
def test_only_padding_is_masked_from_attention(objective: str, split: Split, tiny_pretraining: PretrainParams) -> None:
    tokens = split.read(all_rows(split))
    batch = training_batch(objective, split, tiny_pretraining, all_rows(split))
    assert batch.attention_mask_BL is not None
    assert torch.equal(batch.attention_mask_BL.sum(dim=1), torch.from_numpy(tokens.length_B))
    assert torch.equal(batch.attention_mask_BL == 0, batch.input_ids_BL == split.boundary.pad)


@torch.no_grad()
def test_both_objectives_train_the_same_architecture(tiny_pretraining: PretrainParams) -> None:
    shapes = [
        sorted(tuple(weight.shape) for weight in build(objective, tiny_pretraining).parameters() if weight.ndim > 1)
        for objective in ("mlm", "clm")
    ]
    numbers = [sum(int(np.prod(shape)) for shape in of_one) for of_one in shapes]
    assert numbers[0] == numbers[1]


def detection_batch(split: Split, params: PretrainParams, rows_B: np.ndarray, epoch: int = 0) -> DetectionBatch:
    masker = Masker.create(params.masking, split.vocabulary, seed=1)
    batch = OBJECTIVES["rtd"].training_batch(split, masker, split.read(rows_B), epoch, 0.0)
    assert isinstance(batch, DetectionBatch)
    return batch


def test_the_replacement_number_depends_only_on_target_and_epoch(
    split: Split, tiny_pretraining: PretrainParams
) -> None:
    """P4, P5: the same number in any batch and any part of one, another in each epoch."""
    rows_B = all_rows(split)[:20]
    whole = detection_batch(split, tiny_pretraining, rows_B)
    part = whole.rows(7, 15)
    assert torch.equal(part.uniform_T, detection_batch(split, tiny_pretraining, rows_B[7:15]).uniform_T)
    assert len(part.uniform_T) == len(part.labels_T)
    shared = np.isin(whole.uniform_T, detection_batch(split, tiny_pretraining, rows_B, epoch=1).uniform_T)
    assert not shared.any()
    assert len(torch.unique(whole.uniform_T)) == len(whole.uniform_T)


def test_every_part_of_a_batch_stores_the_targets_per_token_of_the_whole(
    split: Split, tiny_pretraining: PretrainParams
) -> None:
    whole = detection_batch(split, tiny_pretraining, all_rows(split)[:20])
    expected = len(whole.labels_T) / int((whole.text_ids_BL != 0).sum())
    assert whole.targets_per_token.item() == pytest.approx(expected)
    assert torch.equal(whole.rows(3, 5).targets_per_token, whole.targets_per_token)
    assert whole.as_part_of(10, 80).targets_per_token.item() == 0.125


def test_the_discriminator_reads_the_text_with_a_replacement_at_each_target(
    split: Split, tiny_pretraining: PretrainParams
) -> None:
    """A right guess replaces nothing."""
    rows_B = all_rows(split)[:20]
    batch = detection_batch(split, tiny_pretraining, rows_B)
    tokens = split.read(rows_B)
    written_BL = torch.from_numpy(tokens.padded(tokens.input_ids_N, split.boundary))
    guess_T = batch.labels_T.clone()
    guess_T[::2] = 5 + (guess_T[::2] - 4) % 59
    ids_BL, is_replaced_BL = batch.with_guesses(guess_T)
    assert torch.equal(is_replaced_BL.reshape(-1).nonzero()[:, 0], batch.slot_T[::2])
    assert torch.equal(ids_BL.reshape(-1)[batch.slot_T], guess_T)
    assert torch.equal(ids_BL[~is_replaced_BL], written_BL[~is_replaced_BL])


@pytest.mark.parametrize("chunk_tokens", [7, 1 << 18])
def test_each_token_is_counted_once(tiny_tokens: Path, monkeypatch: pytest.MonkeyPatch, chunk_tokens: int) -> None:
    monkeypatch.setattr("clozeline.language.objectives._CHUNK_TOKENS", chunk_tokens)
    split = Split.open(TokenShards.open(tiny_tokens, "train"), max_length=32)
    assert token_counts(split.shards, split.vocabulary).sum() == split.shards.num_tokens
