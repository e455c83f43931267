"""Claim: the benchmarks of fine-tuning give both sides the same task, and read the other side's answers correctly."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import BertWordPieceTokenizer
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

import finetune
from clozeline.tokenizing.tokenizer.folder import SPECIAL_TOKENS
from comparison import labelled, their_tasks
from comparison.labelled import cut
from tests.make.models import word_pieces

SIZES = {"test": 20, "validation": 8, "train": 40}


@pytest.fixture(autouse=True)
def _no_known_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(labelled, "KEPT", tmp_path / "kept")
    monkeypatch.setenv(labelled.DATA_VARIABLE, str(tmp_path / "nothing"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text_of", "at_least"),
    [
        ("finetune_classification", lambda item: item["text"], 0.65),
        ("finetune_tagging", lambda item: " ".join(item["tokens"]), 0.2),
        ("finetune_qa", lambda item: f"{item['context']} {item['question']}", 0.0),
    ],
)
def test_both_sides_learn_from_the_same_items_and_are_judged_on_the_same(
    tmp_path: Path, name: str, text_of: Callable[[Any], str], at_least: float
) -> None:
    setup = finetune.SETUPS[name]
    sizes = {"test": 60, "validation": 20, "train": 240 if at_least else 24}
    recipe = replace(setup.recipe, epochs=4 if at_least else 1, batch_size=8, learning_rate=2e-3)
    parts = setup.parts(sizes)
    words = word_pieces([text_of(item) for item in parts.read("train")], vocab_size=600)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=BertWordPieceTokenizer(vocab=words)._tokenizer, **SPECIAL_TOKENS
    )
    tokenizer.save_pretrained(tmp_path / "encoder")
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    model = BertModel(BertConfig(vocab_size=len(tokenizer), hidden_dropout_prob=0.0, **shape))
    model.save_pretrained(tmp_path / "encoder")
    sides = finetune.Sides(replace(setup, recipe=recipe), parts, tmp_path / "encoder", num_threads=1)
    assert min(sides.ours(0), sides.theirs(0)) > 0
    quality = sides.quality()
    assert ("logistic regression on the frozen encoder" in sides.beside) == (name != "finetune_qa")
    assert min(*quality["ours_metric"], *quality["theirs_metric"]) >= at_least


@pytest.mark.parametrize("name", finetune.SETUPS)
def test_our_side_trains_by_the_recipe_of_both(name: str) -> None:
    recipe = replace(finetune.SETUPS[name].recipe, epochs=7, batch_size=3, learning_rate=0.25, max_length=300)
    params = finetune.our_params(replace(finetune.SETUPS[name], recipe=recipe), 1)
    ours = (params.epochs, params.batch_size, params.optimizer.learning_rate, params.max_length)
    assert ours == (7, 3, 0.25, 300)


def test_the_difference_is_between_the_means_and_its_error_combines_both(tmp_path: Path) -> None:
    sides = finetune.Sides(finetune.SETUPS["finetune_tagging"], labelled.Parts("", tmp_path), tmp_path, 1)
    sides._metric.update(ours=[0.5, 0.7, 0.6], theirs=[0.65, 0.7, 0.75])
    quality = sides.quality()
    assert quality["metric_difference"] == pytest.approx(-0.1)
    assert quality["standard_error"] == pytest.approx(((0.1**2 + 0.05**2) / 3) ** 0.5, abs=1e-4)
    assert quality["not_lower"] is False
    sides._metric.update(ours=[0.5], theirs=[0.4])
    assert (sides.quality()["standard_error"], sides.quality()["not_lower"]) == (None, None)


def test_few_labels_are_the_mean_over_sets_beside_that_of_the_probe(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rest = {"tfidf": 0.1, "cpu_seconds": 1.0, "keeps_probe": False, "learning_rate": 0.1}
    figures = iter([(0.9, 0.5), (0.7, 0.3), (0.5, 0.7), (0.7, 0.5)])  # two seeds of one set, then of the other
    monkeypatch.setattr(labelled, "few_label_sets", lambda: ["one", "other"])
    monkeypatch.setattr(finetune, "_of_few", lambda *_: dict(zip(("ours", "probe"), next(figures), strict=True)) | rest)
    monkeypatch.setattr("sys.argv", ["finetune_few_labels", "--seeds", "2", "--train", "9", "--test", "6"])
    finetune.few_labels()
    line = json.loads(capsys.readouterr().out)
    assert (line["ours_rounds"], line["theirs_rounds"], line["ratio"]) == ([0.7, 0.7], [0.6, 0.4], 1.4)
    assert line["sets"]["other"]["difference"] == 0.0
    assert line["sets"]["other"]["standard_error"] == 0.2


def test_each_draw_has_other_texts_and_its_parts_share_none() -> None:
    one, same, other = (labelled.few_label_parts("generated", SIZES, draw).read("train") for draw in (0, 0, 1))
    assert one == same != other
    assert len(one) == 40

    def parted(items: Sequence[Any]) -> Any:
        return cut(items, SIZES, lambda it: it["context"], lambda it: it["question"])

    items = labelled.generated(SIZES, seed=0)
    for item in items:
        for text, start in zip(item["answers"]["text"], item["answers"]["answer_start"], strict=True):
            assert item["context"][start : start + len(text)] == text
    parts = parted([*items, *items])
    assert parts == parted(items)
    contexts = [{item["context"] for item in parts[part]} for part in parts]
    assert sum(map(len, contexts)) == len(set().union(*contexts))
    assert all(SIZES[part] <= len(parts[part]) < SIZES[part] + 4 for part in parts)
    asked = [(item["context"], item["question"]) for part in parts.values() for item in part]
    assert len(set(asked)) == len(asked)


def test_the_first_token_of_each_word_is_a_target_and_special_tokens_are_not() -> None:
    assert their_tasks._first_tokens([None, 0, 0, 1, 3, 3, None]) == {1: 0, 3: 1, 4: 3}


def test_the_answer_is_the_best_span_over_all_windows_unless_no_answer_scores_higher() -> None:
    spans = [[-1, -1], [-1, -1], [0, 3], [4, 7], [8, 11]]
    start_WL = np.array([[1, 9, 2, 3, 0], [0, 0, -5, 5, 0]], dtype=np.float32)
    end_WL = np.array([[1, 9, 4, 1, 2], [0, 0, 9, 1, 2]], dtype=np.float32)

    def said(has_negatives: bool) -> list[str]:
        contexts, windows = ["one two six", "abc def ghi"], [(0, spans), (1, spans)]
        return their_tasks._texts(contexts, windows, start_WL, end_WL, has_negatives=has_negatives)

    assert said(True) == ["one", "def ghi"]  # 2 + 4 over 3 + 2; an end before its start counts for nothing
    start_WL[1, 0] = 7.5  # one window has no answer: against the sum of its best pair, 5 + 2
    assert said(True) == ["one", ""]
    assert said(False) == ["one", "def ghi"]


def test_a_window_without_the_whole_answer_is_labelled_unanswerable() -> None:
    ends, spans = their_tasks._ends, [(-1, -1), (0, 3), (4, 7), (8, 11), (-1, -1)]
    assert ends({"text": ["def g"], "answer_start": [4]}, spans) == (2, 3)
    assert ends({"text": ["ghi jkl"], "answer_start": [8]}, spans) == (0, 0)
    assert ends({"text": [], "answer_start": []}, spans) == (0, 0)
