"""Answers of the MLflow model for a tagger, a question answerer and a pair classifier; errors name invalid pairs."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from clozeline.inference.classifier import Classifier
from clozeline.inference.package import load
from clozeline.records.package import read_manifest
from clozeline.registry.models import PACKAGE
from clozeline.registry.publishing import example_texts
from clozeline.registry.served_model import PyfuncModel
from clozeline.system.errors import DataError
from tests.make.packages import write_answerer, write_ranker, write_tagger


def opened(package: Path) -> PyfuncModel:
    model = PyfuncModel()
    model.load_context(SimpleNamespace(artifacts={PACKAGE: str(package)}))
    return model


def test_a_registered_tagger_returns_entities(tmp_path: Path) -> None:
    write_tagger(tmp_path / "names")
    records = opened(tmp_path / "names").predict(None, ["open the lists of a file", "a"])
    assert [set(record) for record in records] == [{"entities"}] * 2
    assert {"entity_group", "score", "word", "start", "end"} == set(records[0]["entities"][0])


def test_a_registered_question_answerer_accepts_its_own_example(tmp_path: Path) -> None:
    write_answerer(tmp_path / "reader")
    model = opened(tmp_path / "reader")
    records = model.predict(None, example_texts(read_manifest(tmp_path / "reader")), {"top_k": 2})
    assert [len(record["answers"]) for record in records] == [2, 2]
    with pytest.raises(DataError, match="text 1 is not a JSON object with `question` and `context`"):
        model.predict(None, ['{"question": "a", "context": "b"}', "who?"])


def test_a_pair_classifier_takes_both_texts_of_each_row(tmp_path: Path) -> None:
    write_ranker(tmp_path / "ranker")
    model, ranker = opened(tmp_path / "ranker"), load(tmp_path / "ranker")
    assert isinstance(ranker, Classifier)
    asked = [example_texts(read_manifest(tmp_path / "ranker"))[0], '{"text": "open", "text_pair": "the file"}']
    given = [("What is returned?", "It returns a value."), ("open", "the file")]
    assert [record["labels"][0]["score"] for record in model.predict(None, asked)] == pytest.approx(
        [scores[0].score for scores in ranker.classify(given)]
    )
    with pytest.raises(DataError, match="text 0 is not a JSON object with `text` and `text_pair`"):
        model.predict(None, ["open the file"])
