"""Claim: the losses of a batch of pairs follow the papers, and parts that fit into memory train like the batch."""

import json
import random
from collections.abc import Callable
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from clozeline.records.finetune.scored_items import MAX_ITEMS, read_held_out, spearman
from clozeline.tasks.rows import EncodedBatch
from clozeline.tasks.similarity.data import PairBatch, Targets, TextPair
from clozeline.tasks.similarity.matching import BelongingPairs, MatchQuestions
from clozeline.tasks.similarity.scored import ScoredPairs, cosine_losses, ranking_losses
from tests.make.tasks import fine_tune, inputs_of, metrics_of, params_of, write_rows

A, B = [1.0, 0.0], [0.0, 1.0]


def test_the_loss_of_a_scored_pair_is_the_squared_error_of_its_cosine() -> None:
    losses = cosine_losses(torch.tensor([A, A]), torch.tensor([A, B]), torch.tensor([0.75, 0.5]))
    assert losses.tolist() == [0.0625, 0.25]


NEARER, FARTHER = (-log(share / (exp(2) + 1)) for share in (exp(2), 1))


@pytest.mark.parametrize(
    ("firsts", "seconds", "losses"),
    [
        ([0, 1], [0, 1], [(NEARER + log(2)) / 2, (FARTHER + log(2)) / 2]),
        ([0, 0], [0, 1], [0, 0]),
        ([0, 1], [0, 0], [0, 0]),
    ],
)
def test_the_other_pairs_of_a_batch_are_negatives_in_both_directions_unless_they_share_a_text(
    firsts: list[int], seconds: list[int], losses: list[float]
) -> None:
    targets = Targets(None, torch.tensor(firsts), torch.tensor(seconds))
    found_B = ranking_losses(torch.tensor([A, A]), torch.tensor([A, B]), targets, temperature=0.5)
    assert found_B.tolist() == pytest.approx(losses)


def test_each_part_of_a_batch_sees_every_other_pair_once() -> None:
    side = EncodedBatch(torch.arange(20).reshape(10, 2), None)
    whole = PairBatch.whole(side, side, Targets(None, torch.arange(10), torch.arange(10)))
    for first, last in [(0, 3), (3, 6), (6, 10), (4, 5)]:
        part = whole.rows(first, last)
        others = [row for other in part.others() for row in range(other.first, other.last)]
        assert others == [row for row in range(10) if not first <= row < last]
        assert all(other.num_rows <= part.num_rows for other in part.others())
        assert part.num_slots == (last - first) * 4
    assert whole.rows(2, 8).rows(1, 3).first == 3


Rows = list[dict[str, Any]]
WORDS = ["encoder", "sentence", "tokenizer", "pieces", "tensor", "rows", "error", "hash"]
# Words that second texts use in place of `WORDS`, so that the texts of a pair have no word in common.
OTHERS = ["model", "text", "word", "file", "shape", "end", "processors", "small"]
SCORED = {"score_field": "score", "highest_score": 3.0}
TOGETHER = {"score_field": "score", "highest_score": 2.0, "read_together": True}


def paired(num: int) -> Rows:
    draw = random.Random(1)
    rows = []
    for _ in range(num):
        one, other = (draw.sample(range(8), 3) for _ in range(2))
        kept = draw.choice([one, other, [one[0], *other[1:]]])
        first, second = (" ".join(words[place] for place in places) for words, places in ((WORDS, one), (OTHERS, kept)))
        rows.append({"first": first, "second": second, "score": len(set(one) & set(kept))})
    return rows


def matching(num: int) -> Rows:
    return [row for row in paired(num) if row["score"] == 3]


def added(num: int) -> Rows:
    """Return pairs whose score is how many of two words they have, one in each text."""
    draw = random.Random(1)
    sides = [(draw.sample(WORDS, 4), draw.sample(OTHERS, 4)) for _ in range(num)]
    return [
        {"first": " ".join(one), "second": " ".join(other), "score": (WORDS[0] in one) + (OTHERS[0] in other)}
        for one, other in sides
    ]


