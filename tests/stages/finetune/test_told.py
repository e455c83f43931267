"""Claim: the log of the stage ends with how good the model is, and says what speaks against it."""

import logging
import re

import numpy as np
import pytest

from clozeline.stages import finetune
from clozeline.tasks.classification.single_label import SingleLabel
from tests.fine_tuning import metrics_of
from tests.stages.finetune.topics import Finetune


def test_the_last_line_is_the_headline_with_its_interval_beside_the_baselines(
    run: Finetune, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        top = metrics_of(run("out"))["headline"]
    at = next(place for place, told in enumerate(caplog.messages) if told.startswith("small: on the test part"))
    assert caplog.messages[at] == (
        f"small: on the test part accuracy {top['value']:.3f} (95 %: {top['low']:.3f} to {top['high']:.3f}); beside it "
        f"TF-IDF + logistic regression {top['baseline_value']:.3f}, largest class {top['trivial_value']:.3f}"
    )
    behind = [told for told in caplog.messages[at + 1 :] if "no better than" in told]
    assert len(behind) == (top["value"] <= top["baseline_value"])
    assert "largest class" not in "".join(behind)
    assert len(caplog.messages) == at + 1 + len(behind)
    assert not any("to every item" in told or "tells none" in told for told in caplog.messages)


def test_a_model_that_learned_nothing_is_told_of(
    run: Finetune, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SingleLabel, "logits", lambda self, part: np.zeros((len(part), len(self.labels))))
    metrics = metrics_of(run("out", epochs=3))
    told = [record.message for record in caplog.records if record.name == finetune.__name__][-3:]
    assert re.search(r"score is 0\.\d+ at each of 3 looks, and tells none from another: kept is the last", told[0])
    assert metrics["best_epoch"] == 3
    assert re.search(r"small: accuracy 0\.\d+ is no better than TF-IDF .* \(0\.\d+\)", told[1])
    assert told[2] == f"small: the model says `{metrics['only_answer']}` to every item of the test part"
