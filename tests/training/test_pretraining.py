from pathlib import Path

import numpy as np
import pytest

from clozeline.model.batches import Split
from clozeline.model.objectives import OBJECTIVES
from clozeline.params import PretrainParams
from clozeline.tokens.shards import TokenShards
from clozeline.training import pretraining
from clozeline.training.loop import CurvePoint


def train(params: PretrainParams, tokens: Path, work: Path) -> list[CurvePoint]:
    job = pretraining.prepare(params, seed=1, tokens=tokens, work=work)
    return job.loop.run(job.loop.resume(), lambda point: None).curve


def test_training_learns_what_follows_what(tiny_tokens: Path, tiny_pretraining: PretrainParams, tmp_path: Path) -> None:
    curve = train(tiny_pretraining.model_copy(update={"steps": 250}), tiny_tokens, tmp_path)
    assert curve[0].loss > 3.5
    assert curve[-1].loss < 2.2  # ln 59 = 4.08 is knowing nothing


def test_the_same_params_and_seed_give_the_same_curve(
    tiny_tokens: Path, tiny_pretraining: PretrainParams, tmp_path: Path
) -> None:
    assert train(tiny_pretraining, tiny_tokens, tmp_path / "one") == train(
        tiny_pretraining, tiny_tokens, tmp_path / "two"
    )


def test_a_budget_in_tokens_is_turned_into_about_so_many_tokens(
    tiny_tokens: Path, tiny_pretraining: PretrainParams, tmp_path: Path
) -> None:
    params = tiny_pretraining.model_copy(update={"steps": None, "tokens": 8000})
    assert train(params, tiny_tokens, tmp_path)[-1].num_tokens == pytest.approx(8000, rel=0.05)


def test_other_params_never_pick_up_these_checkpoints(
    tiny_tokens: Path, tiny_pretraining: PretrainParams, tmp_path: Path
) -> None:
    train(tiny_pretraining, tiny_tokens, tmp_path)
    optimizer = tiny_pretraining.optimizer.model_copy(update={"learning_rate": 1e-4})
    for changed, is_fresh in [
        ({"optimizer": optimizer}, True),
        ({"steps": 50}, True),
        ({"checkpoint_every_steps": 7}, False),
    ]:
        job = pretraining.prepare(
            tiny_pretraining.model_copy(update=changed), seed=1, tokens=tiny_tokens, work=tmp_path
        )
        assert (job.loop.resume().step == 0) == is_fresh, changed


def test_a_training_batch_hides_targets_and_names_them(tiny_tokens: Path, tiny_pretraining: PretrainParams) -> None:
    from clozeline.tokens.masking import Masker

    split = Split.open(TokenShards.open(tiny_tokens, "train"), max_length=32)
    masker = Masker.create(tiny_pretraining.masking, split.vocabulary, seed=1)
    rows_B = np.arange(20)
    tokens = split.read(rows_B)
    batch = OBJECTIVES["mlm"].training(split, masker, tokens, 0, 0.0)
    original_BL = tokens.padded(tokens.input_ids_N, split.boundary)
    flat = original_BL.reshape(-1)
    assert (batch.labels_T.numpy() == flat[batch.slot_T.numpy()]).all()
    unchanged = np.ones(len(flat), dtype=bool)
    unchanged[batch.slot_T.numpy()] = False
    assert (batch.input_ids_BL.numpy().reshape(-1)[unchanged] == flat[unchanged]).all()
    assert (batch.input_ids_BL.numpy().reshape(-1)[~unchanged] == split.vocabulary.mask_id).any()
