"""The trace leads from a served model back to the raw text, and verification checks every byte on the way."""

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clozeline.cli import app
from clozeline.inference import package
from clozeline.records.finetune.task_metrics import Headline, TaskMetrics
from clozeline.records.record import Lock, LockedPath, LockedStage
from clozeline.registry.decisions import mark
from clozeline.registry.lineage import Trace, ancestry, release_section, trace, verify
from clozeline.registry.publishing import Evidence, Publisher
from clozeline.registry.versions import fetch_package
from clozeline.system.errors import ArtifactError
from clozeline.system.workspace import Workspace
from clozeline.versions import remote, reproduce
from clozeline.versions.graph import read_stage_graph
from tests.make.projects import make_release_project, retrain
from tests.make.texts import encoder_metrics

PARAMS = Path(__file__).parents[2] / "params.yaml"
URI = "models:/clozeline-encoder@champion"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, encoder_package: Path) -> Path:
    """Project whose encoder is released. A copy keeps the version, because its database finds the copied files."""
    root = tmp_path_factory.mktemp("template") / "project"
    workspace = Workspace(root)
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name, value in workspace.defaults().items():
            monkeypatch.setenv(name, value)
        make_release_project(root, {"encoder": encoder_package, "library": encoder_package})
        publisher = Publisher(workspace.defaults()["MLFLOW_TRACKING_URI"])
        evidence = Evidence(files={"dvc.lock": root / "dvc.lock"}, tags={})
        publisher.registry.promote(publisher.publish(root / "dist/encoder", "clozeline-encoder", evidence))
    return root


