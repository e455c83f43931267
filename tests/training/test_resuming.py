"""A killed training resumes and ends with the same result."""

import io
import os
import signal
from pathlib import Path
from typing import BinaryIO

import pytest
import torch

from clozeline.params.pretraining import PretrainParams
from clozeline.pretraining import job as pretraining
from clozeline.pretraining.job import Pretraining
from clozeline.training.curves import CurvePoint
from clozeline.training.state import Callback
from tests.training.prepared import Prepare, largest_difference, weights_of


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
