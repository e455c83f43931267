"""Claim: the log of the stage ends with the quality of the model, and warns of reasons to doubt it."""

import logging
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clozeline.records.finetune.task_metrics import Headline
from clozeline.records.words.shingles import Contamination
from clozeline.stages import finetune
from clozeline.tasks.classification.texts import SingleLabel
from clozeline.tasks.report import TaskReport
from tests.fine_tuning import metrics_of
from tests.stages.finetune.topics import Finetune, topic_records


def test_the_last_log_line_is_the_headline_with_interval_and_baselines(
    run: Finetune, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        top = metrics_of(run("out"))["headline"]
    at = next(place for place, told in enumerate(caplog.messages) if told.startswith("small: on the test split"))
    assert caplog.messages[at] == (
        f"small: on the test split accuracy {top['value']:.3f} (95 %: {top['low']:.3f} to {top['high']:.3f}); beside "
        f"it logistic regression on the frozen encoder {top['beside'][0]['value']:.3f}, "
        f"TF-IDF + logistic regression {top['baseline_value']:.3f}, largest class {top['trivial_value']:.3f}"
    )
    behind = [told for told in caplog.messages[at + 1 :] if "no better than" in told]
    assert len(behind) == (top["value"] <= top["baseline_value"])
    assert "largest class" not in "".join(behind)
    assert len(caplog.messages) == at + 1 + len(behind)
    assert not any("to every item" in told or "at all" in told for told in caplog.messages)


def test_a_model_that_learned_nothing_is_reported(
    run: Finetune, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SingleLabel, "logits", lambda self, part: np.zeros((len(part), len(self.labels))))
    metrics = metrics_of(run("out", epochs=3))
    told = [record.message for record in caplog.records if record.name == finetune.__name__][-3:]
    assert re.search(r"score is 0\.\d+ at all 4 validation passes", told[0])
    assert metrics["best_epoch"] == 3
    assert re.search(r"small: accuracy 0\.\d+ is no better than TF-IDF .* \(0\.\d+\)", told[1])
    assert told[2] == f"small: the model answers `{metrics['only_answer']}` to every item of the test split"


def test_the_metrics_hold_the_hub_commit_and_the_place_of_the_first_skipped_record(
    run: Finetune, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finetune, "hub_commit", lambda params: "0a" * 20)
    records = [*topic_records(40), {"text": "", "topic": "cooking"}, {"text": " ", "topic": "cooking"}]
    pq.write_table(pa.Table.from_pylist(records), tmp_path / "data.parquet")
    metrics = metrics_of(run("out", epochs=1))
    assert metrics["hub_commit"] == "0a" * 20
    assert metrics["first_places"] == {"without_text": f"{tmp_path / 'data.parquet'}, row 121"}


def test_the_contamination_line_counts_texts_not_items(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A pair has two texts, and one text can stand in several pairs."""
    top = Headline.model_construct()
    report = TaskReport(headline=top, figures={"num_test": 2}, test_texts=["a b", "c d", "e f"])
    pq.write_table(pa.table({"text": ["g h"]}), tmp_path / "train.parquet")
    with caplog.at_level(logging.INFO):
        finetune._contamination(report, Contamination(3, 0, 0), tmp_path / "train.parquet", "sts")
    assert "of the 3 texts of 2 test items" in caplog.text


@pytest.mark.parametrize(("near", "places"), [((1,), [0, 2]), ((), None), ((0, 1, 2), None)])
def test_the_figure_without_near_duplicates_is_that_of_all_other_test_items(
    near: tuple[int, ...], places: list[int] | None
) -> None:
    asked: list[list[int]] = []

    def headline_on(chosen: Sequence[int]) -> Headline:
        asked.append([*chosen])
        return Headline.model_construct(value=0.5)

    whole = TaskReport(headline=Headline.model_construct(value=0.9), figures={}, headline_on=headline_on)
    others = finetune._without_near_duplicates(whole, Contamination(3, len(near), 0, near)).headline
    assert asked == ([] if places is None else [places])
    assert (others.value, others.judged.value) == (0.9, 0.9 if places is None else 0.5)
