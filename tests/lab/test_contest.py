"""Claim: a model is judged on the same texts and masks as another, and a difference is tested in pairs.
Of each minimal pair a model chooses the likelier sentence, and accuracy is by phenomenon and paradigm.
"""

import gzip
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, MPNetConfig
from typer.testing import CliRunner

from clozeline.cli import app
from clozeline.cli.evaluate import source_of
from clozeline.encoder.checkpoints import fresh_stock
from clozeline.encoder.model import EncoderModel
from clozeline.lab import blimp
from clozeline.lab.blimp import BlimpFigures, MinimalPair, Verdicts, read_pairs
from clozeline.lab.contest import ContestAsking, ContestQuestions, Judgement, PairedTest, judge_models
from clozeline.language import models
from clozeline.language.models import LanguageModel
from clozeline.system.errors import ArtifactError, DataError, ParamsError

ASKING = ContestAsking(estimator="folds", seed=1, num_folds=3, max_length=32, batch_tokens=512)
SMALL = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
W5 = 5
Save = Callable[..., Path]


def judge(
    *folders: Path, text: Path, scores: Path | None = None, is_length_given: bool = True, **how: Any
) -> Judgement:
    source, asking = source_of(text, one_document_per="line"), replace(ASKING, **how)
    questions = ContestQuestions(text, source, None, asking, is_length_given=is_length_given, num_samples=200)
    return judge_models([str(folder) for folder in folders], questions, scores)


@pytest.fixture
def save(tiny_tokenizer: Path, tmp_path: Path) -> Save:
    """`save(model, name)`: its folder."""

    def save(model: Any, name: str = "model") -> Path:
        (folder := tmp_path / name).mkdir()
        models.save(model, tiny_tokenizer, folder)
        return folder

    return save


def fond_of_w5(model: LanguageModel) -> LanguageModel:
    with torch.no_grad():
        model.head.output.bias[W5] += 1.0
    return model


@pytest.fixture
def encoder(model: LanguageModel, save: Save) -> Path:
    return save(model, "encoder")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """File of 30 documents of 3 to 12 words, every third word w5; its empty line is no document."""
    random = np.random.default_rng(0)
    lines = [
        " ".join("w5" if place % 3 == 0 else f"w{random.integers(6, 64)}" for place in range(random.integers(3, 13)))
        for _ in range(30)
    ]
    path = tmp_path / "text.txt"
    path.write_text("\n".join([*lines[:10], "", *lines[10:]]) + "\n")
    return path


def test_the_better_model_is_found_on_the_same_masks_and_none_is_better_than_itself(encoder, model, save, text) -> None:
    same = judge(encoder, encoder, text=text)
    assert same.same_tokens
    assert same.models[0].text == same.models[1].text
    assert same.models[0].text.validation_documents == 30
    assert (same.comparison.nats_per_byte.difference, same.comparison.nats_per_byte.p_value) == (0, 1)
    judged = judge(save(fond_of_w5(model)), encoder, text=text)
    better, worse = (found.text for found in judged.models)
    test = judged.comparison.loss_nats_per_token
    assert test.difference == pytest.approx(better.loss_nats_per_token - worse.loss_nats_per_token)
    assert test.low < test.difference < test.high < 0
    per_byte = judged.comparison.nats_per_byte
    assert per_byte.difference == pytest.approx(better.nats_per_byte - worse.nats_per_byte)
    assert max(test.p_value, per_byte.p_value) < 0.05
    # On the same documents, the interval of the paired test is narrower than the interval of each model.
    assert test.high - test.low < better.loss_nats_per_token_high - better.loss_nats_per_token_low


