"""Claim: pairs share no text between splits, their losses follow the papers, parts that fit into memory train like the
batch, and the word search of the baseline is BM25."""

import itertools
import json
import random
import re
from collections.abc import Callable, Iterable
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics.pairwise import cosine_similarity
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from clozeline.records.finetune.scored_items import MAX_ITEMS, read_held_out, spearman
from clozeline.system.errors import DataError
from clozeline.tasks.selection import LabelledRecord, Part, Splits
from clozeline.tasks.similarity import data
from clozeline.tasks.similarity.bm25 import WordIndex, bm25, fused, tfidf_cosines, words_of
from clozeline.tasks.similarity.data import Targets, TextPair, without_name
from clozeline.tasks.similarity.matching import BelongingPairs, MatchQuestions
from clozeline.tasks.similarity.scored import ScoredPairs, cosine_losses, ranking_losses
from tests.make.tasks import fine_tune, inputs_of, metrics_of, params_of, write_rows


@pytest.mark.parametrize(
    ("text", "summary", "description"),
    [
        ("Sort a list.\n\n    Stable, in place.", "Sort a list.", "Stable, in place."),
        ("Sort a list. It is stable.\nAnd quick.", "Sort a list.", "It is stable. And quick."),
        ("sort(x, /) -> list\n\nSort a\nlist.\n\nStable.", "Sort a list.", "Stable."),
        ("Sort e.g. numbers, as of 3.11 with keys.\n \nStable.", "Sort e.g. numbers, as of 3.11 with keys.", "Stable."),
        ("Sort a list", "Sort a list", ""),
        ("", "", ""),
    ],
)
def test_a_docstring_is_divided_into_first_sentence_and_rest(text: str, summary: str, description: str) -> None:
    assert data.parted(text) == (summary, description)


@pytest.mark.parametrize("name", ["aa", "sort", "Aa", "_a", "a1", "größe"])
def test_replacing_a_name_gives_the_result_of_a_regular_expression(name: str) -> None:
    """A name that is also a plain word is only replaced in code."""
    draw, is_plain = random.Random(name), name.isalpha() and name.islower()
    as_code = rf"(?:\b[\w.]+\.{name}\b|\b{name}\b(?=\s?\()|(?<=`){name}(?=`))"
    pattern = as_code if is_plain else rf"\b(?:[\w.]+\.)?{name}\b"
    pieces = [name, name, name.upper(), name[0], "x", ".", ".", " ", "(", "`", "é", "\n", "-"]
    num_changed = 0
    for _ in range(3000):
        text = "".join(draw.choices(pieces, k=draw.randint(1, 12)))
        expected = re.sub(pattern, "this", text)
        assert without_name(text, f"module.{name}") == expected, text
        num_changed += expected != text
    assert num_changed > 100
    assert without_name("Any text.", "") == "Any text."
    held = f"\ua500: call a.{name}(x)."  # the placeholder of the search
    assert without_name(held, f"a.{name}") == held


Given = tuple[Part, LabelledRecord]
PARTS: tuple[Part, ...] = ("train", "validation", "test")
SPLITS = {"train": "a", "validation": "b", "test": "c"}


def chosen(records: Iterable[Given], **changes: object) -> Splits[TextPair]:
    """Return the selection, whose counts always add up."""
    found = data.select(records, params_of("similarity", **changes))
    counts = dict(found.count.by_reason)
    assert counts.pop("num_read") == sum(counts.values())
    return found


def pair(first: str, second: str, score: object = None, part: Part = "train") -> Given:
    return part, LabelledRecord({"sentence1": first, "sentence2": second, "score": score}, f"the place of {second}")


def pairs(num: int) -> list[Given]:
    return [pair(f"query {n}", f"text {n}", str(n % 6)) for n in range(num)]


def test_scores_are_divided_by_the_scale_copies_get_their_mean_and_rows_without_a_score_are_counted() -> None:
    copies, unusable = [pair("A", "B", 1), pair("A", "B", 4)], [pair("a", "b", ""), pair("", "b")]
    found = chosen([*pairs(60), *copies, *unusable], score_field="score")
    for it in itertools.chain(*found.parts.values()):
        assert it.score == (0.5 if it.first == "A" else int(it.first.split()[1]) % 6 / 5)
    counts = [found.count[reason] for reason in ("without_score", "without_text", "twice", "num_used")]
    assert counts == [1, 1, 1, 61]


