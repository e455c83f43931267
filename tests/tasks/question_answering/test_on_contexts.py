"""Claim: answers are learned from SQuAD's files, unanswerable questions are detected, and the baseline is beaten."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForQuestionAnswering

from clozeline.params.reading import read_params
from clozeline.params.tasks import QuestionAnsweringParams, whole_task
from clozeline.records.finetune.scored_items import read_held_out
from tests.make.tasks import contents, fine_tune, metrics_of

PROJECT = Path(__file__).parents[3]
WORDS = ["tensor", "model", "file", "error", "shape", "text", "hash", "row"]
Finetune = Callable[..., Path]


def squad(num_contexts: int, seed: int) -> dict[str, Any]:
    """Return SQuAD data: the answer is the word after `is`; a context without `is` has no answer."""
    draw = random.Random(seed)
    paragraphs = []
    for _ in range(num_contexts):
        before, behind = (" ".join(draw.choices(WORDS, k=draw.randint(1, 5))) for _ in range(2))
        answer = draw.choice(WORDS)
        has_answer = draw.random() < 0.7
        context = f"{before} is {answer} {behind}" if has_answer else f"{before} {answer} {behind}"
        spelled = [{"text": answer, "answer_start": context.index(" is ") + 4}] if has_answer else []
        asked = {"question": "what is it", "id": "1", "answers": spelled, "is_impossible": not has_answer}
        paragraphs.append({"context": context, "qas": [asked]})
    return {"version": "v2.0", "data": [{"title": "t", "paragraphs": paragraphs}]}


def params(**changes: object) -> QuestionAnsweringParams:
    task = {
        "kind": "question_answering",
        "data": "x",
        "max_length": 32,
        "stride": 4,
        "max_question_tokens": 8,
        "batch_size": 16,
        "epochs": 8,
        "optimizer": {"learning_rate": 0.01},
        "num_threads": 1,
        **changes,
    }
    defaults = read_params(PROJECT / "params.yaml").finetune_defaults
    return QuestionAnsweringParams.model_validate(whole_task(task, defaults))


@pytest.fixture
def run(small_encoder: Path, tmp_path: Path) -> Finetune:
    """`run(name, **changes)` runs the stage and returns its output folder."""
    (tmp_path / "data.json").write_text(json.dumps(squad(500, seed=1)))

    def run(name: str, **changes: object) -> Path:
        return fine_tune(params(**changes), tmp_path / name, encoder=small_encoder, data=tmp_path / "data.json")

    return run


def test_answers_are_found_and_unanswerable_questions_get_none(run: Finetune) -> None:
    out = run("out")
    metrics = metrics_of(out)
    headline = metrics["headline"]
    assert headline["value"] > 0.75
    assert headline["value"] > max(headline["baseline_value"], headline["trivial_value"]) + 0.2
    assert metrics["num_test_unanswerable"] > 10
    AutoModelForQuestionAnswering.from_pretrained(out / "model")


def test_two_runs_write_identical_files(run: Finetune) -> None:
    once, twice = (run(name, epochs=1) for name in ("one", "two"))
    assert contents(once) == contents(twice)
    held_out = read_held_out(once / "model")
    assert all(right in str(item.second) for item in held_out for right in item.right)
    assert {bool(item.right) for item in held_out} == {False, True}
    config = json.loads((once / "model" / "config.json").read_text())
    assert config.get("no_answer_margin") == metrics_of(once)["no_answer_margin"]
