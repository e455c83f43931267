"""The auditor accepts a sound month, and finds what was forged, deleted or left open."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from mlflow.tracking import MlflowClient

from clozeline.params.reading import read_params
from clozeline.records.package_metrics import MetricPaths, PackageMetrics
from clozeline.records.record import NATS_PER_BYTE, PairedFigures
from clozeline.registry.decisions import Decision, Gate, gates
from clozeline.registry.lineage import trace
from clozeline.registry.publishing import Evidence, Publisher
from clozeline.system.workspace import Workspace
from tests.make.packages import write_encoder
from tests.make.projects import make_release_project, retrain
from tests.make.texts import paired_figures
from tests.month.auditor import Auditor, FlowRun

NAME = "clozeline-encoder"
PATHS = MetricPaths.of("encoder", "encoder")
RUNS = [
    FlowRun(f"{flow}-{night}", flow, "COMPLETED", "Completed", f"2026-{night}")
    for night in (1, 2)
    for flow in ("nightly", "pipeline", "release")
]


# The trial of a version that is better than the champion.
BETTER = paired_figures(NATS_PER_BYTE, 1.20, 1.25, 0.01)
WORSE = BETTER.model_copy(update={"candidate": 1.30, "low": 0.04, "high": 0.06})
NOT_SURELY_BETTER = BETTER.model_copy(update={"candidate": 1.25, "low": -0.04, "high": 0.04})


def address(root: Path) -> str:
    return Workspace(root).defaults()["MLFLOW_TRACKING_URI"]


def train(root: Path, steps: tuple[int, ...]) -> None:
    """Record a training with a loss at these steps."""
    client = MlflowClient(address(root))
    training = client.create_run("0", tags={"dvc.stage": "pretrain"})
    for step in steps:
        client.log_metric(training.info.run_id, "loss", 1 / step, step=step)
    client.set_terminated(training.info.run_id)


def night(root: Path, number: int, before: str | None) -> None:
    """Do what the flows of a night write: the run of the pipeline with a training, a version, its record, an alias."""
    client = MlflowClient(address(root))
    run = client.create_run("0", tags={"prefect.flow_run_id": f"pipeline-{number}"})
    client.set_terminated(run.info.run_id)
    train(root, (5, 10, 15))
    files = {f"metrics/{path}": root / "metrics" / path for path in (PATHS.quality, PATHS.export)}
    evidence = Evidence({"dvc.lock": root / "dvc.lock", **files}, {})
    version = Publisher(address(root)).publish(root / "dist/encoder", NAME, evidence)
    told = {"version": version.version, "champion_before": before, "prefect_flow_run_id": f"release-{number}"}
    promote(root, BETTER if before else None, **told)


def promote(root: Path, trial: PairedFigures | None, decided: Sequence[Gate] | None = None, **told: Any) -> None:
    """Promote a version, and record that this trial decided it, by its gates or by those of `decided`."""
    publisher = Publisher(address(root))
    figures = PackageMetrics.read(root / "metrics", PATHS)
    by = tuple(decided or gates(read_params(root / "params.yaml").release, figures, trial))
    whole = {"version": "1", "champion_before": "2", "prefect_flow_run_id": "release-2", **told}
    decision = Decision(outcome="promoted", model=NAME, trial=trial, gates=by, **whole)
    promoted = publisher.registry.version(NAME, decision.version)
    record = publisher.record(promoted, decision, f"{uuid4()}.json")  # copies of the template share its artifacts
    publisher.registry.promote(promoted, replacing=decision.champion_before, evidence=record)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Project after two nights, each with a promotion. A copy keeps the versions: its database finds their files."""
    root = tmp_path_factory.mktemp("template") / "project"
    write_encoder(root.parent / "package")
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name, value in Workspace(root).defaults().items():
            monkeypatch.setenv(name, value)
        make_release_project(root, dict.fromkeys(("encoder", "library"), root.parent / "package"))
        night(root, 1, None)
        retrain(root, "one two three")
        night(root, 2, "1")
    return root