def params(**changes: object) -> Any:
    fields = {"first_field": "first", "second_field": "second", "max_length": 32, "batch_size": 16, "epochs": 6}
    return params_of("similarity", **{**fields, "optimizer": {"learning_rate": 0.01}, **changes})


@pytest.fixture
def run(small_encoder: Path, tmp_path: Path) -> Callable[..., Path]:
    """`run(rows, **changes)` runs the stage and returns its output folder."""

    def run(rows: Rows, **changes: object) -> Path:
        data = write_rows(tmp_path / "data.jsonl", rows)
        return fine_tune(params(**changes), tmp_path / "out", encoder=small_encoder, data=data)

    return run


@pytest.fixture
def prepare(small_encoder: Path, tmp_path: Path) -> Callable[..., BelongingPairs]:
    def make(rows: Rows, **changes: object) -> BelongingPairs:
        return BelongingPairs(inputs_of(params(**changes), small_encoder, write_rows(tmp_path / "data.jsonl", rows)))

    return make


def test_matching_texts_without_common_words_are_found(run: Callable[..., Path]) -> None:
    rows = matching(600)
    out = run(rows, recall_at=3, epochs=3)
    metrics = metrics_of(out)
    headline = metrics["headline"]
    assert headline["metric"] == "recall_at_3"
    assert headline["value"] > 0.5 > headline["baseline_value"] + 0.2
    assert headline["low"] <= headline["value"] <= headline["high"]
    assert headline["trivial_value"] == pytest.approx(3 / metrics["num_second_texts_test"], rel=0.5)
    assert metrics["recall_at_1"] <= metrics["mrr"] <= 1
    shown = json.loads((out / "examples" / "examples.json").read_text())
    assert all(item["predicted"].startswith("rank 1;") == item["is_right"] for item in shown)
    held_out = read_held_out(out / "model")
    assert len(held_out) == metrics["num_validation"] > 10
    assert {it.recall_at for it in held_out} == {3}
    belonging = {(row["first"], row["second"]) for row in rows}
    assert all((it.text, second) in belonging for it in held_out for second in it.right)


def test_cosines_follow_scores_of_pairs_without_common_words(run: Callable[..., Path]) -> None:
    rows = paired(500)
    out = run(rows, **SCORED)
    headline = metrics_of(out)["headline"]
    assert (headline["metric"], headline["trivial_value"]) == ("spearman", 0)
    assert headline["value"] > 0.4 > headline["baseline_value"] + 0.2
    assert headline["low"] < headline["value"] < headline["high"]
    held_out = read_held_out(out / "model")
    assert len(held_out) == metrics_of(out)["num_validation"] > 10
    scores = {(row["first"], row["second"]): row["score"] for row in rows}
    assert [3 * (it.score or 0.0) for it in held_out] == pytest.approx([scores[it.text, it.second] for it in held_out])


def test_a_nan_validation_score_is_left_out_of_the_metrics(
    run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ScoredPairs, "answers_to", lambda task, pairs: (np.ones(len(pairs)), 0))
    out = run(paired(200), **SCORED, epochs=1)
    assert "validation_score" not in metrics_of(out)
    assert metrics_of(out)["headline"]["value"] == 0
    assert "NaN" not in (out / "metrics.json").read_text()


def test_vectors_equal_those_of_stock_transformers(prepare: Callable[..., BelongingPairs], small_encoder: Path) -> None:
    texts = ["encoder sentence", "the model has seen a small file"]
    model, tokenizer = AutoModel.from_pretrained(small_encoder).eval(), AutoTokenizer.from_pretrained(small_encoder)
    with torch.inference_mode():
        inputs = tokenizer(texts, return_tensors="pt", padding=True)
        hidden_BLH = model(**inputs).last_hidden_state
    mean_BH = torch.nn.functional.normalize((hidden_BLH * inputs["attention_mask"].unsqueeze(2)).sum(1), dim=1)
    assert np.allclose(prepare(matching(100)).embed(texts)[0], mean_BH.numpy(), atol=1e-5)


