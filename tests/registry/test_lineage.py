"""The trace leads from a served model back to the raw text, and verification checks every byte on the way."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from clozeline.cli import app
from clozeline.records.finetune.task_metrics import Headline, TaskMetrics
from clozeline.records.package import FILES
from clozeline.records.record import Lock, LockedPath, LockedStage
from clozeline.registry.decisions import mark
from clozeline.registry.lineage import Trace, ancestry, release_section, trace, verify
from clozeline.registry.publishing import Evidence, Publisher
from clozeline.system.errors import ArtifactError
from clozeline.system.workspace import Workspace
from tests.make.projects import make_release_project, retrain
from tests.make.texts import encoder_metrics

NAME = "clozeline-encoder"
URI = f"models:/{NAME}@champion"


def release(workspace: Workspace) -> None:
    root, publisher = workspace.root, Publisher(workspace.defaults()["MLFLOW_TRACKING_URI"])
    evidence = Evidence(files={"dvc.lock": root / "dvc.lock"}, tags={})
    publisher.registry.promote(publisher.publish(root / "dist/encoder", NAME, evidence))


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory, encoder_package: Path) -> Path:
    """Project whose encoder is released. A copy keeps the version, because its database finds the copied files."""
    workspace = Workspace(tmp_path_factory.mktemp("template") / "project")
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name, value in workspace.defaults().items():
            monkeypatch.setenv(name, value)
        make_release_project(workspace.root, {"encoder": encoder_package, "library": encoder_package})
        release(workspace)
    return workspace.root


@pytest.fixture
def workspace(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    workspace = Workspace(shutil.copytree(template, tmp_path / "project", symlinks=True))
    for name, value in workspace.defaults().items():
        monkeypatch.setenv(name, value)
    return workspace


@pytest.fixture
def traced(workspace: Workspace) -> Trace:
    return trace(URI, workspace)


def md5_of(traced: Trace, path: str) -> str:
    return {ancestor.path: ancestor.md5 for ancestor in traced.origin.all()}[path]


def cached(workspace: Workspace, traced: Trace, path: str) -> Path:
    md5 = md5_of(traced, path)
    return workspace.root / ".dvc/cache/files/md5" / md5[:2] / md5[2:]


def test_the_trace_goes_stage_by_stage_to_the_raw_text(traced: Trace, workspace: Workspace) -> None:
    """What is lost is named, unless the cache or the workspace still has it."""
    assert str(traced.version) == f"{NAME} version 1"
    assert {ancestor.path: ancestor.stage for ancestor in traced.origin.all()} == {
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
    lock = Lock.read(workspace.root / "dvc.lock")
    assert md5_of(traced, "models/encoder") == lock.stages["pretrain"].outs[0].md5
    assert verify(traced, workspace) == 5
    cached(workspace, traced, "data/clean").unlink()
    assert verify(traced, workspace) == 5, "the workspace still has the object"
    shutil.rmtree(workspace.root / "data/clean")
    with pytest.raises(ArtifactError) as caught:
        verify(traced, workspace)
    assert f"data/clean: {md5_of(traced, 'data/clean')} is neither in the cache" in caught.value.cause


def test_an_older_lineage_belongs_to_its_version_and_is_verified_from_the_cache(
    traced: Trace, workspace: Workspace
) -> None:
    """Its source was overwritten: the snapshot has what was read."""
    retrain(workspace.root, "one two three")
    assert trace(URI, workspace).origin == traced.origin
    assert ancestry(Lock.read(workspace.root / "dvc.lock"), "dist/encoder") != traced.origin
    assert verify(traced, workspace) == 5


def damage_the_cache(traced: Trace, workspace: Workspace) -> None:
    file = cached(workspace, traced, "models/encoder")
    file.chmod(0o644)
    file.write_text("[]")
    shutil.rmtree(workspace.root / "models")


def change_the_manifest(traced: Trace, workspace: Workspace) -> None:
    with (traced.package.folder / FILES.manifest).open("a") as manifest:
        manifest.write("\n")


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (damage_the_cache, ["its content does not match its name"]),
        (lambda traced, _: (traced.package.folder / FILES.tokenizer).write_text("{}"), [FILES.tokenizer]),
        (change_the_manifest, ["not the package that was registered", "not the output of export@encoder"]),
    ],
)
def test_damage_on_the_way_is_named(
    traced: Trace, workspace: Workspace, damage: Callable[[Trace, Workspace], object], told: list[str]
) -> None:
    damage(traced, workspace)
    with pytest.raises(ArtifactError) as caught:
        verify(traced, workspace)
    assert all(part in str(caught.value) for part in told)


def test_what_was_forgotten_is_said_to_be_so_and_the_rest_is_still_checked(
    traced: Trace, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed = ("data/raw", "data/clean")
    for path in removed:
        cached(workspace, traced, path).unlink(missing_ok=True)
        shutil.rmtree(workspace.root / path)
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


def test_the_section_of_a_release_has_the_sources_by_hash_and_the_figures_with_intervals() -> None:
    given, made = LockedPath(path="raw.txt", md5="11"), LockedPath(path="models/encoder", md5="33.dir")
    code, other = LockedPath(path="src/clozeline/text", md5="22.dir"), LockedPath(path="other.txt", md5="55")
    package = LockedPath(path="dist/encoder", md5="44.dir")
    stages = {
        "clean": LockedStage(cmd="clean", deps=(given, code), outs=(made,)),
        "export@encoder": LockedStage(cmd="export", deps=(made,), outs=(package,)),
        "elsewhere": LockedStage(cmd="x", deps=(other,)),
    }
    ends = {"perplexity_low": 7.1, "perplexity_high": 7.7}
    encoder = encoder_metrics(perplexity=7.389, **ends, target_tokens=1234, contaminated_fraction=0.017)
    told = release_section("encoder", encoder, Lock(stages=stages))
    assert "`raw.txt`: md5 `11`" in told
    assert not any(path in told for path in ("src/", "other.txt", "models/encoder"))
    assert "- perplexity: 7.3890 (7.1000 to 7.7000)\n" in told
    assert "1,234 tokens" in told
    assert "1.7%" in told
    of_task = {"metric": "accuracy", "value": 0.8, "low": 0.78, "high": 0.82}
    baselines = {"baseline": "TF-IDF", "baseline_value": 0.7, "trivial": "x", "trivial_value": 0.1}
    task = TaskMetrics(headline=Headline.model_validate(of_task | baselines))
    told = release_section("encoder", task, Lock(stages=stages))
    assert "accuracy on the test split: 0.8000 (95 %: 0.7800 to 0.8200)" in told
    assert "TF-IDF 0.7000" in told