def test_no_text_of_matching_pairs_is_in_two_splits_and_their_order_changes_nothing() -> None:
    found = chosen(pair(f"query {n % 90}", f"text {n % 70}") for n in range(200))
    for name in ("first", "second"):
        texts = [{getattr(pair, name) for pair in part} for part in found.parts.values()]
        assert len(set.union(*texts)) == sum(map(len, texts))
    assert found.count["in_several_parts"] > 10
    whole, few = chosen(pairs(80)), chosen(pairs(80)[::-1], max_train=30)
    assert whole == chosen(pairs(80)[::-1])
    assert (few.train, few.validation, few.test) == (whole.train[:30], whole.validation, whole.test)


def test_docstrings_give_pairs_and_trivial_ones_are_dropped_and_counted() -> None:
    text = "Sort the list {0}.\n\nCalls lib.fun_{0}(x) on a list of {0} items."
    docs = [{"text": text.format(n), "title": f"lib.fun_{n}"} for n in range(60)]
    trivial = {
        "too_short": ["Sort it all.", "Sorts.\n\nA list is sorted by what it holds."],
        "repeated": ["Sort it all.\n\nTo sort it all, call it or not."],
        "without_text": [""],
    }
    docs += [{"text": text, "title": ""} for texts in trivial.values() for text in texts]
    records: list[Given] = [("train", LabelledRecord(values, "")) for values in docs]
    found = chosen(records, docstring_field="text", title_field="title")
    assert {reason: found.count[reason] for reason in trivial} == {name: len(it) for name, it in trivial.items()}
    assert all(re.fullmatch(r"Calls this\(x\) on a list of \d+ items\.", pair.second) for pair in found.train)


@pytest.mark.parametrize(
    ("first", "second", "part", "reason"),
    [
        ("other", "of test 1", "train", "in_several_parts"),
        ("test 2", "another", "train", "in_several_parts"),
        ("test 0", "of test 0", "test", "twice"),
    ],
)
def test_the_first_duplicated_or_leaking_pair_is_reported_with_its_place(
    first: str, second: str, part: Part, reason: str
) -> None:
    given = [pair(f"{name} {n}", f"of {name} {n}", part=name) for name in PARTS for n in range(3)]
    _, odd = pair(first, second)
    given += [(part, LabelledRecord(odd.values, place)) for place in ("first", "again")]
    assert chosen(given, splits=SPLITS).count.first_places[reason] == "first"


ALIKE = [pair(f"{part} {n}", "x", 4 if part == "test" else n, part) for part in PARTS for n in range(3)]


@pytest.mark.parametrize(
    ("records", "changes", "problem"),
    [
        (pairs(1), {}, "1 records, 1 of use"),
        ([pair("a", "b", "7")], {}, r"the place of b: field `score`.*0 \(`lowest_score`\) to 5, .*: 7"),
        (ALIKE, {"splits": SPLITS}, "all 3 test pairs have the score 4"),
    ],
)
def test_pairs_that_teach_or_measure_nothing_are_refused(
    records: list[Given], changes: dict[str, object], problem: str
) -> None:
    with pytest.raises(DataError, match=problem):
        chosen(records, score_field="score", **changes)


VOCABULARY = ["sort", "list", "file", "hash", "shape", "row", "Column", "größe", "x1"]
DRAW = random.Random(0)
DOCUMENTS = [" ".join(DRAW.choices(VOCABULARY, k=DRAW.randint(0, 12))) for _ in range(60)]
QUERIES = ["sort", "List, list; GRÖSSE größe", "unheard of", "", "row column x1 hash row"]