@pytest.fixture
def workspace(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    workspace = Workspace(shutil.copytree(template, tmp_path / "project", symlinks=True))
    for name, value in workspace.defaults().items():
        monkeypatch.setenv(name, value)
    return workspace


@pytest.fixture
def traced(workspace: Workspace) -> Trace:
    return trace(URI, workspace)


def test_the_trace_goes_stage_by_stage_to_the_raw_text(traced: Trace, workspace: Workspace) -> None:
    assert str(traced.version) == "clozeline-encoder version 1"
    ancestors = {ancestor.path: ancestor.stage for ancestor in traced.origin.all()}
    assert ancestors == {
        "dist/encoder": "export@encoder",
        "models/encoder": "pretrain",
        "packages/encoder": None,
        "data/clean": "clean",
        "data/raw": "snapshot",
        "raw.txt": None,
        "validation.parquet": None,
    }
    copied = {ancestor.path for ancestor in traced.origin.all() if ancestor.has_copy}
    assert copied == {"raw.txt", "validation.parquet"}
    locked = Lock.read(workspace.root / "dvc.lock").stages["pretrain"].outs[0].md5
    assert {ancestor.path: ancestor.md5 for ancestor in traced.origin.all()}["models/encoder"] == locked


def test_the_trace_belongs_to_the_released_version_not_to_the_newest_files(traced: Trace, workspace: Workspace) -> None:
    retrain(workspace.root, "one two three")
    assert trace(URI, workspace).origin == traced.origin
    assert ancestry(Lock.read(workspace.root / "dvc.lock"), "dist/encoder") != traced.origin


def test_an_intact_lineage_is_verified(traced: Trace, workspace: Workspace) -> None:
    assert verify(traced, workspace) == 5


def test_an_older_lineage_is_verified_from_the_cache(traced: Trace, workspace: Workspace) -> None:
    """Its source was overwritten: the snapshot has what was read."""
    retrain(workspace.root, "one two three")
    assert verify(traced, workspace) == 5


def test_an_older_snapshot_that_is_gone_is_named(traced: Trace, workspace: Workspace) -> None:
    retrain(workspace.root, "one two three")
    md5 = {ancestor.path: ancestor.md5 for ancestor in traced.origin.all()}["data/raw"]
    (workspace.root / ".dvc/cache/files/md5" / md5[:2] / md5[2:]).unlink()
    with pytest.raises(ArtifactError, match="broken") as caught:
        verify(traced, workspace)
    assert f"data/raw: {md5} is neither in the cache" in caught.value.cause


@pytest.mark.parametrize("path", ["models/encoder", "data/clean"])
def test_a_path_missing_from_cache_and_workspace_is_named(traced: Trace, workspace: Workspace, path: str) -> None:
    md5 = {ancestor.path: ancestor.md5 for ancestor in traced.origin.all()}[path]
    file = workspace.root / ".dvc/cache/files/md5" / md5[:2] / md5[2:]
    file.chmod(0o644)
    file.unlink()
    assert verify(traced, workspace) == 5, "the workspace still has the object"
    shutil.rmtree(workspace.root / path)
    with pytest.raises(ArtifactError) as caught:
        verify(traced, workspace)
    assert f"{path}: {md5} is neither in the cache" in caught.value.cause


def test_a_damaged_object_in_the_cache_is_named(traced: Trace, workspace: Workspace) -> None:
    md5 = {ancestor.path: ancestor.md5 for ancestor in traced.origin.all()}["models/encoder"]
    file = workspace.root / ".dvc/cache/files/md5" / md5[:2] / md5[2:]
    file.chmod(0o644)
    file.write_text("[]")
    shutil.rmtree(workspace.root / "models")
    with pytest.raises(ArtifactError) as caught:
        verify(traced, workspace)
    assert "its content does not match its name" in caught.value.cause


def test_a_damaged_file_of_the_registered_package_is_named(traced: Trace, workspace: Workspace) -> None:
    (traced.package.folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"tokenizer\.json"):
        verify(traced, workspace)


def test_a_registered_package_that_another_lock_made_is_named(traced: Trace, workspace: Workspace) -> None:
    manifest = traced.package.folder / "manifest.json"
    manifest.write_text(manifest.read_text() + "\n")
    with pytest.raises(ArtifactError) as caught:
        verify(traced, workspace)
    assert "not the package that was registered" in caught.value.cause
    assert "not the output of export@encoder" in caught.value.cause


def test_what_was_forgotten_is_said_to_be_so_and_the_rest_is_still_checked(
    traced: Trace, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed = ("data/raw", "data/clean")
    for ancestor in traced.origin.all():
        if ancestor.path in removed:
            (workspace.root / ".dvc/cache/files/md5" / ancestor.md5[:2] / ancestor.md5[2:]).unlink(missing_ok=True)
            shutil.rmtree(workspace.root / ancestor.path)
    with pytest.raises(ArtifactError, match="broken"):
        verify(traced, workspace)
    mark(traced.version, removed, workspace.defaults()["MLFLOW_TRACKING_URI"], was_trained_on=True)
    assert verify(trace(URI, workspace), workspace) == 3
    monkeypatch.chdir(workspace.root)
    told = CliRunner().invoke(app, ["lineage", URI, "--verify"])
    assert told.exit_code == 0
    assert "verified: 3 files and folders exist" in told.output
    assert "forgotten: data/clean, data/raw;" in told.output
    shutil.rmtree(workspace.root / "models")
    shutil.rmtree(workspace.root / ".dvc/cache")
    with pytest.raises(ArtifactError, match="broken") as caught:
        verify(trace(URI, workspace), workspace)
    assert "models/encoder" in caught.value.cause
    assert "data/clean" not in caught.value.cause


LOCK = Lock(
    stages={
        "clean": LockedStage(
            cmd="clean",
            deps=(LockedPath(path="raw.txt", md5="11"), LockedPath(path="src/clozeline/text", md5="22.dir")),
            outs=(LockedPath(path="models/encoder", md5="33.dir"),),
        ),
        "export@encoder": LockedStage(
            cmd="export",
            deps=(LockedPath(path="models/encoder", md5="33.dir"),),
            outs=(LockedPath(path="dist/encoder", md5="44.dir"),),
        ),
        "elsewhere": LockedStage(cmd="x", deps=(LockedPath(path="other.txt", md5="55"),)),
    }
)
ENCODER = encoder_metrics(
    perplexity=7.389, perplexity_low=7.1, perplexity_high=7.7, target_tokens=1234, contaminated_fraction=0.017
)
TASK = TaskMetrics(
    headline=Headline(
        metric="accuracy",
        value=0.8,
        low=0.78,
        high=0.82,
        baseline="TF-IDF",
        baseline_value=0.7,
        trivial="x",
        trivial_value=0.1,
    )
)


def test_the_section_names_the_sources_of_the_package_by_their_hashes() -> None:
    told = release_section("encoder", ENCODER, LOCK)
    assert "`raw.txt`: md5 `11`" in told
    assert not any(other in told for other in ("src/", "other.txt", "models/encoder"))


def test_figures_of_an_encoder_have_their_intervals() -> None:
    told = release_section("encoder", ENCODER, LOCK)
    assert "- perplexity: 7.3890 (7.1000 to 7.7000)\n" in told
    assert "1,234 tokens" in told
    assert "1.7%" in told


def test_the_figure_of_a_task_has_its_interval_and_its_baselines() -> None:
    told = release_section("encoder", TASK, LOCK)
    assert "accuracy on the test split: 0.8000 (95 %: 0.7800 to 0.8200)" in told
    assert "TF-IDF 0.7000" in told


NAME = "clozeline-encoder"
NIGHTS = ("one", "one two", "one two three")


@pytest.fixture
def first_machine(tmp_path: Path, encoder_package: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    """A project after three nights, each of which released a version and pushed; both machines use its registry."""
    (tmp_path / "store").mkdir()
    workspace = Workspace(tmp_path / "first" / "project")
    address = workspace.defaults()["MLFLOW_TRACKING_URI"]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    root = make_release_project(workspace.root, {"encoder": encoder_package, "library": encoder_package})
    remote.add(root, str(tmp_path / "store"))
    publisher = Publisher(address)
    for night in NIGHTS:
        retrain(root, night)
        evidence = Evidence(files={"dvc.lock": root / "dvc.lock"}, tags={})
        publisher.registry.promote(publisher.publish(root / "dist/encoder", NAME, evidence))
        remote.push(root)
    return workspace


def clone(root: Path, target: Path) -> Path:
    """Copy what git holds of the project."""
    made = shutil.ignore_patterns("cache", "tmp", "data", "models", "dist", "reports", "work")
    return Path(shutil.copytree(root, target, ignore=made))


def test_a_fresh_clone_restores_every_stage_serves_the_champion_and_verifies_older_nights(
    first_machine: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = Workspace(clone(first_machine.root, tmp_path / "second"))
    shutil.rmtree(first_machine.root / ".dvc/cache")  # everything comes from the remote
    monkeypatch.chdir(second.root)
    monkeypatch.setenv("SHELL", "/bin/sh")
    assert remote.fetch_runs(second.root)
    monkeypatch.setenv(reproduce.RESTORE_FROM_REMOTE, "1")
    stages = [node.name for node in read_stage_graph(second.root)]
    outcomes = {name: reproduce.outcome_of(reproduce.reproduce(name)) for name in stages}
    assert outcomes == dict.fromkeys(stages, "restored")
    assert (second.root / "dvc.lock").read_bytes() == (first_machine.root / "dvc.lock").read_bytes()
    assert package.load(second.root / "dist/encoder").manifest.versions["corpus"] == NIGHTS[-1]
    folder, version = fetch_package(f"models:/{NAME}@champion", second)
    assert version.version == "3"
    assert package.load(folder).manifest.versions["corpus"] == NIGHTS[-1]
    for version in ("1", "2", "3"):
        verify(trace(f"models:/{NAME}/{version}", second), second)
