"""Claim: each preset reads a dataset of exactly the shape that the hub has under its name."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import datasets
import pytest

from clozeline.tasks.kinds import KINDS
from clozeline.tasks.task import Task
from tests.make.tasks import PARAMS, inputs_of, params_of

PRESETS = {name: preset for name, preset in PARAMS.presets.items() if name != "glue"}
"""All presets but the shared part of those of GLUE."""
NUM_TRAIN, NUM_JUDGING = 60, 12
SECRET = -1
TAGS = ["O", "B-PER", "I-PER", "B-ORG", "I-ORG", "B-LOC", "I-LOC", "B-MISC", "I-MISC"]
STRING, NUMBER = datasets.Value("string"), datasets.Value("int32")
Features = dict[str, Any]
Row = dict[str, Any]
Make = Callable[[str, int], Row]
"""Split and number of a row → the row."""


def named(*names: str) -> Any:
    return datasets.ClassLabel(names=list(names))


def sentence(split: str, number: int) -> str:
    return f"the model of {split} reads file {number} and returns a tensor"


def glue(*texts: str, labels: tuple[str, ...]) -> tuple[Features, Make]:
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
    ner_tags = [*[0] * (len(tokens) - 2), 5, 6]
    others = [0] * len(tokens)
    return {"id": str(number), "tokens": tokens, "pos_tags": others, "chunk_tags": others, "ner_tags": ner_tags}


def asked(*, may_have_none: bool) -> Make:
    def make(split: str, number: int) -> Row:
        context = f"in {split} the model reads file {number} and returns a tensor"
        has_answer = not may_have_none or number % 3
        answers = {"text": ["a tensor"], "answer_start": [context.index("a tensor")]}
        given = answers if has_answer else {"text": [], "answer_start": []}
        return {"id": str(number), "title": "t", "context": context, "question": f"what of {number}", "answers": given}

    return make


SPLITS = ("train", "validation", "test")
MATCHED = ("train", "validation_matched", "validation_mismatched", "test_matched", "test_mismatched")
QUESTIONS = {
    **dict.fromkeys(("id", "title", "context", "question"), STRING),
    "answers": datasets.Sequence({"text": STRING, "answer_start": NUMBER}),
}
TOKENS = {
    "id": STRING,
    "tokens": datasets.Sequence(STRING),
    "pos_tags": datasets.Sequence(named("NN")),
    "chunk_tags": datasets.Sequence(named("O")),
    "ner_tags": datasets.Sequence(named(*TAGS)),
}
SCORED = {"sentence1": STRING, "sentence2": STRING, "label": datasets.Value("float32"), "idx": NUMBER}
SAME = ("not_entailment", "entailment")
SHAPES: Mapping[str, tuple[str | None, tuple[str, ...], tuple[Features, Make]]] = {
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
    "squad": ("plain_text", SPLITS[:2], (QUESTIONS, asked(may_have_none=False))),
    "squad_v2": ("squad_v2", SPLITS[:2], (QUESTIONS, asked(may_have_none=True))),
}
"""For each preset: the configuration of its files (None: files are listed by split), its splits, its
features and rows. As the datasets' pages on the hub have them; `conll2003` on the branch that the hub converts it on.
"""


def write_dataset(preset: str, folder: Path) -> None:
    subset, splits, (features, make) = SHAPES[preset]
    place = folder / (subset or "conll2003")
    for split in splits:
        rows = [make(split, number) for number in range(NUM_TRAIN if split == "train" else NUM_JUDGING)]
        made = datasets.Dataset.from_list(rows, features=datasets.Features(features))
        path = place / f"{split}-00000-of-00001.parquet" if subset else place / split / "0000.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        made.to_parquet(path)
    if subset:
        files = [{"split": split, "path": f"{subset}/{split}-*"} for split in splits]
        configs = json.dumps([{"config_name": subset, "data_files": files}])
        (folder / "README.md").write_text(f"---\nconfigs: {configs}\n---\n", encoding="utf-8")


@pytest.fixture
def prepare(small_encoder: Path, tmp_path: Path) -> Callable[[str], Task]:
    """`prepare(preset)`: the task, from a folder instead of the hub; all else the preset says."""

    def make(preset: str) -> Task:
        write_dataset(preset, tmp_path / "hub")
        values = PRESETS[preset]
        windows = {"stride": 8, "max_question_tokens": 16} if values["kind"] == "question_answering" else {}
        hub = {**values["hub"], "dataset": str(tmp_path / "hub"), "revision": None}
        params = params_of(**{**values, "hub": hub, "max_length": 48, **windows})
        return KINDS[values["kind"]].prepare(inputs_of(params, small_encoder, tmp_path / "hub"))

    return make


@pytest.mark.parametrize(("preset", "positive"), [("mrpc", "equivalent"), ("qqp", "duplicate")])
def test_f1_of_a_glue_task_is_computed_for_class_1(preset: str, positive: str) -> None:
    assert PRESETS[preset]["metric"] == "f1"
    assert PRESETS[preset]["positive_label"] == positive == SHAPES[preset][2][0]["label"].names[1]


def test_a_preset_names_a_commit_or_the_conversion_branch_of_the_hub() -> None:
    revisions = {PRESETS[preset]["hub"]["revision"] for preset in PRESETS if preset != "conll2003"}
    assert all(re.fullmatch("[0-9a-f]{40}", revision) for revision in revisions)
    assert PRESETS["conll2003"]["hub"]["revision"] == "refs/convert/parquet"


def test_every_preset_has_a_test_dataset() -> None:
    assert set(SHAPES) == set(PRESETS)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_reads_its_dataset_without_hidden_test_labels(prepare: Callable[[str], Task], preset: str) -> None:
    report = prepare(preset).test()
    figures = report.figures
    has_validation = PRESETS[preset]["splits"]["validation"] is not None
    assert figures["num_test"] == NUM_JUDGING
    assert figures["num_train"] + (0 if has_validation else figures["num_validation"]) == NUM_TRAIN
    assert figures["num_validation"] > 0
    assert EXPECTED[PRESETS[preset]["kind"]](preset, report.headline.metric, report.per_class, figures)


def is_classified(preset: str, metric: str, per_class: Mapping[str, Any], figures: Mapping[str, Any]) -> bool:
    labels = SHAPES[preset][2][0]["label"].names
    knobs = PRESETS[preset]
    has_own_f1 = knobs["metric"] != "f1" or figures["f1"] == per_class[knobs["positive_label"]]["f1"]
    return metric == knobs["metric"] and set(per_class) == set(labels) and has_own_f1


def is_tagged(preset: str, metric: str, per_class: Mapping[str, Any], figures: Mapping[str, Any]) -> bool:
    return metric == "f1" and "LOC" in per_class and figures["num_entities"] == NUM_JUDGING


def is_asked(preset: str, metric: str, per_class: Mapping[str, Any], figures: Mapping[str, Any]) -> bool:
    num_without = NUM_JUDGING // 3 if preset == "squad_v2" else 0
    moved = figures["answers"]["num_moved"] + figures["answers"]["num_not_found"]
    return metric == "f1" and figures["num_test_unanswerable"] == num_without and moved == 0


def is_scored(preset: str, metric: str, per_class: Mapping[str, Any], figures: Mapping[str, Any]) -> bool:
    return metric == "spearman" and figures["records"]["without_score"] == 0


EXPECTED = {
    "classification": is_classified,
    "tagging": is_tagged,
    "question_answering": is_asked,
    "similarity": is_scored,
}
