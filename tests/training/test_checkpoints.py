"""A killed training resumes and ends with the same result."""

import io
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

import pytest
import torch

from clozeline.params.pretraining import PretrainParams
from clozeline.pretraining import job as pretraining
from clozeline.pretraining.job import Pretraining
from clozeline.system.errors import ArtifactError
from clozeline.training.checkpoints import SHARDS, Checkpoints
from clozeline.training.curves import CurvePoint
from clozeline.training.state import Callback
from tests.training.prepared import Prepare, largest_difference, weights_of


def checkpoints(work: Path, name: str = "one") -> Checkpoints:
    return Checkpoints.of(work, name, keep=2)


def save(checkpoints: Checkpoints, step: int) -> None:
    checkpoints.save(step, {"step": step, "weights": torch.full((1000,), float(step))})


def test_the_newest_checkpoint_is_loaded(tmp_path: Path) -> None:
    for step in (9, 10):
        save(checkpoints(tmp_path), step)
    state = checkpoints(tmp_path).load_newest()
    assert state is not None
    assert state["step"] == 10
    assert torch.equal(state["weights"], torch.full((1000,), 10.0))


def test_load_newest_returns_none_without_a_checkpoint(tmp_path: Path) -> None:
    assert checkpoints(tmp_path).load_newest() is None


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    for step in (8, 9, 10, 11):
        save(checkpoints(tmp_path), step)
    assert [folder.name for folder in sorted((tmp_path / "one").iterdir())] == ["step-000000010", "step-000000011"]