@pytest.fixture
def root(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in Workspace(tmp_path / "project").defaults().items():
        monkeypatch.setenv(name, value)
    return shutil.copytree(template, tmp_path / "project", symlinks=True)


def test_a_sound_month_is_clean_and_what_was_verified_in_time_may_be_swept_later(root: Path) -> None:
    auditor = Auditor(root, address(root))
    assert auditor.verify_new_champions() == []
    found = auditor.audit(RUNS)
    assert (found.lost, found.unverified) == ([], [])
    assert (found.promotions, found.held) == (2, 0)
    MlflowClient(address(root)).delete_registered_model_alias(NAME, "previous")
    shutil.rmtree(root / ".dvc/cache")
    assert auditor.audit(RUNS).is_clean, "the workspace still has everything behind version 2"


def promote_by_the_record_of_another(root: Path) -> None:
    registry = Publisher(address(root)).registry
    registry.promote(registry.version(NAME, "1"), evidence=registry.changes(NAME)[-1].evidence)


MADE_UP = [
    Gate("unigram_ratio", 900.0 / 148.4, "at least", 2.0),
    *(Gate(name, 0.9, "at most", 1.02) for name in ("perplexity_ratio", "perplexity_ratio_high")),
]


@pytest.mark.parametrize(
    ("forge", "fault"),
    [
        (
            lambda root: MlflowClient(address(root)).set_registered_model_alias(NAME, "champion", "1"),
            "version 1 is the champion, but the last change says 2",
        ),
        (promote_by_the_record_of_another, "not a record of its own run"),
        (lambda root: promote(root, WORSE, MADE_UP), "perplexity_ratio is 1.22"),
        (lambda root: promote(root, NOT_SURELY_BETTER), "perplexity_ratio_high 1.17"),
        (lambda root: promote(root, None), "no gate perplexity_ratio"),
        (lambda root: promote(root, BETTER, prefect_flow_run_id="of nobody"), "Prefect knows no run of nobody"),
    ],
)
def test_a_forged_promotion_is_found_but_a_person_may_overrule_a_gate_that_holds(
    root: Path, forge: Callable[[Path], None], fault: str
) -> None:
    forge(root)
    found = Auditor(root, address(root)).audit(RUNS)
    assert any(fault in told for told in found.unverified), found.unverified
    assert not found.is_clean
    may_be_overruled = Auditor(root, address(root), accepted={(NAME, "1")}).audit(RUNS).is_clean
    assert may_be_overruled == fault.startswith("perplexity_ratio_high")


def test_a_deleted_object_is_found(root: Path) -> None:
    earlier = trace(f"models:/{NAME}/1", Workspace(root)).origin.all()
    md5 = {ancestor.path: ancestor.md5 for ancestor in earlier}["data/raw"]
    (root / ".dvc/cache/files/md5" / md5[:2] / md5[2:]).unlink()
    (fault,) = Auditor(root, address(root)).audit(RUNS).unverified
    assert f"{NAME} version 1" in fault
    assert md5 in fault


def test_what_was_lost_or_left_open_is_found(root: Path) -> None:
    auditor = Auditor(root, address(root))
    for flow, state, fault in (
        ("pipeline", "Running", "Prefect's run r of pipeline is Running"),
        ("nightly", "Crashed", "crashed, and no other run followed"),
        ("pipeline", "Completed", "MLflow has no finished run of Prefect's run r"),
    ):
        (told,) = auditor.audit([*RUNS, FlowRun("r", flow, state.upper(), state, "2026-3")]).lost
        assert fault in told
    assert auditor.audit(RUNS, num_missing_in_remote=3).lost == ["the remote lacks 3 objects"]
    MlflowClient(address(root)).create_run("0", run_name="open")
    train(root, (5, 10, 20))
    told = "\n".join(auditor.audit(RUNS).lost)
    assert "MLflow's run open is RUNNING" in told
    assert "has gaps: [5, 10, 20]" in told
