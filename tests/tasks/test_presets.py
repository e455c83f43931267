"""Claim: each preset reads a dataset of exactly the shape that the hub has under its name."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import datasets
import pytest

from clozeline.tasks.formats import task_records
from clozeline.tasks.question_answering import data as question_answering
from clozeline.tasks.tagging import data as tags
from tests.make.tasks import PARAMS, params_of

NUM_TRAIN, NUM_JUDGING = 60, 12
TAGS = ["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC"]
STRING, NUMBER = datasets.Value("string"), datasets.Value("int32")
Row = dict[str, Any]
# Split and number of a row → the row.
Make = Callable[[str, int], Row]


def sentence(split: str, number: int) -> str:
    return f"the model of {split} reads file {number} and returns a tensor"


def tagged(split: str, number: int) -> Row:
    tokens = [*sentence(split, number).split(), "in", "New", "York"]
    others = [0] * len(tokens)
    tags = {"pos_tags": others, "chunk_tags": others, "ner_tags": [*others[2:], 5, 6]}
    return {"id": str(number), "tokens": tokens, **tags}


def asked(*, may_have_none: bool) -> tuple[Row, Make]:
    def make(split: str, number: int) -> Row:
        context = f"in {split} the model reads file {number} and returns a tensor"
        found = ["a tensor"] * bool(not may_have_none or number % 3)
        answers = {"text": found, "answer_start": [context.index(text) for text in found]}
        question = {"context": context, "question": f"what of {number}", "answers": answers}
        return {"id": str(number), "title": "t", **question}

    answers = datasets.Sequence({"text": STRING, "answer_start": NUMBER})
    return {**dict.fromkeys(("id", "title", "context", "question"), STRING), "answers": answers}, make


SPLITS = ("train", "validation", "test")
TAG_NAMES = {"pos_tags": ["NN"], "chunk_tags": ["O"], "ner_tags": TAGS}
TOKENS = {"id": STRING, "tokens": datasets.Sequence(STRING)} | {
    field: datasets.Sequence(datasets.ClassLabel(names=names)) for field, names in TAG_NAMES.items()
}
# For each preset: the configuration of its files (None: files are listed by split), its splits, its features and rows.
# As the datasets' pages on the hub have them; `conll2003` on the branch that the hub converts it on. Those of GLUE are
# read by tests/lab.
SHAPES: Mapping[str, tuple[str | None, tuple[str, ...], tuple[Row, Make]]] = {
    "conll2003": (None, SPLITS, (TOKENS, tagged)),
    "squad": ("plain_text", SPLITS[:2], asked(may_have_none=False)),
    "squad_v2": ("squad_v2", SPLITS[:2], asked(may_have_none=True)),
}
SELECTED: Mapping[str, Callable[..., Any]] = {"tagging": tags.select, "question_answering": question_answering.select}


def write_dataset(preset: str, folder: Path) -> Path:
    subset, splits, (features, make) = SHAPES[preset]
    place = folder / (subset or "conll2003")
    for split in splits:
        rows = [make(split, number) for number in range(NUM_TRAIN if split == "train" else NUM_JUDGING)]
        path = place / f"{split}-00000-of-00001.parquet" if subset else place / split / "0000.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        datasets.Dataset.from_list(rows, features=datasets.Features(features)).to_parquet(path)
    if subset:
        files = [{"split": split, "path": f"{subset}/{split}-*"} for split in splits]
        configs = json.dumps([{"config_name": subset, "data_files": files}])
        (folder / "README.md").write_text(f"---\nconfigs: {configs}\n---\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize("preset", SHAPES)
def test_a_preset_reads_its_dataset(preset: str, tmp_path: Path) -> None:
    values = PARAMS.presets[preset]
    hub = {**values["hub"], "dataset": str(write_dataset(preset, tmp_path)), "revision": None}
    params = params_of(**{**values, "hub": hub})
    found = SELECTED[params.kind](task_records(params, tmp_path), params)
    has_validation = values["splits"]["validation"] is not None
    assert len(found.test) == NUM_JUDGING
    assert len(found.train) + (0 if has_validation else len(found.validation)) == NUM_TRAIN
    assert len(found.validation) > 0
    assert found.count["num_read"] == found.count["num_used"]
    if params.kind == "tagging":
        assert all(sentence.tags[-2:] == ("B-LOC", "I-LOC") for sentence in found.test)
    else:
        assert sum(not question.is_answerable for question in found.test) == (4 if preset == "squad_v2" else 0)
        assert set(found.answers.by_reason.values()) == {0}


def test_each_preset_names_a_commit_or_the_conversion_branch_and_f1_is_that_of_class_1() -> None:
    presets = {name: preset for name, preset in PARAMS.presets.items() if name != "glue"}
    revisions = [preset["hub"]["revision"] for preset in presets.values()]
    assert all(re.fullmatch("[0-9a-f]{40}|refs/convert/parquet", revision) for revision in revisions)
    of_f1 = {name: preset["positive_label"] for name, preset in presets.items() if preset.get("metric") == "f1"}
    assert of_f1 == {"mrpc": "equivalent", "qqp": "duplicate"}
