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

import few_labels
import finetune
from clozeline.tokenizing.tokenizer.folder import SPECIAL_TOKENS
from comparison import labelled, their_tasks
from comparison.labelled import cut
from tests.make.models import word_pieces

pytestmark = pytest.mark.usefixtures("no_known_data")


def tiny_encoder(folder: Path, texts: list[str]) -> Path:
    """A BERT of two layers whose tokenizer knows these words."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=BertWordPieceTokenizer(vocab=word_pieces(texts, vocab_size=600))._tokenizer, **SPECIAL_TOKENS
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    BertModel(BertConfig(vocab_size=len(tokenizer), hidden_dropout_prob=0.0, **sizes)).save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text_of", "at_least"),
    [
        ("finetune_classification", lambda item: item["text"], 0.65),
        ("finetune_tagging", lambda item: " ".join(item["tokens"]), 0.2),
        ("finetune_qa", lambda item: f"{item['context']} {item['question']}", None),
    ],
)
def test_both_sides_learn_from_the_same_items_and_are_judged_on_the_same(
    tmp_path: Path, name: str, text_of: Callable[[Any], str], at_least: float | None
) -> None:
    setup = finetune.SETUPS[name]
    sizes = {"test": 60, "validation": 20, "train": 240 if at_least else 24}
    recipe = replace(setup.recipe, epochs=4 if at_least else 1, batch_size=8, learning_rate=2e-3)
    setup = replace(setup, sizes=sizes, recipe=recipe)
    parts = setup.parts(sizes)
    assert parts.data == "generated"
    encoder = tiny_encoder(tmp_path / "encoder", [text_of(item) for item in parts.read("train")])
    sides = finetune.Sides(setup, parts, encoder, num_threads=1)
    assert min(sides.ours(0), sides.theirs(0)) > 0
    quality = sides.quality()
    assert ("logistic regression on the frozen encoder" in sides.beside) == (name != "finetune_qa")
    assert quality["probe_kept"] in (0, 1)
    if at_least:
        assert min(*quality["ours_metric"], *quality["theirs_metric"]) > at_least


def run_few_labels(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr("sys.argv", ["finetune_few_labels", *arguments])
    few_labels.main()


@pytest.mark.slow
def test_few_labels_are_learned_beside_a_probe(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [item["text"] for item in labelled.generated_polarity(300, seed=0)]
    encoder = tiny_encoder(tmp_path / "encoder", texts)
    monkeypatch.setattr(few_labels, "weights", lambda: encoder)
    given = ["--seeds", "2", "--train", "90", "--test", "60", "--epochs", "1", "--threads", "1"]
    run_few_labels(monkeypatch, *given)
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    found = line["sets"]["generated"]
    assert line["ours_rounds"] == pytest.approx(found["ours"], abs=1e-4)
    assert line["theirs_rounds"] == pytest.approx(found["probe"], abs=1e-4)
    assert line["ratio"] == pytest.approx(sum(found["ours"]) / sum(found["probe"]), abs=1e-3)
    assert found["probe_kept"] in (0, 1, 2)
    assert found["difference"] == pytest.approx((sum(found["ours"]) - sum(found["probe"])) / 2, abs=1e-3)


def test_a_set_of_few_labels_that_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run_few_labels(monkeypatch, "banking77")
    assert "banking77" in capsys.readouterr().err


def test_the_recipe_is_given_to_both_sides(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    class Silent(finetune.Sides):
        def ours(self, seed: int) -> float:
            params = finetune.our_params(self._setup, 1)
            asked.append((params.epochs, params.batch_size, params.optimizer.learning_rate))
            self._told("ours", 0.5)
            return 1.0

        def theirs(self, seed: int) -> float:
            recipe = self._setup.recipe
            asked.append((recipe.epochs, recipe.batch_size, recipe.learning_rate))
            self._told("theirs", 0.5)
            return 2.0

    monkeypatch.setattr(finetune, "Sides", Silent)
    monkeypatch.setattr(finetune, "weights", lambda: tmp_path)
    given = ["--seeds", "1", "--train", "24", "--epochs", "2", "--batch-size", "4", "--learning-rate", "0.001"]
    monkeypatch.setattr("sys.argv", ["finetune_qa", *given])
    finetune.qa()
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert asked == [(2, 4, 0.001), (2, 4, 0.001)]
    assert 24 <= line["sizes"]["train"] < 28
    assert (line["epochs"], line["batch_size"], line["ratio"], line["rounds"]) == (2, 4, 2.0, 1)


def test_the_difference_is_between_the_means_and_its_error_combines_both(tmp_path: Path) -> None:
    sides = finetune.Sides(finetune.SETUPS["finetune_tagging"], labelled.Parts("", tmp_path), tmp_path, 1)
    sides._metric.update(ours=[0.5, 0.7, 0.6], theirs=[0.65, 0.7, 0.75])
    quality = sides.quality()
    assert quality["metric_difference"] == pytest.approx(-0.1)
    assert quality["standard_error"] == pytest.approx(((0.1**2 + 0.05**2) / 3) ** 0.5, abs=1e-4)
    assert quality["not_lower"] is False
    sides._metric.update(ours=[0.5], theirs=[0.4])
    assert (sides.quality()["standard_error"], sides.quality()["not_lower"]) == (None, None)


def test_each_draw_has_other_texts_and_its_parts_share_none() -> None:
    sizes = {"test": 20, "validation": 8, "train": 40}
    one, same, other = (labelled.few_label_parts("generated", sizes, draw).read("train") for draw in (0, 0, 1))
    assert one == same != other
    assert len(one) == 40

    def parted(items: Sequence[Any]) -> Any:
        return cut(items, sizes, lambda it: it["context"], lambda it: it["question"])

    items = list(labelled.generated_questions(120, seed=0))
    parts = parted([*items, *items])
    assert parts == parted(items)
    contexts = [{item["context"] for item in parts[part]} for part in parts]
    assert sum(map(len, contexts)) == len(set().union(*contexts))
    assert all(sizes[part] <= len(parts[part]) < sizes[part] + 4 for part in parts)
    asked = [(item["context"], item["question"]) for part in parts.values() for item in part]
    assert len(set(asked)) == len(asked)


def test_generated_answers_are_at_their_offsets_and_every_question_that_is_asked_has_one() -> None:
    items = list(labelled.generated_questions(40, seed=1))
    for item in items:
        for text, start in zip(item["answers"]["text"], item["answers"]["answer_start"], strict=True):
            assert item["context"][start : start + len(text)] == text
    assert sum(not item["answers"]["text"] for item in items) == 10
    parts = labelled.question_parts({"test": 20, "validation": 8, "train": 40})
    assert all(item["answers"]["text"] for part in their_tasks.PARTS for item in parts.read(part))


def test_the_first_token_of_each_word_is_a_target_and_special_tokens_are_not() -> None:
    assert their_tasks._first_tokens([None, 0, 0, 1, 3, 3, None]) == {1: 0, 3: 1, 4: 3}


def test_the_answer_is_the_best_span_over_all_windows_unless_no_answer_scores_higher() -> None:
    spans = [[-1, -1], [-1, -1], [0, 3], [4, 7], [8, 11]]
    start_WL = np.array([[1, 9, 2, 3, 0], [0, 0, -5, 5, 0]], dtype=np.float32)
    end_WL = np.array([[1, 9, 4, 1, 2], [0, 0, 9, 1, 2]], dtype=np.float32)
    windows = [(0, spans), (1, spans)]

    def said(has_negatives: bool) -> list[str]:
        contexts = ["one two six", "abc def ghi"]
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


def test_the_tasks_of_the_table_are_valid_params() -> None:
    tasks = finetune.YAML(typ="safe").load(finetune.TABLE)
    read = {name: finetune.params_of({**task, "num_threads": 1}) for name, task in tasks.items()}
    kinds = {"classification", "tagging", "question_answering", "similarity"}
    assert {params.kind for params in read.values()} == kinds
    assert read["wnut17"].splits.test == "emerging.dev.conll"


def test_a_table_row_shows_the_figure_its_interval_and_both_baselines() -> None:
    headline = {"metric": "f1", "value": 0.52553, "low": 0.4855, "high": 0.5573}
    headline |= {"baseline": "usual tag", "baseline_value": 0.0857, "trivial": "none", "trivial_value": 0.0}
    row = finetune.row("wnut17", {"headline": headline, "num_train": 3031, "num_test": 1009})
    said = "| wnut17 | 3,031 / 1,009 | f1 **0.526** | 0.485 to 0.557 | usual tag: 0.086 | none: 0.000 |"
    assert row == said
