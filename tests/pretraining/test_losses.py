"""Claim: validation passes during a training have the same targets for every model, in any batches."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from clozeline.evaluation import groups
from clozeline.language.models import target_logits
from clozeline.params.pretraining import PretrainParams
from clozeline.pretraining import job as pretraining
from clozeline.pretraining.losses import Judge
from clozeline.system.errors import DataError
from clozeline.training.loop import Validation


def judge_of(validations: Validation | None) -> Judge:
    assert validations is not None
    judge = validations.measure.__self__
    assert isinstance(judge, Judge)
    return judge


def judge(params: PretrainParams, tokens: Path, tokenizer: Path, work: Path, **masking: object) -> Judge:
    params = params.model_copy(
        update={
            "masking": params.masking.model_copy(update=masking),
            "validation": params.validation.model_copy(update={"every_steps": 10}),
        }
    )
    return judge_of(pretraining.prepare(params, seed=1, tokens=tokens, tokenizer=tokenizer, work=work).loop.validation)


def asked(judge: Judge) -> list[list[int]]:
    return [batch.slot_T.tolist() for batch in judge._batches]


def test_validation_masks_one_token_in_seven_at_any_training_rate(
    tiny_pretraining: PretrainParams, tiny_tokens: Path, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    """P35."""
    at_20 = judge(tiny_pretraining, tiny_tokens, tiny_tokenizer, tmp_path, mask_rate=0.2)
    at_60 = judge(tiny_pretraining, tiny_tokens, tiny_tokenizer, tmp_path, mask_rate=0.6)
    assert asked(at_20) == asked(at_60)
    num_tokens = at_20.split.shards.num_tokens
    assert sum(map(len, asked(at_20))) == pytest.approx(num_tokens / 7, rel=0.15)


def test_validation_rows_stay_within_their_limit_and_spread_over_the_split(
    tiny_pretraining: PretrainParams,
    tiny_tokens: Path,
    tiny_tokenizer: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pretraining, "VALIDATION_TOKENS", 200)
    validation = tiny_pretraining.validation.model_copy(update={"every_steps": 10})
    params = tiny_pretraining.model_copy(update={"validation": validation})
    job = pretraining.prepare(params, seed=1, tokens=tiny_tokens, tokenizer=tiny_tokenizer, work=tmp_path)
    rows_R = judge_of(job.loop.validation)._rows()
    assert 1 < len(rows_R) < len(job.validation.rows) / 2
    assert rows_R[0] == 0
    assert rows_R[-1] == len(job.validation.rows) - 1


def test_the_accuracy_is_the_share_of_targets_whose_label_has_the_highest_probability(
    tiny_pretraining: PretrainParams, tiny_tokens: Path, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    looking = judge(tiny_pretraining, tiny_tokens, tiny_tokenizer, tmp_path)
    model = looking.loss.model.eval()
    is_top1 = [groups.judge(target_logits(model, batch), batch.labels_T).is_top1_T for batch in looking._batches]
    assert 0 < looking.measure().accuracy == np.concatenate(is_top1).mean()


@pytest.mark.parametrize(("words", "is_askable"), [([9, 9], True), ([1, 1], False)])
def test_a_validation_split_of_two_tokens_is_measured_or_refused(
    words: list[int],
    is_askable: bool,
    tiny_pretraining: PretrainParams,
    make_tokens: Callable[..., Path],
    tiny_tokenizer: Path,
    tmp_path: Path,
) -> None:
    """Two tokens may both be in a fold that is not the first; unknown ones are in none."""
    tokens = make_tokens([np.full(20, 7)] * 20, [np.array(words)])
    looking = judge(tiny_pretraining, tokens, tiny_tokenizer, tmp_path)
    if is_askable:
        assert looking.measure().loss > 0
    else:
        with pytest.raises(DataError, match=r"(?s)2 tokens.*every_steps` to null"):
            looking.measure()
