"""Claim: of every kind of task, test texts that the encoder was pre-trained on are counted."""

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clozeline.params import read_params
from clozeline.params.finetuning.kinds import SECTIONS
from clozeline.params.finetuning.layers import whole_task
from clozeline.tasks.kinds import KINDS
from clozeline.tasks.task import TaskInputs
from clozeline.text.contamination import contamination

DEFAULTS = read_params(Path(__file__).parents[2] / "params.yaml").finetune_defaults
WORDS = [
    "salt",
    "oven",
    "butter",
    "flour",
    "mast",
    "keel",
    "tide",
    "rudder",
    "soil",
    "seed",
    "root",
    "weed",
    "the",
    "of",
    "and",
    "with",
    "then",
    "before",
    "after",
]
Case = tuple[Mapping[str, object], Mapping[str, object]]


def text_of(number: int) -> str:
    return " ".join(random.Random(number).choices(WORDS, k=20))


def labelled(number: int) -> dict[str, object]:
    return {"text": text_of(number), "label": "ab"[number % 2]}


CASES: Mapping[str, Sequence[Case]] = {
    "classification": [
        ({}, {}),
        ({"second_field": "second"}, {"second": "the end"}),
        ({"multi_label": True}, {}),
    ],
    "tagging": [({}, {})],
    "question_answering": [({"max_length": 32, "stride": 4, "max_question_tokens": 8}, {})],
    "similarity": [
        ({"first_field": "question", "second_field": "text"}, {}),
        ({"first_field": "question", "second_field": "text", "score_field": "score"}, {}),
    ],
    "zero_shot": [({"prompt": "is [MASK] here", "label_words": {"a": ["f"], "b": ["m"]}}, {})],
}
"""Of each kind: knobs of a task, and what its records have beside the rest."""


def record(number: int, more: Mapping[str, object]) -> dict[str, object]:
    text = text_of(number)
    words = text.split()
    return {
        **labelled(number),
        "tokens": words,
        "ner_tags": ["B-thing", *["O"] * (len(words) - 1)],
        "question": f"what is {number}",
        "context": text,
        "answers": {"text": [words[0]], "answer_start": [0]},
        "score": float(number % 6),
        **more,
    }


def test_every_kind_has_a_case() -> None:
    assert set(CASES) == set(KINDS)


@pytest.mark.parametrize(("kind", "case"), [(kind, case) for kind, cases in CASES.items() for case in cases])
def test_test_texts_in_the_pretraining_are_found_and_others_not(
    kind: str, case: Case, small_encoder: Path, tmp_path: Path
) -> None:
    knobs, more = case
    lines = [json.dumps(record(number, more)) + "\n" for number in range(200)]
    (tmp_path / "data.jsonl").write_text("".join(lines))
    pq.write_table(pa.table({"text": ["nothing"]}), tmp_path / "train.parquet")
    given: dict[str, Any] = {"kind": kind, "data": "x", "max_length": 24, "num_threads": 1, **knobs}
    params = SECTIONS[kind].model_validate(whole_task("t", given, DEFAULTS))
    inputs = TaskInputs(params, 1, small_encoder, tmp_path / "data.jsonl", tmp_path / "train.parquet")
    report = KINDS[kind].prepare(inputs).test()
    seen = {text_of(number) for number in range(0, 200, 2)}
    num_seen = sum(any(text in whole for text in seen) for whole in report.test_texts)
    found = contamination(report.test_texts, [[f"{text} and more of it" for text in sorted(seen)]])
    assert found.num_texts >= 40
    assert found.num_near_duplicates + found.num_contained == num_seen > 10
