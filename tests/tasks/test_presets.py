"""Claim: each preset reads a dataset of exactly the shape that the hub has under its name."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import datasets
import pytest

from clozeline.tasks.classification import data as classification
from clozeline.tasks.formats import task_records
from clozeline.tasks.question_answering import data as question_answering
from clozeline.tasks.similarity import data as similarity
from clozeline.tasks.tagging import data as tags
from tests.make.tasks import PARAMS, params_of

# All presets but the shared part of those of GLUE.
PRESETS = {name: preset for name, preset in PARAMS.presets.items() if name != "glue"}
NUM_TRAIN, NUM_JUDGING = 60, 12
SECRET = -1
TAGS = ["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC"]
STRING, NUMBER = datasets.Value("string"), datasets.Value("int32")
Row = dict[str, Any]
# Split and number of a row → the row.
Make = Callable[[str, int], Row]


def named(*names: str) -> Any:
    return datasets.ClassLabel(names=list(names))


def sentence(split: str, number: int) -> str:
    return f"the model of {split} reads file {number} and returns a tensor"


def glue(*texts: str, labels: tuple[str, ...]) -> tuple[Row, Make]:
    """Return features and rows of a dataset of GLUE's shape, in which the labels of test splits are secret."""

    def make(split: str, number: int) -> Row:
        label = SECRET if split.startswith("test") else number % len(labels)
        return {name: f"{name}: {sentence(split, number)}" for name in texts} | {"label": label, "idx": number}

    return {**dict.fromkeys(texts, STRING), "label": named(*labels), "idx": NUMBER}, make


def scored(split: str, number: int) -> Row:
    texts = {"sentence1": sentence(split, number), "sentence2": f"{number} rows of {split}"}
    return {**texts, "label": float(SECRET) if split == "test" else number % 6, "idx": number}


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
        return {
            "id": str(number),
            "title": "t",
            "context": context,
            "question": f"what of {number}",
            "answers": answers,
        }

    answers = datasets.Sequence({"text": STRING, "answer_start": NUMBER})
    return {**dict.fromkeys(("id", "title", "context", "question"), STRING), "answers": answers}, make


SPLITS = ("train", "validation", "test")
MATCHED = ("train", "validation_matched", "validation_mismatched", "test_matched", "test_mismatched")
TAG_NAMES = {"pos_tags": ["NN"], "chunk_tags": ["O"], "ner_tags": TAGS}
TOKENS = {"id": STRING, "tokens": datasets.Sequence(STRING)} | {
    field: datasets.Sequence(named(*names)) for field, names in TAG_NAMES.items()
}
SCORED = {"sentence1": STRING, "sentence2": STRING, "label": datasets.Value("float32"), "idx": NUMBER}
SAME = ("not_entailment", "entailment")
# For each preset: the configuration of its files (None: files are listed by split), its splits, its features and rows.
# As the datasets' pages on the hub have them; `conll2003` on the branch that the hub converts it on.
SHAPES: Mapping[str, tuple[str | None, tuple[str, ...], tuple[Row, Make]]] = {
    "cola": ("cola", SPLITS, glue("sentence", labels=("unacceptable", "acceptable"))),
    "sst2": ("sst2", SPLITS, glue("sentence", labels=("negative", "positive"))),
    "mrpc": ("mrpc", SPLITS, glue("sentence1", "sentence2", labels=("not_equivalent", "equivalent"))),
    "qqp": ("qqp", SPLITS, glue("question1", "question2", labels=("not_duplicate", "duplicate"))),
    "mnli": ("mnli", MATCHED, glue("premise", "hypothesis", labels=("entailment", "neutral", "contradiction"))),
    "qnli": ("qnli", SPLITS, glue("question", "sentence", labels=SAME[::-1])),
    "rte": ("rte", SPLITS, glue("sentence1", "sentence2", labels=SAME[::-1])),
    "wnli": ("wnli", SPLITS, glue("sentence1", "sentence2", labels=SAME)),
    "stsb": ("stsb", SPLITS, (SCORED, scored)),
    "stsb_together": ("stsb", SPLITS, (SCORED, scored)),
    "conll2003": (None, SPLITS, (TOKENS, tagged)),
    "squad": ("plain_text", SPLITS[:2], asked(may_have_none=False)),
    "squad_v2": ("squad_v2", SPLITS[:2], asked(may_have_none=True)),
}
SELECTED: Mapping[str, Callable[..., Any]] = {
    "classification": classification.select,
    "tagging": tags.select,
    "question_answering": question_answering.select,
    "similarity": similarity.select,
}


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


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_reads_its_dataset_without_hidden_test_labels(preset: str, tmp_path: Path) -> None:
    values = PRESETS[preset]
    hub = {**values["hub"], "dataset": str(write_dataset(preset, tmp_path)), "revision": None}
    params = params_of(**{**values, "hub": hub})
    found = SELECTED[params.kind](task_records(params, tmp_path), params)
    has_validation = values["splits"]["validation"] is not None
    assert len(found.test) == NUM_JUDGING
    assert len(found.train) + (0 if has_validation else len(found.validation)) == NUM_TRAIN
    assert len(found.validation) > 0
    assert found.count["num_read"] == found.count["num_used"]
    if params.kind == "classification":
        assert {*found.labels} == {*SHAPES[preset][2][0]["label"].names}
        assert params.metric == values["metric"]
    if params.kind == "tagging":
        assert all(sentence.tags[-2:] == ("B-LOC", "I-LOC") for sentence in found.test)
    if params.kind == "question_answering":
        assert sum(not question.is_answerable for question in found.test) == (4 if preset == "squad_v2" else 0)
        assert set(found.answers.by_reason.values()) == {0}
    if params.kind == "similarity":
        assert {round(5 * pair.score) for pair in found.test} == {*range(6)}


@pytest.mark.parametrize(("preset", "positive"), [("mrpc", "equivalent"), ("qqp", "duplicate")])
def test_f1_of_a_glue_task_is_computed_for_class_1(preset: str, positive: str) -> None:
    assert PRESETS[preset]["metric"] == "f1"
    assert PRESETS[preset]["positive_label"] == positive == SHAPES[preset][2][0]["label"].names[1]


def test_a_preset_names_a_commit_or_the_conversion_branch_of_the_hub() -> None:
    assert set(SHAPES) == set(PRESETS)
    revisions = {name: preset["hub"]["revision"] for name, preset in PRESETS.items()}
    assert revisions.pop("conll2003") == "refs/convert/parquet"
    assert all(re.fullmatch("[0-9a-f]{40}", revision) for revision in revisions.values())
