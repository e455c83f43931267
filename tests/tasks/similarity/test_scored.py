"""Claim: the losses of a batch of pairs follow the papers, and parts that fit into memory train like the batch."""

import json
import random
from collections.abc import Callable, Sequence
from math import exp, log
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from clozeline.params.tasks import SimilarityParams
from clozeline.records.finetune.scored_items import MAX_ITEMS, read_held_out, spearman
from clozeline.tasks.rows import EncodedBatch
from clozeline.tasks.similarity.data import PairBatch, Targets, TextPair
from clozeline.tasks.similarity.matching import BelongingPairs, MatchQuestions
from clozeline.tasks.similarity.scored import ScoredPairs, Values, cosine_losses, ranking_losses
from clozeline.tasks.task import TaskInputs
from tests.make.tasks import fine_tune, metrics_of, params_of

A, B = [1.0, 0.0], [0.0, 1.0]


def targets(firsts: list[int], seconds: list[int]) -> Targets:
    return Targets(None, torch.tensor(firsts), torch.tensor(seconds))


def test_the_loss_of_a_scored_pair_is_the_squared_error_of_its_cosine() -> None:
    losses = cosine_losses(torch.tensor([A, A]), torch.tensor([A, B]), torch.tensor([0.75, 0.5]))
    assert losses.tolist() == [0.0625, 0.25]


def test_the_other_pairs_of_a_batch_are_the_negatives_in_both_directions() -> None:
    loss_B = ranking_losses(torch.tensor([A, A]), torch.tensor([A, B]), targets([0, 1], [0, 1]), temperature=0.5)
    nearer, farther = -log(exp(2) / (exp(2) + 1)), -log(1 / (exp(2) + 1))
    assert loss_B.tolist() == pytest.approx([(nearer + log(2)) / 2, (farther + log(2)) / 2])


@pytest.mark.parametrize("same", [targets([0, 0], [0, 1]), targets([0, 1], [0, 0])])
def test_pairs_that_share_a_text_are_not_negatives_of_each_other(same: Targets) -> None:
    assert ranking_losses(torch.tensor([A, A]), torch.tensor([A, A]), same, temperature=0.1).tolist() == [0, 0]


def test_each_part_of_a_batch_sees_every_other_pair_once() -> None:
    side = EncodedBatch(torch.arange(20).reshape(10, 2), None)
    whole = PairBatch.whole(side, side, targets([*range(10)], [*range(10)]))
    for first, last in [(0, 3), (3, 6), (6, 10), (4, 5)]:
        part = whole.rows(first, last)
        others = [row for other in part.others() for row in range(other.first, other.last)]
        assert others == [row for row in range(10) if not first <= row < last]
        assert all(other.num_rows <= part.num_rows for other in part.others())
        assert part.num_slots == (last - first) * 4
    assert whole.rows(2, 8).rows(1, 3).first == 3


Finetune = Callable[..., Path]
WORDS = ["encoder", "sentence", "tokenizer", "pieces", "tensor", "rows", "error", "hash"]
OTHERS = ["model", "text", "word", "file", "shape", "end", "processors", "small"]
"""Words that second texts use in place of `WORDS`, so that the texts of a pair have no word in common."""


def paired(num: int) -> list[dict[str, object]]:
    draw = random.Random(1)
    rows = []
    for _ in range(num):
        one, other = (draw.sample(range(8), 3) for _ in range(2))
        kept = draw.choice([one, other, [one[0], *other[1:]]])
        first, second = (" ".join(words[place] for place in places) for words, places in ((WORDS, one), (OTHERS, kept)))
        rows.append({"first": first, "second": second, "score": len(set(one) & set(kept))})
    return rows


def params(**changes: object) -> SimilarityParams:
    fields = {"first_field": "first", "second_field": "second", "max_length": 32, "batch_size": 16, "epochs": 6}
    made: SimilarityParams = params_of("similarity", **{**fields, "optimizer": {"learning_rate": 0.01}, **changes})
    return made


@pytest.fixture
def run(small_encoder: Path, tmp_path: Path) -> Finetune:
    """`run(name, rows, **changes)` runs the stage and returns its output folder."""

    def run(name: str, rows: list[dict[str, object]], **changes: object) -> Path:
        data = tmp_path / "data.parquet"
        pq.write_table(pa.Table.from_pylist(rows), data)
        return fine_tune(params(**changes), tmp_path / name, encoder=small_encoder, data=data)

    return run


def matching(num: int) -> list[dict[str, object]]:
    rows = paired(num)
    return [row for row in rows if row["score"] == 3]


def test_matching_texts_without_common_words_are_found(run: Finetune) -> None:
    rows = matching(600)
    out = run("out", rows, recall_at=3, epochs=3)
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


def test_cosines_follow_scores_of_pairs_without_common_words(run: Finetune) -> None:
    rows = paired(500)
    out = run("out", rows, score_field="score", highest_score=3.0)
    headline = metrics_of(out)["headline"]
    assert headline["metric"] == "spearman"
    assert headline["value"] > 0.4 > headline["baseline_value"] + 0.2
    assert headline["trivial_value"] == 0
    assert headline["low"] < headline["value"] < headline["high"]
    held_out = read_held_out(out / "model")
    assert len(held_out) == metrics_of(out)["num_validation"] > 10
    scores = {(row["first"], row["second"]): row["score"] for row in rows}
    assert [3 * (it.score or 0.0) for it in held_out] == pytest.approx([scores[it.text, it.second] for it in held_out])