def damage(saved: Path) -> None:
    state = saved / "state.pt"
    content = bytearray(state.read_bytes())
    content[len(content) // 2] ^= 0xFF
    state.write_bytes(content)


def truncate(saved: Path) -> None:
    state = saved / "state.pt"
    state.write_bytes(state.read_bytes()[:100])


def lose_seal(saved: Path) -> None:
    (saved / "seal.json").unlink()


def write_null_into_seal(saved: Path) -> None:
    (saved / "seal.json").write_text("null")


def change_a_letter_of_the_seal(saved: Path) -> None:
    seal = saved / "seal.json"
    text = seal.read_text()
    assert '"one"' in text
    seal.write_text(text.replace('"one"', '"onf"'))


@pytest.mark.parametrize("harm", [damage, truncate, lose_seal, write_null_into_seal, change_a_letter_of_the_seal])
def test_a_damaged_newest_checkpoint_is_skipped_with_a_warning(
    tmp_path: Path, harm: object, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (9, 10):
        save(checkpoints(tmp_path), step)
    harm(tmp_path / "one" / "step-000000010")
    with caplog.at_level(logging.WARNING):
        state = checkpoints(tmp_path).load_newest()
    assert state is not None
    assert state["step"] == 9
    assert "step-000000010 is damaged" in caplog.text


def save_with_a_shard(checkpoints: Checkpoints, step: int) -> None:
    with checkpoints.replacing(step) as beside:
        (beside / "__0_0.distcp").write_bytes(b"tensors")
        checkpoints.seal(beside, {"step": step}, {"__0_0.distcp": sha256(b"tensors").hexdigest()})


@pytest.mark.parametrize("harm", [lambda shard: shard.write_bytes(b"tensorz"), Path.unlink])
def test_a_checkpoint_with_a_damaged_shard_is_skipped_with_a_warning(
    tmp_path: Path, harm: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    for step in (8, 9, 10):
        save_with_a_shard(checkpoints(tmp_path), step)
    newest = tmp_path / "one/step-000000010"
    assert checkpoints(tmp_path).load_newest() == {"step": 10, SHARDS: newest}
    harm(newest / "__0_0.distcp")
    with caplog.at_level(logging.WARNING):
        state = checkpoints(tmp_path).load_newest()
    assert state == {"step": 9, SHARDS: tmp_path / "one/step-000000009"}
    assert "step-000000010 is damaged" in caplog.text


def test_a_checkpoint_is_loaded_into_main_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state is not loaded to the GPU of the process that saved it: each process has its own GPU, or none."""
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:1")
        save(checkpoints(tmp_path), 10)
    state = checkpoints(tmp_path).load_newest()
    assert state is not None
    assert state["weights"].device.type == "cpu"


def test_a_checkpoint_of_another_run_is_refused_by_name(tmp_path: Path) -> None:
    save(checkpoints(tmp_path, "other"), 10)
    shutil.move(tmp_path / "other", tmp_path / "one")
    with pytest.raises(ArtifactError, match="another run") as caught:
        checkpoints(tmp_path).load_newest()
    assert "fingerprint other" in str(caught.value)
    assert "not one" in str(caught.value)


def test_a_failed_save_leaves_earlier_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(checkpoints(tmp_path), 9)

    def half_written(state: object, file: BinaryIO) -> None:
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", half_written)
    with pytest.raises(KeyboardInterrupt):
        save(checkpoints(tmp_path), 10)
    state = checkpoints(tmp_path).load_newest()
    assert state is not None
    assert state["step"] == 9
    assert [folder.name for folder in (tmp_path / "one").iterdir()] == ["step-000000009"]


def test_the_next_save_removes_debris_of_a_killed_one(tmp_path: Path) -> None:
    half = tmp_path / "one" / ".step-000000009.123.0123abcd.partial"
    (half / "step-000000009").mkdir(parents=True)
    (half / "step-000000009" / "state.pt").write_bytes(b"half")
    (half / ".held").touch()
    save(checkpoints(tmp_path), 10)
    assert [folder.name for folder in (tmp_path / "one").iterdir()] == ["step-000000010"]


def test_checkpoints_of_abandoned_trainings_are_reported_and_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(checkpoints(tmp_path, "one"), 1)
    checkpoints(tmp_path, "one").warn_of_other_states()
    assert caplog.text == ""
    for name in ("two", "three"):
        save(checkpoints(tmp_path, name), 1)
    checkpoints(tmp_path, "one").warn_of_other_states()
    assert "three, two" in caplog.text
    assert {folder.name for folder in tmp_path.iterdir()} == {"one", "two", "three"}


def test_remove_deletes_only_checkpoints_of_this_training(tmp_path: Path) -> None:
    save(checkpoints(tmp_path, "one"), 1)
    save(checkpoints(tmp_path, "two"), 1)
    checkpoints(tmp_path, "one").remove()
    assert [folder.name for folder in tmp_path.iterdir()] == ["two"]


def test_the_seal_names_the_fingerprint(tmp_path: Path) -> None:
    save(checkpoints(tmp_path), 1)
    assert json.loads((tmp_path / "one" / "step-000000001" / "seal.json").read_text())["fingerprint"] == "one"


FILL_DISK = """
import resource, sys
from pathlib import Path
import torch
from clozeline.training.checkpoints import Checkpoints
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))  # as much as this disk will take of one file
Checkpoints.of(Path(sys.argv[1]), "one", keep=2).save(10, {"weights": torch.zeros(1_000_000)})
"""


def test_a_full_disk_during_a_save_is_reported_and_loses_no_checkpoint(tmp_path: Path) -> None:
    save(checkpoints(tmp_path), 9)
    result = subprocess.run([sys.executable, "-c", FILL_DISK, str(tmp_path)], capture_output=True, text=True)
    assert "StorageError: no space left while writing" in result.stderr
    assert "step-000000010" in result.stderr
    state = checkpoints(tmp_path).load_newest()
    assert state is not None
    assert state["step"] == 9
    assert [folder.name for folder in (tmp_path / "one").iterdir()] == ["step-000000009"]


class Killed(BaseException):
    """Stands for a kill: nothing in the training catches it."""


class KillsAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_point(self, point: CurvePoint) -> None:
        if point.step >= self.step:
            raise Killed


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("killed_at", [3, 11, 38])
def test_a_killed_and_resumed_training_gives_the_bytes_of_an_uninterrupted_one(
    prepare: Prepare, killed_at: int, num_workers: int
) -> None:
    """P29: with dropout, in micro-batches, in mid-epoch, with validation passes and the best weights kept."""
    changes = {
        "model__dropout": 0.1,
        "micro_batch_tokens": 100,
        "validation__every_steps": 4,
        "validation__patience": 50,
        "checkpoint_every_steps": 3,
        "log_every_steps": 1,
        "num_workers": num_workers,
    }
    whole = prepare("whole", **changes)
    whole_state = whole.run()
    with pytest.raises(Killed):
        prepare("killed", **changes).run([KillsAt(killed_at)])
    torch.manual_seed(99)  # a new process has another random state
    resumed = prepare("killed", **changes)
    assert resumed.run() == whole_state
    assert largest_difference(weights_of(whole.model), weights_of(resumed.model)) == 0.0


def killed_in_a_save(job: Pretraining, save: int) -> int:
    """Run `job` in a process of its own and return the signal that ended it, with half of its save `save` on disk."""
    process = os.fork()
    if process == 0:
        try:
            die_in_save(job, save)
        finally:
            os._exit(1)
    return os.WTERMSIG(os.waitpid(process, 0)[1])


def die_in_save(job: Pretraining, save: int) -> None:
    write, num_saves = torch.save, 0

    def half(state: object, file: BinaryIO) -> None:
        nonlocal num_saves
        num_saves += 1
        whole = io.BytesIO()
        write(state, whole)
        file.write(whole.getvalue()[: None if num_saves < save else len(whole.getvalue()) // 2])
        if num_saves == save:
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    torch.save = half
    job.run()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_training_killed_during_a_save_gives_the_bytes_of_an_uninterrupted_one(
    prepare: Prepare, tmp_path: Path, num_workers: int
) -> None:
    """P29, P31: by SIGKILL, which no process can catch."""
    changes = {"model__dropout": 0.1, "checkpoint_every_steps": 4, "steps": 16, "num_workers": num_workers}
    whole = prepare("whole", **changes)
    whole_state = whole.run()
    assert killed_in_a_save(prepare("killed", **changes), save=3) == signal.SIGKILL
    left = [folder.name for folder in (tmp_path / "killed").glob("*/*")]
    assert sorted(name for name in left if name.endswith("0004") or name.endswith("0008")) == sorted(left)[1:]
    assert sorted(left)[0].startswith(".step-000000012."), "it was killed in the middle of its third save"
    resumed = prepare("killed", **changes)
    assert resumed.loop.resume().step == 8
    assert resumed.run() == whole_state
    assert largest_difference(weights_of(whole.model), weights_of(resumed.model)) == 0.0
    assert not list((tmp_path / "killed").glob("*/.step-*"))


def test_the_first_batch_after_a_resume_does_not_take_longer_late_in_a_training(prepare: Prepare) -> None:
    """P30: counted in batches built, which does not depend on a clock."""
    made: list[int] = []
    job = prepare()
    feed_batch = type(job.loop.batches_from.__self__).batch

    def counted(feed: object, turn: object) -> object:
        made.append(1)
        return feed_batch(feed, turn)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(job.loop.batches_from.__self__), "batch", counted)
        batch = next(job.loop.batches_from(700, 5))
    assert (batch.epoch, batch.index, len(made)) == (700, 5, 1)


def test_checkpoints_stay_until_the_model_is_saved(
    tiny_pretraining: PretrainParams, tiny_tokens: Path, tiny_tokenizer: Path, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    trained = pretraining.pretrain(tiny_pretraining, seed=1, tokens=tiny_tokens, tokenizer=tiny_tokenizer, work=work)
    (tmp_path / "encoder").write_text("no folder", encoding="utf-8")
    with pytest.raises(NotADirectoryError):
        trained.save(tmp_path / "encoder" / "inside")
    assert list(work.glob("*/step-*"))
    trained.save(tmp_path / "saved")
    assert list(work.iterdir()) == []
