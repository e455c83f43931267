"""The examples of a training are sentences, if the held-out text has some; validation passes have the
same targets for every model, in any batches.
"""

import logging

import numpy as np
import pytest

from clozeline.evaluation import groups
from clozeline.language.models import target_logits
from clozeline.pretraining import job as pretraining
from clozeline.pretraining.losses import Judge
from clozeline.pretraining.watching import ShownExamples, reads_as_sentence
from clozeline.system.errors import DataError
from clozeline.training.curves import ValidationPass
from tests.training.prepared import Prepare


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("Return a copy of the string.", True),
        ("यह एक वाक्य है।", True),
        ("这是一个句子。", True),
        ("Return the attribute `name` of an object.", False),
        ("Return a copy of the", False),
        ("{'a': 1, 'b': [2, 3]} == f(x).", False),
    ],
)
def test_sentences_are_distinguished_from_code_and_fragments(text: str, is_one: bool) -> None:
    assert reads_as_sentence(text) == is_one


@pytest.mark.parametrize("objective", ["mlm", "clm"])
def test_examples_are_shown_at_each_validation_pass(objective: str, prepare: Prepare, caplog) -> None:
    job = prepare(objective=objective)
    with caplog.at_level(logging.INFO):
        examples = ShownExamples.of(job.model, job.validation, prepare.tokenizer)
        examples.on_validation(ValidationPass(10, 2.0, 0.5))
    shown = [record.getMessage() for record in caplog.records]
    assert len(shown) == 3
    for line in shown:
        text, rest = line.split(" → ")
        words, truth = text.split(), int(rest.rpartition("right: 'w")[2].rstrip("'"))
        before = words[words.index("[MASK]" if objective == "mlm" else "…") - 1]
        assert truth == (int(before.removeprefix("w")) - 5 + 1) % 59 + 5
        assert text.count("[MASK]") == (objective == "mlm"), "one word is masked, the rest is readable"


@pytest.fixture
def prepare(prepare: Prepare) -> Prepare:
    return prepare.but(validation__every_steps=10)


def asked(judge: Judge) -> list[list[int]]:
    return [batch.slot_T.tolist() for batch in judge._batches]


def test_validation_masks_one_token_in_seven_at_any_training_rate(prepare: Prepare) -> None:
    """P35."""
    at_20, at_60 = (prepare(masking__mask_rate=rate).judge for rate in (0.2, 0.6))
    assert asked(at_20) == asked(at_60)
    assert sum(map(len, asked(at_20))) == pytest.approx(at_20.split.shards.num_tokens / 7, rel=0.15)


def test_validation_rows_stay_within_their_limit_and_spread_over_the_split(prepare: Prepare, monkeypatch) -> None:
    monkeypatch.setattr(pretraining, "VALIDATION_TOKENS", 200)
    job = prepare()
    rows_R = job.judge._rows()
    assert 1 < len(rows_R) < len(job.validation.rows) / 2
    assert (rows_R[0], rows_R[-1]) == (0, len(job.validation.rows) - 1)


def test_the_accuracy_is_the_share_of_targets_whose_label_has_the_highest_probability(prepare: Prepare) -> None:
    judge = prepare().judge
    model = judge.loss.model.eval()
    is_top1 = [groups.judge(target_logits(model, batch), batch.labels_T).is_top1_T for batch in judge._batches]
    assert 0 < judge.measure().accuracy == np.concatenate(is_top1).mean()


@pytest.mark.parametrize(("words", "is_askable"), [([9, 9], True), ([1, 1], False)])
def test_a_validation_split_of_two_tokens_is_measured_or_refused(
    words, is_askable, tiny_pretraining, make_tokens, tiny_tokenizer, tmp_path
) -> None:
    """Two tokens may both be in a fold that is not the first; unknown ones are in none."""
    tokens = make_tokens([np.full(20, 7)] * 20, [np.array(words)])
    judge = Prepare(tokens, tiny_tokenizer, tiny_pretraining, tmp_path)(validation__every_steps=10).judge
    if is_askable:
        assert judge.measure().loss > 0
    else:
        with pytest.raises(DataError, match=r"(?s)2 tokens.*every_steps` to null"):
            judge.measure()