def by_formula(query: str) -> list[float]:
    split = [words_of(document) for document in DOCUMENTS]
    mean, scores = sum(map(len, split)) / len(split), []
    for words in split:
        score = 0.0
        for word in words_of(query):
            having = sum(word in other for other in split)
            idf = log(1 + (len(split) - having + 0.5) / (having + 0.5))
            times = words.count(word)
            score += idf * times * 2.2 / (times + 1.2 * (0.25 + 0.75 * len(words) / mean))
        scores.append(score)
    return scores


def test_scores_follow_the_bm25_formula_also_from_a_saved_index(tmp_path: Path) -> None:
    found, index = bm25(["list", *QUERIES, "list list"], DOCUMENTS), WordIndex.of(DOCUMENTS)
    expected = np.array([by_formula(query) for query in QUERIES])
    assert found(1, 6) == pytest.approx(expected, rel=1e-5)
    assert found(6, 7)[0] == pytest.approx(2 * found(0, 1)[0])
    index.save(tmp_path)
    for opened in (index, WordIndex.open(tmp_path)):
        assert np.array([opened.scores(query) for query in QUERIES]) == pytest.approx(expected, rel=1e-5)
    assert WordIndex.of(["", "..."]).scores("any").tolist() == [0, 0]


def test_fused_scores_add_cosines_and_word_scores_scaled_to_at_most_1() -> None:
    cosines = np.array([[0.5, 0.4, -0.2], [0.1, 0.3, 0.2]], dtype=np.float32)
    words = np.array([[0.0, 30.0, 15.0], [0.2, 0.0, 0.1]], dtype=np.float32)
    assert fused(cosines, words) == pytest.approx(np.array([[1.0, 1.8, 0.1], [1.2, 0.6, 0.9]]))
    assert fused(cosines, 0 * words).argsort().tolist() == cosines.argsort().tolist()


def test_tfidf_cosines_equal_those_of_scikit_learn() -> None:
    firsts, seconds = ["sort a list", "a file"], ["sort the list", "nothing here"]
    vectorizer = TfidfVectorizer(sublinear_tf=True, token_pattern=r"(?u)\b\w+\b").fit(DOCUMENTS)
    expected = cosine_similarity(vectorizer.transform(firsts), vectorizer.transform(seconds)).diagonal()
    assert tfidf_cosines(DOCUMENTS, firsts, seconds) == pytest.approx(expected)
    assert expected[0] > 0 == expected[1]


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


def belonging(folder: Path, encoder: Path, rows: Rows, **changes: object) -> BelongingPairs:
    return BelongingPairs(inputs_of(params(**changes), encoder, write_rows(folder / "data.jsonl", rows)))


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


def test_cosines_follow_scores_of_pairs_without_common_words(
    run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
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
    monkeypatch.setattr(ScoredPairs, "answers_to", lambda task, pairs: (np.ones(len(pairs)), 0))
    metrics = metrics_of(run(rows[:200], **SCORED, epochs=1))
    assert ("validation_score" in metrics, metrics["headline"]["value"]) == (False, 0), "NaN is no figure"


def test_vectors_equal_those_of_stock_transformers(small_encoder: Path, tmp_path: Path) -> None:
    texts = ["encoder sentence", "the model has seen a small file"]
    model, tokenizer = AutoModel.from_pretrained(small_encoder).eval(), AutoTokenizer.from_pretrained(small_encoder)
    with torch.inference_mode():
        inputs = tokenizer(texts, return_tensors="pt", padding=True)
        hidden_BLH = model(**inputs).last_hidden_state
    mean_BH = torch.nn.functional.normalize((hidden_BLH * inputs["attention_mask"].unsqueeze(2)).sum(1), dim=1)
    rows = [{"first": f"the {n}", "second": f"{'the model ' * 9}{n}"} for n in range(60)]
    task = belonging(tmp_path, small_encoder, rows, train_length=8)
    assert np.allclose(task.embed(texts)[0], mean_BH.numpy(), atol=1e-5), "longer than training reads"
    assert next(task.batches_from(0, 0)).inputs.seconds.input_ids_BL.shape[1] == 8


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
    small_encoder: Path, tmp_path: Path, changes: dict[str, object]
) -> None:
    task = belonging(tmp_path, small_encoder, paired(200), **changes)
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