def test_models_with_different_tokenizers_are_compared_per_byte_only(encoder, model, save: Save, text: Path) -> None:
    other = save(model)
    (other / "tokenizer.json").write_text((other / "tokenizer.json").read_text().replace('"w9"', '"v9"'))
    judged = judge(encoder, other, text=text)
    assert not judged.same_tokens
    assert judged.models[1].text.unknown_tokens > judged.models[0].text.unknown_tokens == 0
    assert judged.comparison.nats_per_byte is not None
    assert judged.comparison.loss_nats_per_token is judged.comparison.top1 is None


@torch.inference_mode()
def test_pseudo_log_likelihood_sums_over_tokens_masked_one_at_a_time(encoder, model, text: Path, tmp_path) -> None:
    judge(encoder, text=text, scores=tmp_path / "scores.jsonl", estimator="pll")
    records = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    lines = [line for line in text.read_text().split("\n") if line]
    assert [record["text_bytes"] for record in records] == [len(line) for line in lines]
    ids_L = torch.tensor([2, *(int(word[1:]) for word in lines[0].split()), 3])
    total = 0.0
    for place in range(1, len(ids_L) - 1):
        shown_L = ids_L.index_fill(0, torch.tensor(place), 4)
        total += model(shown_L[None]).logits[0, place].log_softmax(0)[ids_L[place]].item()
    assert records[0]["log_likelihood_nats"] == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (lambda: EncoderModel(BertConfig(**SMALL), "feature-extraction"), r"lacks 5 weights.*cls\.predictions"),
        (lambda: fresh_stock(MPNetConfig(**SMALL | {"vocab_size": 40}), "mlm"), "tokens that the model does not know"),
    ],
    ids=["no head", "tokenizer of another model"],
)
def test_a_model_that_cannot_predict_the_text_is_refused(model: Callable[[], Any], told: str, save, text: Path) -> None:
    with pytest.raises(ArtifactError, match=f"(?s){told}"):
        judge(save(model()), text=text)


def test_a_requested_length_beyond_the_model_is_refused_and_the_default_is_shortened(encoder: Path, text: Path) -> None:
    with pytest.raises(ParamsError, match="--max-length"):
        judge(encoder, text=text, max_length=100)
    assert judge(encoder, text=text, is_length_given=False, max_length=100).how.max_length == 64


def clozeline(folder: Path, *arguments: str) -> str:
    with pytest.MonkeyPatch.context() as here:
        here.chdir(folder)
        result = CliRunner().invoke(app, ["evaluate", *arguments], catch_exceptions=False)
    return " ".join(result.stdout.split())


@pytest.mark.usefixtures("encoder")
def test_the_command_ranks_models_of_one_objective_in_a_table_or_json(save, text, causal_model, model) -> None:
    save(fond_of_w5(model), "other")
    arguments = ("-m", "other", "--against", "encoder", "--text", text.name, "--one-document-per", "line")
    table = clozeline(text.parent, *arguments)
    assert "30 documents" in table
    assert "other is better" in table
    shutil.rmtree(text.parent / "other")
    save(fond_of_w5(causal_model), "other")
    assert "these figures do not say which is better" in clozeline(text.parent, *arguments)
    judged = json.loads(clozeline(text.parent, *arguments, "--json"))
    assert [(it["name"], it["objective"]) for it in judged["models"]] == [("other", "clm"), ("encoder", "mlm")]
    assert judged["comparison"]["nats_per_byte"]["difference"] < 0


def test_seeds_are_compared_by_the_paired_t_test() -> None:
    """Student's own data (1908, p. 20): ten patients, two drugs."""
    first = np.array([0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0])
    second = np.array([1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4])
    found = PairedTest.over_seeds(second, first)
    assert found.difference == pytest.approx(1.58)
    assert (found.low, found.high) == pytest.approx((0.7001, 2.4599), abs=1e-4)
    assert found.p_value == pytest.approx(0.00283, abs=1e-5)
    for difference, p_value in ((0.0, 1.0), (0.5, 0.0)):
        steady = PairedTest.over_seeds(np.array([1.0, 2.0]) + difference, np.array([1.0, 2.0]))
        assert (steady.difference, steady.low, steady.high, steady.p_value) == (*[difference] * 3, p_value)


