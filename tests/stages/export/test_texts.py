"""The data by which INT8 is examined and its scales are calibrated: texts, or the items of a task."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from clozeline.exporting.exams import Sample, read_sample
from clozeline.exporting.ladder import Climbed, Ladder
from clozeline.exporting.proof import Proof
from clozeline.params.delivery import ExportGates, ExportParams
from clozeline.records.finetune.scored_items import HeldOut, write_held_out
from clozeline.records.package import CARD, CONFIG, FILES, SBOM, Manifest, read_manifest
from clozeline.stages import export
from tests.make.models import OPEN, SENTENCES, Limits
from tests.stages.export.conftest import ExportModel, metrics_of


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "metric", "outputs", "num_texts"),
    [
        ("tagger_package", "entity F1", ["logits"], 5),
        ("answerer_package", "answer F1", ["start_logits", "end_logits"], 3),
        ("topics_package", "micro F1", ["logits"], 5),
        ("scorer_package", "Spearman correlation", ["sentence_embedding", "last_hidden_state"], 10),
    ],
)
def test_a_head_is_tested_on_held_out_items_that_the_package_does_not_contain(
    request: pytest.FixtureRequest, package: str, metric: str, outputs: list[str], num_texts: int
) -> None:
    folder: Path = request.getfixturevalue(package)
    manifest = read_manifest(folder)
    assert {file.name for file in folder.iterdir()} <= {*FILES, CARD, CONFIG, SBOM}
    assert [output.name for output in manifest.outputs] == outputs
    assert {rung.metric for rung in manifest.ladder} == {metric}
    assert metrics_of(folder)["num_agreement_texts"] == num_texts
    assert metrics_of(folder)["parity_max_abs_difference"] < 1e-4
    assert all(rung.saturation == 0 and rung.batch_flips.value == 0 for rung in manifest.ladder)
    assert all(SENTENCES[0].encode() not in (folder / name).read_bytes() for name in FILES if (folder / name).exists())


@dataclass
class Climbing:
    """Records the texts that the stage gives a ladder for its decision and for calibration."""

    deciding: Sequence[str] = ()
    calibrating: Sequence[str] = ()

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        climb, prove = Ladder.climb, Proof.__init__

        def proving(proof: Proof, graph: Path, manifest: Manifest, sample: Sample, gates: ExportGates) -> None:
            self.deciding = sample.texts
            prove(proof, graph, manifest, sample, gates)

        def climbing(ladder: Ladder, proof: Proof, calibration: Sequence[str]) -> Climbed:
            self.calibrating = calibration
            return climb(ladder, proof, calibration)

        monkeypatch.setattr(Proof, "__init__", proving)
        monkeypatch.setattr(Ladder, "climb", climbing)


@pytest.mark.parametrize(("num_texts", "parts"), [(40, (32, 8)), (10, (8, 2))])
def test_calibration_texts_are_not_used_in_the_exam(
    small_encoder: Path,
    export_model: ExportModel,
    validation_texts: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    num_texts: int,
    parts: tuple[int, int],
) -> None:
    climbing, read = Climbing(), read_sample(validation_texts, num_texts)
    climbing.watch(monkeypatch)
    monkeypatch.setattr(export, "read_sample", lambda *given: read)
    export_model(small_encoder)
    assert [*climbing.deciding, *climbing.calibrating] == read.texts
    assert (len(climbing.deciding), len(climbing.calibrating)) == parts
    told = "10 different texts: 8 for the exam (`num_agreement_texts`: 32), 2 of 8 to calibrate INT8"
    assert (told in caplog.text) == (num_texts == 10)


def test_the_metrics_count_the_texts_of_the_exam_when_held_out_items_are_useless(
    small_scorer: Path, export_model: ExportModel, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(small_scorer, tmp_path / "scorer"))
    write_held_out(folder, [HeldOut(text=text, second=text, score=1.0) for text in SENTENCES])
    metrics = metrics_of(export_model(folder, limits=OPEN, static_ratios=()))
    (rung,) = metrics["ladder"]
    assert rung["metric"] == "halves found"
    assert metrics["num_agreement_texts"] == rung["agreement"]["num_texts"] == 32


def test_unused_texts_are_not_reported_as_exam_texts(
    small_topics: Path,
    export_model: ExportModel,
    validation_texts: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for num_texts, num_fixed_on in ((10, 2), (1, 1)):
        read = read_sample(validation_texts, num_texts)
        monkeypatch.setattr(export, "read_sample", lambda *given, read=read: read)
        package = export_model(small_topics, limits=OPEN, static_ratios=())
        assert metrics_of(package)["num_agreement_texts"] == len(SENTENCES)
        assert f"{num_texts} different texts: {num_fixed_on} of 8 to calibrate INT8" in caplog.text


def test_int8_measured_on_too_few_texts_is_not_served_and_the_counts_are_reported(
    small_encoder: Path,
    export_model: ExportModel,
    validation_texts: Path,
    params: ExportParams,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A single text, with the limits of params.yaml."""
    climbing = Climbing()
    climbing.watch(monkeypatch)
    read = read_sample(validation_texts, 1)
    monkeypatch.setattr(export, "read_sample", lambda *given: read)
    limits = Limits(params.gates).but(min_metric_ratio=0)
    manifest = read_manifest(export_model(small_encoder, limits=limits))
    assert (manifest.served, len(manifest.ladder)) == ("fp32", 1)
    assert "agreement_texts is 1, at least 100: NO" in caplog.text
    assert climbing.calibrating == climbing.deciding == read.texts
    assert "1 of 8 to calibrate INT8, the same as for the exam" in caplog.text