def test_a_nan_validation_score_is_left_out_of_the_metrics(run: Finetune, monkeypatch: pytest.MonkeyPatch) -> None:
    def always_alike(_task: ScoredPairs, pairs: Sequence[TextPair]) -> tuple[Values, int]:
        return np.ones(len(pairs)), 0

    monkeypatch.setattr(ScoredPairs, "answers_to", always_alike)
    out = run("out", paired(200), score_field="score", highest_score=3.0, epochs=1)
    metrics = metrics_of(out)
    assert "validation_score" not in metrics
    assert metrics["headline"]["value"] == 0
    assert "NaN" not in (out / "metrics.json").read_text()


def test_vectors_equal_those_of_stock_transformers(small_encoder: Path, tmp_path: Path) -> None:
    pq.write_table(pa.Table.from_pylist(matching(100)), tmp_path / "data.parquet")
    task = BelongingPairs(TaskInputs(params(), 7, small_encoder, tmp_path / "data.parquet", tmp_path / "data.parquet"))
    texts = ["encoder sentence", "the model has seen a small file"]
    model, tokenizer = AutoModel.from_pretrained(small_encoder).eval(), AutoTokenizer.from_pretrained(small_encoder)
    with torch.inference_mode():
        inputs = tokenizer(texts, return_tensors="pt", padding=True)
        hidden_BLH = model(**inputs).last_hidden_state
    weight_BL1 = inputs["attention_mask"].unsqueeze(2)
    mean_BH = torch.nn.functional.normalize((hidden_BLH * weight_BL1).sum(1), dim=1)
    assert np.allclose(task.embed(texts)[0], mean_BH.numpy(), atol=1e-5)


def test_training_may_truncate_texts_shorter_than_evaluation(small_encoder: Path, tmp_path: Path) -> None:
    rows = [{"first": f"the {n}", "second": f"{'the model ' * 9}{n}"} for n in range(60)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "data.parquet")
    lengths, vectors = [], []
    for changes in ({}, {"train_length": 8}):
        inputs = TaskInputs(params(**changes), 7, small_encoder, tmp_path / "data.parquet", tmp_path / "data.parquet")
        task = BelongingPairs(inputs)
        lengths.append(next(task.batches_from(0, 0)).inputs.seconds.input_ids_BL.shape[1])
        vectors.append(task.embed([str(rows[0]["second"])])[0])
    assert lengths[0] > 18 > lengths[1] == 8
    assert np.array_equal(*vectors)


def test_held_out_pairs_are_limited_and_all_their_matches_are_listed() -> None:
    draw = random.Random(0)
    number = 2 * MAX_ITEMS
    together = {(draw.randrange(number), draw.randrange(2 * number)) for _ in range(4 * number)}
    pairs = [
        TextPair(f"q {first}", f"a {second}", None, f"q{first}", f"a{second}", "validation")
        for first, second in sorted(together)
    ]
    items = MatchQuestions.of(pairs).held_out(5, MAX_ITEMS)
    assert len(items) == MAX_ITEMS
    searched = {second for item in items for second in item.right}
    assert len(searched) <= MAX_ITEMS
    named = {(pair.first, pair.second) for pair in pairs}
    for item in items:
        assert set(item.right) == {second for second in searched if (item.text, second) in named} != set()


@pytest.mark.parametrize("changes", [{}, {"score_field": "score", "highest_score": 3.0}])
def test_gradients_of_the_parts_of_a_batch_add_up(
    small_encoder: Path, tmp_path: Path, changes: dict[str, object]
) -> None:
    pq.write_table(pa.Table.from_pylist(paired(200)), tmp_path / "data.parquet")
    asked = params(**changes)
    inputs = TaskInputs(asked, 7, small_encoder, tmp_path / "data.parquet", tmp_path / "data.parquet")
    task = BelongingPairs(inputs)
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


def added(num: int) -> list[dict[str, object]]:
    """Return pairs whose score is how many of two words they have, one in each text."""
    draw = random.Random(1)
    sides = [(draw.sample(WORDS, 4), draw.sample(OTHERS, 4)) for _ in range(num)]
    return [
        {"first": " ".join(one), "second": " ".join(other), "score": (WORDS[0] in one) + (OTHERS[0] in other)}
        for one, other in sides
    ]


def test_the_fitted_head_is_kept_and_named_if_training_does_not_beat_it(run: Finetune) -> None:
    knobs = {"score_field": "score", "highest_score": 2.0, "read_together": True, "epochs": 1}
    headline = metrics_of(run("out", added(200), **knobs, optimizer={"learning_rate": 1.0}))["headline"]
    assert headline["method"] == "ridge regression on the frozen encoder"
    assert headline["value"] > headline["baseline_value"] + 0.2


def test_a_model_that_reads_pairs_learns_their_scores_and_loads_as_a_stock_regression(run: Finetune) -> None:
    rows = added(300)
    out = run("out", rows, score_field="score", highest_score=2.0, read_together=True, epochs=3)
    headline = metrics_of(out)["headline"]
    assert headline["value"] > 0.6 > headline["baseline_value"] + 0.2
    model = AutoModelForSequenceClassification.from_pretrained(out / "model").eval()
    assert (model.config.problem_type, model.config.num_labels) == ("regression", 1)
    inputs = [[str(row[name]) for row in rows[:60]] for name in ("first", "second")]
    with torch.inference_mode():
        encoded = AutoTokenizer.from_pretrained(out / "model")(*inputs, return_tensors="pt", padding=True)
        answer_N = model(**encoded).logits[:, 0].double().numpy()
    score_N = np.array([row["score"] for row in rows[:60]], dtype=np.float64)
    assert spearman(score_N, answer_N) > 0.6
    assert 0 < answer_N.mean() < 1, "scores are scaled to 0-1"