def test_training_may_truncate_texts_shorter_than_evaluation(prepare: Callable[..., BelongingPairs]) -> None:
    rows = [{"first": f"the {n}", "second": f"{'the model ' * 9}{n}"} for n in range(60)]
    tasks = [prepare(rows, **changes) for changes in ({}, {"train_length": 8})]
    lengths = [next(task.batches_from(0, 0)).inputs.seconds.input_ids_BL.shape[1] for task in tasks]
    assert lengths[0] > 18 > lengths[1] == 8
    assert np.array_equal(*(task.embed([rows[0]["second"]])[0] for task in tasks))


def test_held_out_pairs_are_limited_and_all_their_matches_are_listed() -> None:
    draw, number = random.Random(0), 2 * MAX_ITEMS
    together = {(draw.randrange(number), draw.randrange(2 * number)) for _ in range(4 * number)}
    pairs = [
        TextPair(f"q {first}", f"a {second}", None, f"q{first}", f"a{second}", "validation")
        for first, second in sorted(together)
    ]
    items = MatchQuestions.of(pairs).held_out(5, MAX_ITEMS)
    searched = {second for item in items for second in item.right}
    assert len(searched) <= MAX_ITEMS == len(items)
    named = {(pair.first, pair.second) for pair in pairs}
    for item in items:
        assert set(item.right) == {second for second in searched if (item.text, second) in named} != set()


@pytest.mark.parametrize("changes", [{}, SCORED])
def test_gradients_of_the_parts_of_a_batch_add_up(
    prepare: Callable[..., BelongingPairs], changes: dict[str, object]
) -> None:
    task = prepare(paired(200), **changes)
    batch = next(task.batches_from(0, 0)).inputs
    gradients, losses = [], []
    for bounds in ([(0, 16)], [(0, 5), (5, 10), (10, 16)]):
        task.model.zero_grad()
        parts = [task.loss_sum(batch.rows(first, last)) for first, last in bounds]
        for part in parts:
            part.backward()
        losses.append(sum(part.item() for part in parts))
        gradients.append(torch.cat([p.grad.flatten() for p in task.model.parameters() if p.grad is not None]))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert torch.allclose(*gradients, atol=1e-5, rtol=1e-3)
    assert gradients[0].abs().max() > 1e-2


def test_the_fitted_head_is_kept_and_named_if_training_does_not_beat_it(run: Callable[..., Path]) -> None:
    headline = metrics_of(run(added(200), **TOGETHER, epochs=1, optimizer={"learning_rate": 1.0}))["headline"]
    assert headline["method"] == "ridge regression on the frozen encoder"
    assert headline["value"] > headline["baseline_value"] + 0.2


def test_a_model_that_reads_pairs_learns_their_scores_and_loads_as_a_stock_regression(run: Callable[..., Path]) -> None:
    rows = added(300)
    out = run(rows, **TOGETHER, epochs=3)
    headline = metrics_of(out)["headline"]
    assert headline["value"] > 0.6 > headline["baseline_value"] + 0.2
    model = AutoModelForSequenceClassification.from_pretrained(out / "model").eval()
    assert (model.config.problem_type, model.config.num_labels) == ("regression", 1)
    inputs = [[row[name] for row in rows[:60]] for name in ("first", "second")]
    with torch.inference_mode():
        encoded = AutoTokenizer.from_pretrained(out / "model")(*inputs, return_tensors="pt", padding=True)
        answer_N = model(**encoded).logits[:, 0].double().numpy()
    assert spearman(np.array([row["score"] for row in rows[:60]], dtype=np.float64), answer_N) > 0.6
    assert 0 < answer_N.mean() < 1, "scores are scaled to 0-1"
