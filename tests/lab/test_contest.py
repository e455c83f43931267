"""Claim: a model is judged on the same texts and masks as another, and a difference is tested in pairs."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForMaskedLM, BertConfig, MPNetConfig
from typer.testing import CliRunner

from clozeline.cli import app
from clozeline.cli.evaluate import source_of
from clozeline.encoder.checkpoints import fresh_stock
from clozeline.encoder.model import EncoderModel
from clozeline.lab.contest import ContestAsking, ContestQuestions, Judgement, PairedTest, judge_models
from clozeline.language import models as language_model
from clozeline.language.models import LanguageModel
from clozeline.params.text import SourceParams
from clozeline.system.errors import ArtifactError, ClozelineError, DataError, ParamsError

ASKING = ContestAsking(estimator="folds", seed=1, num_folds=3, max_length=32, batch_tokens=512)
SMALL = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
W5, W7 = 5, 7


def read_as(path: Path) -> SourceParams:
    return source_of(path, one_document_per="line")


def judge(*models: Path, text: Path, scores: Path | None = None, **how: Any) -> Judgement:
    asking = replace(ASKING, **how)
    questions = ContestQuestions(text, read_as(text), None, asking, is_length_given=True, num_samples=200)
    return judge_models([str(model) for model in models], questions, scores)


def saved(model: LanguageModel, tokenizer: Path, folder: Path) -> Path:
    folder.mkdir()
    language_model.save(model, tokenizer, folder)
    return folder


@pytest.fixture
def encoder(model: LanguageModel, tiny_tokenizer: Path, tmp_path: Path) -> Path:
    return saved(model, tiny_tokenizer, tmp_path / "encoder")


@pytest.fixture
def fond_of_w5(model: LanguageModel, tiny_tokenizer: Path, tmp_path: Path) -> Path:
    """Folder of the same encoder with a bias towards one word."""
    with torch.no_grad():
        model.head.output.bias[W5] += 1.0
    return saved(model, tiny_tokenizer, tmp_path / "fond")


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


def test_a_model_compared_with_itself_is_not_better(encoder: Path, text: Path) -> None:
    judged = judge(encoder, encoder, text=text)
    assert judged.same_tokens
    one, other = (found.text for found in judged.models)
    assert one == other
    assert one.validation_documents == 30
    assert judged.comparison.nats_per_byte.difference == 0
    assert judged.comparison.nats_per_byte.p_value == 1


def test_the_better_model_is_found_on_the_same_masks(encoder: Path, fond_of_w5: Path, text: Path) -> None:
    judged = judge(fond_of_w5, encoder, text=text)
    better, worse = (found.text for found in judged.models)
    test = judged.comparison.loss_nats_per_token
    assert test.difference == pytest.approx(better.loss_nats_per_token - worse.loss_nats_per_token)
    assert test.low < test.difference < test.high < 0
    assert test.p_value < 0.05
    per_byte = judged.comparison.nats_per_byte
    assert per_byte.difference == pytest.approx(better.nats_per_byte - worse.nats_per_byte)
    assert per_byte.p_value < 0.05
    # On the same documents, the interval of the paired test is narrower than the interval of each model.
    assert test.high - test.low < better.loss_nats_per_token_high - better.loss_nats_per_token_low


def test_models_with_different_tokenizers_are_compared_per_byte_only(
    encoder: Path, model: LanguageModel, tiny_tokenizer: Path, text: Path, tmp_path: Path
) -> None:
    other = saved(model, tiny_tokenizer, tmp_path / "other")
    changed = (other / "tokenizer.json").read_text().replace('"w9"', '"v9"')
    (other / "tokenizer.json").write_text(changed)
    judged = judge(encoder, other, text=text)
    assert not judged.same_tokens
    assert judged.models[1].text.unknown_tokens > judged.models[0].text.unknown_tokens == 0
    assert judged.comparison.nats_per_byte is not None
    assert judged.comparison.loss_nats_per_token is judged.comparison.top1 is None


@torch.inference_mode()
def test_pseudo_log_likelihood_sums_over_tokens_masked_one_at_a_time(encoder: Path, text: Path, tmp_path: Path) -> None:
    scores = tmp_path / "scores.jsonl"
    judge(encoder, text=text, scores=scores, estimator="pll")
    records = [json.loads(line) for line in scores.read_text().splitlines()]
    stock = AutoModelForMaskedLM.from_pretrained(encoder).eval()
    first = text.read_text().splitlines()[0]
    ids = torch.tensor([[2, *(int(word[1:]) for word in first.split()), 3]])
    total = 0.0
    for place in range(1, ids.shape[1] - 1):
        shown = ids.clone()
        shown[0, place] = 4
        total -= functional.cross_entropy(stock(shown).logits[0, place][None], ids[0, place][None]).item()
    assert records[0]["log_likelihood_nats"] == pytest.approx(total, rel=1e-5)
    assert [record["text_bytes"] for record in records] == [len(line) for line in text.read_text().split("\n") if line]


def test_a_model_of_an_unsupported_family_is_evaluated_with_its_stock_head(
    tiny_tokenizer: Path, text: Path, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    stock = fresh_stock(MPNetConfig(**SMALL, max_position_embeddings=64, pad_token_id=0), "mlm")
    folder = saved(stock, tiny_tokenizer, tmp_path / "mpnet")
    figures = judge(folder, text=text).models[0].text
    assert figures.perplexity == pytest.approx(64, rel=0.2)  # the model is untrained
    assert figures.target_tokens == figures.validation_tokens


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (lambda: EncoderModel(BertConfig(**SMALL), "feature-extraction"), r"without the weights.*cls\.predictions"),
        (lambda: fresh_stock(MPNetConfig(**SMALL | {"vocab_size": 40}), "mlm"), "tokens that the model does not know"),
    ],
    ids=["no head", "tokenizer of another model"],
)
def test_a_model_that_cannot_predict_the_text_is_refused(
    model: Callable[[], Any], told: str, tiny_tokenizer: Path, text: Path, tmp_path: Path
) -> None:
    folder = saved(model(), tiny_tokenizer, tmp_path / "model")
    with pytest.raises(ArtifactError, match=f"(?s){told}"):
        judge(folder, text=text)


def test_a_requested_length_beyond_the_model_is_refused_and_the_default_is_shortened(encoder: Path, text: Path) -> None:
    with pytest.raises(ParamsError, match="--max-length"):
        judge(encoder, text=text, max_length=100)
    long = replace(ASKING, max_length=100)
    questions = ContestQuestions(text, read_as(text), None, long, is_length_given=False, num_samples=200)
    assert judge_models([str(encoder)], questions, None).how.max_length == 64


def clozeline(*arguments: object) -> tuple[str, ClozelineError | None]:
    result = CliRunner().invoke(app, ["evaluate", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, ClozelineError), result.exception
    return result.stdout, result.exception


def test_the_command_prints_a_table_or_json(
    encoder: Path, fond_of_w5: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ("-m", "fond", "--against", "encoder", "--text", text.name, "--one-document-per", "line")
    table, _ = clozeline(*arguments)
    assert "30 documents" in table
    assert "fond is better" in table
    printed, _ = clozeline(*arguments, "--json")
    judged = json.loads(printed)
    assert [model["name"] for model in judged["models"]] == ["fond", "encoder"]
    assert judged["comparison"]["nats_per_byte"]["difference"] < 0


def test_a_causal_and_a_masked_model_are_not_ranked_against_each_other(
    encoder: Path,
    causal_model: LanguageModel,
    tiny_tokenizer: Path,
    text: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with torch.no_grad():
        causal_model.head.output.bias[W5] += 1.0
    saved(causal_model, tiny_tokenizer, tmp_path / "causal")
    monkeypatch.chdir(tmp_path)
    arguments = ("-m", "causal", "--against", "encoder", "--text", text.name, "--one-document-per", "line")
    table, _ = clozeline(*arguments)
    told = " ".join(table.split())
    assert "these figures do not say which is better" in told
    assert "one sees both sides of a token" in told
    assert not any(f"{name} is better" in told for name in ("causal", "encoder"))
    printed, _ = clozeline(*arguments, "--json")
    assert [model["objective"] for model in json.loads(printed)["models"]] == ["clm", "mlm"]


@pytest.mark.parametrize(
    ("arguments", "kind", "told"),
    [
        ((), ParamsError, "--text FILE"),
        (("--text", "nothing.txt"), DataError, "nothing.txt"),
        (("--text", "records.jsonl"), DataError, "set `--text-field` to one of"),
        (("--text", "empty.txt"), DataError, "no text in it"),
    ],
)
def test_an_invalid_request_is_refused_in_terms_of_the_command(
    arguments: tuple[str, ...], kind: type, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("records.jsonl").write_text('{"body": "w5 w6"}\n')
    Path("empty.txt").write_text("\n\n")
    _, error = clozeline("-m", "nowhere", *arguments)
    assert isinstance(error, kind)
    assert told in str(error)
    assert "params.yaml" not in str(error)


def test_seeds_are_compared_by_the_paired_t_test() -> None:
    """Student's own data (1908, p. 20): ten patients, two drugs."""
    first = np.array([0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0])
    second = np.array([1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4])
    found = PairedTest.over_seeds(second, first)
    assert found.difference == pytest.approx(1.58)
    assert (found.low, found.high) == pytest.approx((0.7001, 2.4599), abs=1e-4)
    assert found.p_value == pytest.approx(0.00283, abs=1e-5)


@pytest.mark.parametrize(("difference", "p_value"), [(0.0, 1.0), (0.5, 0.0)])
def test_a_difference_without_any_spread_is_none_or_no_chance(difference: float, p_value: float) -> None:
    first_S = np.array([1.0, 2.0, 3.0])
    found = PairedTest.over_seeds(first_S + difference, first_S)
    assert (found.difference, found.low, found.high, found.p_value) == (difference, difference, difference, p_value)
