"""A killed training resumes and ends with the same result."""

import io
import json
import os
import shutil
import signal
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

import pytest
import torch

from clozeline.pretraining.job import Pretraining, pretrain
from clozeline.system.errors import ArtifactError, StorageError
from clozeline.training.checkpoints import SHARDS, Checkpoints
from tests.make.processes import little_disk
from tests.training.prepared import DETECTING, Killed, KillsAt, Prepare, largest_difference, weights_of

NEWEST = "one/step-000000010"


def checkpoints(work: Path, name: str = "one") -> Checkpoints:
    return Checkpoints.of(work, name, keep=2)


def save(checkpoints: Checkpoints, *steps: int) -> None:
    for step in steps:
        checkpoints.save(step, {"step": step, "weights": torch.full((1000,), float(step))})


def newest_step(work: Path) -> int:
    state = checkpoints(work).load_newest()
    assert state is not None
    assert torch.equal(state["weights"], torch.full((1000,), float(state["step"])))
    return int(state["step"])


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_newest_checkpoint_is_loaded_and_the_newest_ones_are_kept(tmp_path: Path) -> None:
    assert checkpoints(tmp_path).load_newest() is None
    save(checkpoints(tmp_path), 8, 9, 10, 11)
    assert names_in(tmp_path / "one") == ["step-000000010", "step-000000011"]
    assert newest_step(tmp_path) == 11
    assert json.loads((tmp_path / NEWEST / "seal.json").read_text())["fingerprint"] == "one"


def invert_a_byte(saved: Path) -> None:
    content = bytearray((saved / "state.pt").read_bytes())
    content[len(content) // 2] ^= 0xFF
    (saved / "state.pt").write_bytes(content)


def change_a_letter_of_the_seal(saved: Path) -> None:
    text = (saved / "seal.json").read_text()
    assert '"one"' in text
    (saved / "seal.json").write_text(text.replace('"one"', '"onf"'))


HARMS = {
    "a byte": invert_a_byte,
    "no seal": lambda saved: (saved / "seal.json").unlink(),
    "null as seal": lambda saved: (saved / "seal.json").write_text("null"),
    "a letter of the seal": change_a_letter_of_the_seal,
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_a_damaged_newest_checkpoint_is_skipped_with_a_warning(tmp_path, harm, caplog) -> None:
    save(checkpoints(tmp_path), 9, 10)
    harm(tmp_path / NEWEST)
    assert newest_step(tmp_path) == 9
    assert "step-000000010 is damaged" in caplog.text


@pytest.mark.parametrize("harm", [lambda shard: shard.write_bytes(b"tensorz"), Path.unlink])
def test_a_checkpoint_with_a_damaged_shard_is_skipped_with_a_warning(tmp_path, harm, caplog) -> None:
    own = checkpoints(tmp_path)
    for step in (8, 9, 10):
        with own.replacing(step) as beside:
            (beside / "__0_0.distcp").write_bytes(b"tensors")
            own.seal(beside, {"step": step}, {"__0_0.distcp": sha256(b"tensors").hexdigest()})
    assert own.load_newest() == {"step": 10, SHARDS: tmp_path / NEWEST}
    harm(tmp_path / NEWEST / "__0_0.distcp")
    assert own.load_newest() == {"step": 9, SHARDS: tmp_path / "one/step-000000009"}
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
    with pytest.raises(ArtifactError, match=r"fingerprint other.* one"):
        checkpoints(tmp_path).load_newest()


def test_checkpoints_of_abandoned_trainings_are_reported_and_kept(tmp_path, caplog) -> None:
    save(checkpoints(tmp_path), 1)
    checkpoints(tmp_path).warn_of_other_states()
    assert caplog.text == ""
    for name in ("two", "three"):
        save(checkpoints(tmp_path, name), 1)
    checkpoints(tmp_path).warn_of_other_states()
    assert "three, two" in caplog.text
    checkpoints(tmp_path).remove()
    assert names_in(tmp_path) == ["three", "two"]


def test_a_full_disk_during_a_save_is_reported_and_loses_no_checkpoint(tmp_path: Path) -> None:
    save(checkpoints(tmp_path), 9)
    with little_disk(), pytest.raises(StorageError, match=r"(?s)no space left while writing.*step-000000010"):
        checkpoints(tmp_path).save(10, {"weights": torch.zeros(1_000_000)})
    assert newest_step(tmp_path) == 9
    assert names_in(tmp_path / "one") == ["step-000000009"]


@pytest.mark.parametrize(
    ("killed_at", "num_workers", "objective"),
    [(11, 2, {}), (38, 0, {}), (8, 2, {**DETECTING, "optimizer__learning_rate": 1e-3})],
)
def test_a_killed_and_resumed_training_gives_the_bytes_of_an_uninterrupted_one(
    prepare: Prepare, killed_at: int, num_workers: int, objective: dict[str, object]
) -> None:
    """P29: with dropout, in micro-batches, in mid-epoch, with validation passes and the best weights kept."""
    changes = {
        "model__dropout": 0.1,
        "micro_batch_tokens": 100,
        "validation__every_steps": 4,
        "validation__patience": 50,
        "checkpoint_every_steps": 3,
        "log_every_steps": 1,
        **objective,
    }
    whole = prepare("whole", **changes)
    whole_state = whole.run()
    with pytest.raises(Killed):
        prepare("killed", num_workers=num_workers, **changes).run([KillsAt(killed_at)])
    torch.manual_seed(99)  # a new process has another random state
    resumed = prepare("killed", num_workers=num_workers, **changes)
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
    half, *saved = sorted(folder.name for folder in (tmp_path / "killed").glob("*/*"))
    assert half.startswith(".step-000000012."), "it was killed in the middle of its third save"
    assert saved == ["step-000000004", "step-000000008"]
    resumed = prepare("killed", **changes)
    assert resumed.loop.resume().step == 8
    assert resumed.run() == whole_state
    assert largest_difference(weights_of(whole.model), weights_of(resumed.model)) == 0.0
    assert not list((tmp_path / "killed").glob("*/.step-*"))


def test_the_first_batch_after_a_resume_does_not_take_longer_late_in_a_training(prepare: Prepare, monkeypatch) -> None:
    """P30: counted in batches built, which does not depend on a clock."""
    made: list[object] = []
    job = prepare()
    feed = type(job.loop.batches_from.__self__)
    build = feed.batch
    monkeypatch.setattr(feed, "batch", lambda self, turn: made.append(turn) or build(self, turn))
    batch = next(job.loop.batches_from(700, 5))
    assert (batch.epoch, batch.index, len(made)) == (700, 5, 1)


def test_checkpoints_stay_until_the_model_is_saved(prepare: Prepare, tmp_path: Path) -> None:
    given = {"tokens": prepare.tokens, "tokenizer": prepare.tokenizer, "work": tmp_path / "work"}
    trained = pretrain(prepare.params, seed=1, **given)
    (tmp_path / "encoder").write_text("no folder", encoding="utf-8")
    with pytest.raises(NotADirectoryError):
        trained.save(tmp_path / "encoder" / "inside")
    assert list((tmp_path / "work").glob("*/step-*"))
    trained.save(tmp_path / "saved")
    assert list((tmp_path / "work").iterdir()) == []
