"""Claim: both objectives ask for what they say, and for nothing that they show."""

from pathlib import Path

import numpy as np
import pytest
import torch

from clozeline.model import language_model
from clozeline.model.batches import Split
from clozeline.model.families import TokenIds
from clozeline.model.language_model import LanguageModel
from clozeline.model.objectives import OBJECTIVES, TargetBatch
from clozeline.params import PretrainParams
from clozeline.tokens.masking import Masker
from clozeline.tokens.shards import TokenShards

MAX_LENGTH = 16
NUM_FOLDS = 7
CLS, SEP = 2, 3


@pytest.fixture
def split(tiny_tokens: Path) -> Split:
    """Documents of 5 to 39 tokens, so that many are cut into rows."""
    return Split.open(TokenShards.open(tiny_tokens, "train"), MAX_LENGTH)


def training_batch(objective: str, split: Split, params: PretrainParams, rows_B: np.ndarray) -> TargetBatch:
    masker = Masker.create(params.masking, split.vocabulary, seed=1)
    return OBJECTIVES[objective].training(split, masker, split.read(rows_B), 0, 0.0)


def all_rows(split: Split) -> np.ndarray:
    return np.arange(len(split.rows))


def test_every_token_but_cls_is_asked_for_from_the_place_before_it(
    split: Split, tiny_pretraining: PretrainParams
) -> None:
    batch = training_batch("clm", split, tiny_pretraining, all_rows(split)[:30])
    flat = batch.input_ids_BL.reshape(-1)
    assert torch.equal(flat[batch.slot_T + 1], batch.labels_T)
    content = int(((flat != 0) & (flat != CLS) & (flat != SEP)).sum())
    assert int((batch.labels_T != SEP).sum()) == content


def test_the_end_of_a_document_is_learned_and_a_cut_is_not_taken_for_one(
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
def test_over_all_folds_every_token_is_a_target_once(objective: str, split: Split) -> None:
    rows = split.read(all_rows(split))
    judged = [OBJECTIVES[objective].judging(split, rows, 5, fold, NUM_FOLDS) for fold in range(NUM_FOLDS)]
    slots = sorted(slot for batch in judged for slot in batch.slot_T.tolist())
    assert slots == sorted((rows.slot_N - (objective == "clm")).tolist())


@pytest.mark.parametrize("bounds", [(0, 7), (7, 20), (19, 20)])
@pytest.mark.parametrize("objective", list(OBJECTIVES))
def test_rows_taken_out_of_a_batch_keep_their_targets(
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
    return language_model.build(params.model, objective, TokenIds(64, pad_id=0, cls_id=CLS, sep_id=SEP), seed=3).eval()


@torch.no_grad()
@pytest.mark.parametrize(("objective", "looks_ahead"), [("mlm", True), ("clm", False)])
def test_one_switch_opens_attention_to_both_sides_or_to_the_left_alone(
    objective: str, looks_ahead: bool, tiny_pretraining: PretrainParams
) -> None:
    """P13: changing a later token changes earlier logits, or it does not."""
    model = build(objective, tiny_pretraining)
    row = torch.tensor([[CLS, 10, 11, 12, 13, 14, SEP]])
    slots = torch.tensor([1, 2, 3])
    changed = row.clone()
    changed[0, 5] = 60
    before_TV, after_TV = (
        language_model.target_logits(model, TargetBatch(ids_BL, None, slots, slots)) for ids_BL in (row, changed)
    )
    assert bool((before_TV != after_TV).any()) == looks_ahead


@torch.no_grad()
def test_both_objectives_train_the_same_architecture(tiny_pretraining: PretrainParams) -> None:
    shapes = [
        sorted(tuple(weight.shape) for weight in build(objective, tiny_pretraining).parameters() if weight.ndim > 1)
        for objective in ("mlm", "clm")
    ]
    numbers = [sum(int(np.prod(shape)) for shape in of_one) for of_one in shapes]
    assert numbers[0] == numbers[1]