def record(good: str, bad: str, paradigm: str = "p", phenomenon: str = "agreement") -> dict[str, str]:
    named = {"UID": paradigm, "linguistics_term": phenomenon, "field": "syntax"}
    return {"sentence_good": good, "sentence_bad": bad, **named, "pairID": "7"}


def lines(*records: dict[str, str]) -> str:
    return "".join(json.dumps(each) + "\n" for each in records)


def test_pairs_are_read_from_every_file_of_a_folder_compressed_or_not(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines(record("w5 w6", "w6 w6"), record("w7", "w8")))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines(record("w9", "w5", "q", "islands")).encode()))
    (tmp_path / "README.md").write_text("no pairs")
    pairs = read_pairs(tmp_path)
    assert [pair.sentence_good for pair in pairs] == ["w5 w6", "w7", "w9"]
    assert pairs[2] == MinimalPair(**record("w9", "w5", "q", "islands"))
    assert list(blimp.sentences(pairs)) == ["w5 w6", "w6 w6", "w7", "w8", "w9", "w5"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        *((line, r"a\.jsonl, line 2 is not a minimal pair") for line in ("{", '{"sentence_good": "a"}', "7")),
        (None, "no file matches"),
    ],
)
def test_a_line_without_a_pair_or_a_folder_without_any_is_named(line: str | None, told: str, tmp_path: Path) -> None:
    if line:
        (tmp_path / "a.jsonl").write_text(f"{lines(record('a', 'b'))}{line}\n")
    with pytest.raises(DataError, match=told):
        read_pairs(tmp_path)
    with pytest.raises(DataError, match="there are no minimal pairs"):
        read_pairs(tmp_path / "nowhere")


def test_accuracy_is_per_phenomenon_and_its_mean_is_over_paradigms() -> None:
    pairs = [MinimalPair(**record("g", "b", paradigm, name)) for paradigm, name in ("px", "px", "qx", "ry")]
    verdicts = Verdicts(np.array([True, False, True, False]), np.array([False, False, False, True]))
    figures = BlimpFigures.of(pairs, verdicts)
    found = [(it.name, it.accuracy, it.num_pairs) for it in figures.phenomena]
    assert found == [("x", pytest.approx(2 / 3), 3), ("y", 0.0, 1)]
    assert figures.accuracy == pytest.approx((0.5 + 1.0 + 0.0) / 3)
    assert (figures.overall.accuracy, figures.overall.num_ties) == (0.5, 1)


@pytest.mark.parametrize("name", ["model", "causal_model"])
def test_the_likelier_sentence_is_chosen_and_a_tie_counts_as_wrong(name, request, tiny_tokenizer, tmp_path) -> None:
    asked: LanguageModel = request.getfixturevalue(name)
    with torch.no_grad():
        asked.head.output.bias[5] += 3.0
    (folder := tmp_path / "model").mkdir()
    models.save(asked, tiny_tokenizer, folder)
    known = [record(f"w8 w5 w{other}", f"w8 w{other} w{other}", "known") for other in range(6, 16)]
    missed = [record(f"w8 w{other}", "w8 w5", "missed", "islands") for other in range(20, 30)]
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text(lines(*known, *missed, record("w8 w9", "w8 w9", "same", "islands")))
    how = ContestAsking(estimator="folds", seed=1, num_folds=3, max_length=32, batch_tokens=256)
    questions = ContestQuestions(None, source_of(None), pairs, how, is_length_given=True, num_samples=100)
    (judged,) = judge_models([str(folder)], questions, None).models
    assert judged.text is None
    by_name = {found.name: found for found in judged.blimp.paradigms}
    assert {name: found.accuracy for name, found in by_name.items()} == {"known": 1.0, "missed": 0.0, "same": 0.0}
    assert by_name["same"].num_ties == 1
