"""Claim: the built-in items make an exam for each kind of model, with answers that differ."""

from pathlib import Path

import pytest

from clozeline.exporting.exams import Sample, exam_of
from clozeline.inference.package import load
from clozeline.orchestration.import_items import built_in_items
from clozeline.records.package import read_manifest

METRICS = {
    "encoder_package": "masked-LM accuracy",
    "classifier_package": "label agreement",
    "tagger_package": "entity agreement",
    "answerer_package": "answer F1",
    "scorer_package": "Spearman correlation",
}


@pytest.mark.parametrize("fixture", METRICS)
def test_built_in_items_make_an_exam_for_the_kind(fixture: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(fixture)
    manifest = read_manifest(folder)
    items = built_in_items(manifest.task, reads_pairs=manifest.reads_pairs)[:40]
    model = load(folder, precision="fp32")
    sample = Sample([item.text for item in items], [None] * len(items), held_out=items)
    exam = exam_of(model, sample)
    assert exam.metric == METRICS[fixture]
    assert exam.num_texts > 20
