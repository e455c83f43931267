"""What one machine pushes to the remote, another restores; a push that fails loses nothing."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from clozeline.records.record import Lock
from clozeline.system.errors import ArtifactError, ParamsError, TransientError
from clozeline.versions import remote, reproduce
from clozeline.versions.objects import Objects
from tests.make.stores import BUCKET, ObjectStore

STAGES = ("upper", "count", "sign@ada", "sign@alan")
URL = f"s3://{BUCKET}/project"


def outcomes(root: Path, monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Bring every stage up to date, as the pipeline does; return their outcomes."""
    with monkeypatch.context() as here:
        here.chdir(root)
        here.setenv("SHELL", "/bin/sh")
        if remote.fetch_runs(root):
            here.setenv(reproduce.RESTORE_FROM_REMOTE, "1")
        return [reproduce.outcome_of(reproduce.reproduce(stage)) for stage in STAGES]


def fresh_clone(root: Path, folder: Path) -> Path:
    """Copy what git holds of the project: no cache, no output, no dvc.lock."""
    kept = shutil.ignore_patterns("cache", "tmp", "upper.txt", "signed", "metrics", "dvc.lock", "__pycache__")
    return shutil.copytree(root, folder / "clone", ignore=kept)


def test_a_second_machine_restores_every_stage_including_older_runs(
    toy: Path, tmp_path: Path, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote.add(toy, URL, store.url)
    first_night = ""
    for text in ("one", "one two three"):
        (toy / "raw.txt").write_text(text)
        assert outcomes(toy, monkeypatch) == ["executed"] * len(STAGES)
        first_night = first_night or Lock.read(toy / "dvc.lock").stages["upper"].outs[0].md5
        assert remote.push(toy) > 0
    assert (remote.push(toy), remote.missing(toy)) == (0, 0)

    clone = fresh_clone(toy, tmp_path)
    assert outcomes(clone, monkeypatch) == ["restored"] * len(STAGES)
    assert (clone / "signed/alan.txt").read_text() == "ONE TWO THREE alan"
    assert (clone / "dvc.lock").read_bytes() == (toy / "dvc.lock").read_bytes()
    with Objects.open(clone) as objects:
        assert objects.fault_of("upper.txt", first_night, None) is None
        assert objects.fault_of("upper.txt", "0" * 32, None)

    shutil.rmtree(clone / "signed")
    shutil.rmtree(clone / "metrics")
    shutil.rmtree(clone / ".dvc/cache")
    assert outcomes(clone, monkeypatch) == ["unchanged", "restored", "restored", "restored"]
    assert (clone / "metrics/count.json").read_bytes() == (toy / "metrics/count.json").read_bytes()


def test_a_folder_missing_from_every_cache_is_fetched_with_its_files(toy: Path, tmp_path: Path) -> None:
    (toy / "folder").mkdir()
    (toy / "folder/a.txt").write_text("a")
    subprocess.run([sys.executable, "-m", "dvc", "add", "-q", "folder"], cwd=toy, check=True)
    remote.add(toy, str(tmp_path / "store"))
    remote.push(toy)
    shutil.rmtree(toy / ".dvc/cache")
    with Objects.open(toy) as objects:
        md5 = objects.md5_of(toy / "folder")
        shutil.rmtree(toy / "folder")
        assert objects.fault_of("folder", str(md5), None) is None


def test_an_object_that_somebody_forged_in_the_remote_is_made_again(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote.add(toy, str(tmp_path / "store"))
    outcomes(toy, monkeypatch)
    remote.push(toy)
    for file in (tmp_path / "store/files/md5").glob("*/*"):
        file.chmod(0o600)
        file.write_bytes(b"forged")
        file.chmod(0o444)  # as DVC protects its own
    clone = fresh_clone(toy, tmp_path)
    assert outcomes(clone, monkeypatch) == ["executed"] * len(STAGES)
    assert (clone / "metrics/count.json").read_bytes() == (toy / "metrics/count.json").read_bytes()


def test_a_push_that_fails_halfway_is_completed_by_the_next_one(
    toy: Path, tmp_path: Path, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote.add(toy, URL, store.url)
    outcomes(toy, monkeypatch)
    store.num_writes_left = 2  # the probe, and one object
    with pytest.raises(TransientError, match="not every file was pushed"):
        remote.push(toy)
    store.num_writes_left = None
    assert remote.missing(toy)
    remote.push(toy)
    assert remote.missing(toy) == 0
    assert not [name for name in store.names() if "probe" in name]
    assert outcomes(fresh_clone(toy, tmp_path), monkeypatch) == ["restored"] * len(STAGES)


@pytest.mark.parametrize(
    ("url", "endpoint", "num_writes", "error", "told"),
    [
        (URL, None, 0, ArtifactError, "refuses the key"),
        ("s3://another-bucket/project", None, None, ArtifactError, "does not exist"),
        (URL, "http://127.0.0.1:9", None, TransientError, "does not answer"),
        ("teapot://team/project", None, None, ParamsError, "no such remote"),
    ],
)
def test_an_unusable_remote_is_refused_and_nothing_is_changed(
    toy: Path, store: ObjectStore, url: str, endpoint: str | None, num_writes: int | None, error: type, told: str
) -> None:
    before = (toy / ".dvc/config").read_bytes()
    store.num_writes_left = num_writes
    with pytest.raises(error, match=told):
        remote.add(toy, url, endpoint or store.url)
    assert (toy / ".dvc/config").read_bytes() == before


def test_without_a_remote_nothing_is_pushed_or_fetched(toy: Path) -> None:
    assert remote.push(toy) == 0
    assert remote.fetch_runs(toy) is False
    assert remote.missing(toy) is remote.address(toy) is None


def test_stages_run_while_the_remote_is_unreachable(
    toy: Path, store: ObjectStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    remote.add(toy, URL, store.url)
    store.num_writes_left = 0
    assert outcomes(toy, monkeypatch) == ["executed"] * len(STAGES)
    assert "nothing is restored from the remote" in caplog.text


def test_the_newest_of_several_runs_with_the_same_inputs_is_restored(
    toy: Path, tmp_path: Path, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a source that DVC cannot watch, of which each night takes a new snapshot."""
    monkeypatch.chdir(toy)
    monkeypatch.setenv("SHELL", "/bin/sh")
    graph = (toy / "dvc.yaml").read_text()
    (toy / "dvc.yaml").write_text(graph.replace("    deps: [raw.txt]\n", "", 1))
    remote.add(toy, URL, store.url)
    for text in ("one", "one two", "three"):
        (toy / "raw.txt").write_text(text)
        reproduce.reproduce("upper", again=True)
        remote.push(toy)
        for record in (toy / ".dvc/cache/runs").glob("*/*/*"):
            os.utime(record, (record.stat().st_mtime - 3600,) * 2)  # an hour passes
        time.sleep(1)
    clone = fresh_clone(toy, tmp_path)
    assert outcomes(clone, monkeypatch) == ["restored", *["executed"] * (len(STAGES) - 1)]
    assert (clone / "upper.txt").read_text() == "THREE"


def test_a_push_or_fetch_without_news_leaves_the_times_of_runs_unchanged(
    toy: Path, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise no run would ever be old enough for `clozeline gc`."""

    def times_there() -> dict[str, float]:
        found = store.client().list_objects_v2(Bucket=BUCKET, Prefix="project/runs/")["Contents"]
        return {item["Key"].removeprefix("project/"): item["LastModified"].timestamp() for item in found}

    def times_here() -> dict[str, float]:
        files = (toy / ".dvc/cache/runs").glob("*/*/*")
        return {file.relative_to(toy / ".dvc/cache").as_posix(): file.stat().st_mtime for file in files}

    remote.add(toy, URL, store.url)
    outcomes(toy, monkeypatch)
    for name in times_here():
        os.utime(toy / ".dvc/cache" / name, (1_000_000.0,) * 2)
    remote.push(toy)
    pushed = times_there()
    remote.push(toy)
    assert times_there() == pushed
    assert remote.fetch_runs(toy)
    assert times_here() == dict.fromkeys(pushed, 1_000_000.0)
    shutil.rmtree(toy / ".dvc/cache/runs")
    assert remote.fetch_runs(toy)
    assert times_here() == pushed
    assert len(pushed) == len(STAGES)


def test_a_run_that_a_kill_cut_off_is_sent_and_fetched_again(toy: Path, tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    remote.add(toy, str(tmp_path / "store"))
    name = "/".join(["runs", "ab", "ab" * 32, "cd" * 32])
    here, there = toy / ".dvc/cache" / name, tmp_path / "store" / name
    for file in (here, there):
        file.parent.mkdir(parents=True)
    here.write_text("a record")
    there.write_text("a re")
    (here.parent / "cut.tmp").write_text("a temporary file of DVC")
    remote.push(toy)
    assert (there.read_text(), len(list(there.parent.iterdir()))) == ("a record", 1)
    here.write_text("")
    assert remote.fetch_runs(toy)
    assert here.read_text() == "a record"
