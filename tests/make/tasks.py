"""A small task of each kind, on records that all kinds can read, and the finetune stage run on the files of a test."""

import json
import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from clozeline.params.reading import read_params
from clozeline.params.tasks import SECTIONS, FinetuneParams, whole_task
from clozeline.stages import finetune
from clozeline.tasks.classification.texts import SingleLabel
from clozeline.tasks.kinds import KINDS
from clozeline.tasks.task import Task, TaskInputs
from tests.make.texts import write_clean_text

PARAMS = read_params(Path(__file__).parents[2] / "params.yaml")
WORDS = [
    *("salt", "oven", "butter", "flour", "mast", "keel", "tide", "rudder", "soil", "seed", "root"),
    *("the", "of", "then"),
]
Case = tuple[Mapping[str, object], Mapping[str, object]]
# For each kind: keys of its task, and the additional fields of its records.
CASES: Mapping[str, Sequence[Case]] = {
    "classification": [({}, {}), ({"second_field": "second"}, {"second": "the end"}), ({"multi_label": True}, {})],
    "tagging": [({}, {})],
    "question_answering": [({"max_length": 32, "stride": 4, "max_question_tokens": 8}, {})],
    "similarity": [
        ({"first_field": "question", "second_field": "text"}, {}),
        ({"first_field": "question", "second_field": "text", "score_field": "score"}, {}),
        ({"first_field": "question", "second_field": "text", "score_field": "score", "read_together": True}, {}),
    ],
    "zero_shot": [({"prompt": "is [MASK] here", "label_words": {"a": ["f"], "b": ["m"]}}, {})],
}
EACH = [(kind, case) for kind, cases in CASES.items() for case in cases]


def text_of(number: int) -> str:
    return " ".join(random.Random(number).choices(WORDS, k=20))


def record(number: int, more: Mapping[str, object]) -> dict[str, object]:
    text = text_of(number)
    words = text.split()
    return {
        "text": text,
        "label": "ab"[number % 2],
        "tokens": words,
        "ner_tags": ["B-thing", *["O"] * (len(words) - 1)],
        "question": f"what is {number}",
        "context": text,
        "answers": {"text": [words[0]], "answer_start": [0]},
        "score": float(number % 6),
        **more,
    }


def params_of(kind: str, **changes: object) -> Any:
    """Return the params of a task by the defaults of the project, on one thread, with `changes`."""
    task = {"kind": kind, "data": "x", "num_threads": 1, **changes}
    return SECTIONS[kind].model_validate(whole_task(task, PARAMS.finetune_defaults))


def write_rows(path: Path, rows: Iterable[object]) -> Path:
    """Write JSON Lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def inputs_of(params: FinetuneParams, encoder: Path, data: Path, seed: int = 1) -> TaskInputs:
    seen = data.parent / "seen.parquet"
    if not seen.exists():
        write_clean_text(seen, ["nothing"])
    return TaskInputs(params, seed, encoder, data, seen)


def prepare(kind: str, case: Case, encoder: Path, data: Path, **changes: object) -> Task:
    """Return the task prepared from these inputs."""
    return KINDS[kind].prepare(inputs_of_case(kind, case, encoder, data, **changes))


def inputs_of_case(kind: str, case: Case, encoder: Path, data: Path, **changes: object) -> TaskInputs:
    """Return inputs whose pre-training text contains no text of the task."""
    knobs, _ = case
    seen = data.parent / "seen.parquet"
    write_clean_text(seen, ["nothing"])
    return TaskInputs(params_of(kind, **{"max_length": 24, **knobs, **changes}), 1, encoder, data, seen)


def fine_tune(
    params: FinetuneParams,
    out: Path,
    *,
    encoder: Path,
    data: Path,
    seed: int = 7,
    pretraining_texts: Sequence[str] = ("something else",),
    only_seed: int | None = None,
) -> Path:
    """Run the stage and return `out` with all its outputs. Its working files lie beside `out` for all runs."""
    seen = out.parent / "pretraining.parquet"
    write_clean_text(seen, pretraining_texts)
    tables = {"curve": "training", "validation": "validation", "confusion": "confusion", "classes": "classes"}
    finetune.run(
        params,
        seed=seed,
        task="small",
        encoder=encoder,
        data=data,
        pretraining_text=seen,
        out=out / "model",
        metrics=out / "metrics.json",
        examples=out / "examples",
        work=out.parent / "work",
        only_seed=only_seed,
        **{name: out / f"{file}.csv" for name, file in tables.items()},
    )
    return out


def metrics_of(out: Path) -> dict[str, Any]:
    metrics: dict[str, Any] = json.loads((out / "metrics.json").read_text())
    return metrics


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def without_card(model: Path) -> dict[str, bytes]:
    """Return the files of a model except those about the test split: its card and its test items."""
    told_of_test = {"README.md", "test_items.jsonl"}
    return {name: content for name, content in contents(model).items() if name not in told_of_test}


def keep_last_weights(patch: pytest.MonkeyPatch) -> None:
    """Score each validation pass of a classifier better than the one before, so that the trained weights are kept."""
    patch.setattr(
        SingleLabel, "validation_score", lambda task: float(next(task.__dict__.setdefault("passes", count())))
    )
