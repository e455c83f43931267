"""Claim: the error of a killed stage names the cause; if memory ran out, also the keys of params.yaml that help."""

from pathlib import Path

import pytest

from clozeline.orchestration import stage_process
from clozeline.orchestration.stage_process import Ended, failure_of, failure_of_killed
from clozeline.params.project import Params
from clozeline.params.tasks import SECTIONS
from clozeline.system.errors import ClozelineError
from tests.make.params import is_knob_of, named_in
from tests.orchestration.test_stage_process import reproduce

STAGES = Path(stage_process.__file__).parents[1] / "stages"
KILLING = """
import os, pathlib, psutil, time
me = psutil.Process()
dvc = next(parent for parent in me.parents() if "clozeline.versions.reproduce" in parent.cmdline())
victims = {"stage": me, "dvc": dvc}
os.kill(victims[pathlib.Path("raw.txt").read_text()].pid, 9)
time.sleep(20)
"""
KILLED = "was killed (signal 9)"


@pytest.mark.parametrize("killed", ["stage", "dvc"])
def test_a_killed_stage_or_dvc_is_reported_as_killed(toy: Path, killed: str) -> None:
    (toy / "steps.py").write_text(KILLING)
    (toy / "raw.txt").write_text(killed)
    ended, _ = reproduce(toy, "upper")
    error = failure_of(ended)
    assert type(error) is ClozelineError
    assert error.problem == f"stage `upper` {KILLED} by a person or a program: memory did not run out"
    assert "run the same command again" in error.do
    assert "more memory" not in error.do
    assert str(toy / "work/logs/upper.log") in error.do


@pytest.mark.parametrize(("kills", "cause"), [(1, "memory ran out"), (None, "by hand, or because memory ran out")])
def test_a_kill_is_blamed_on_memory_if_the_kernel_counts_one_or_has_no_counter(kills: int | None, cause: str) -> None:
    error = failure_of(Ended("upper", 137, "", "upper.log", kills))
    assert error.problem == f"stage `upper` {KILLED}: {cause}"
    assert "GiB" in error.given
    assert "more memory" in error.do


@pytest.mark.parametrize("code", [-9, 137])
def test_both_exit_codes_of_signal_9_are_recognized(code: int) -> None:
    """The exit code is -9 if a process waited for the stage, and 137 if a shell or torchrun did."""
    assert KILLED in str(failure_of(Ended("upper", code, "", "upper.log")))


@pytest.mark.parametrize("code", [1, -11, -15, 143])
def test_other_exit_codes_are_not_blamed_on_memory(code: int) -> None:
    assert "memory" not in str(failure_of(Ended("upper", code, "", "upper.log")))


def test_every_stage_named_in_the_settings_exists() -> None:
    assert stage_process._SETTINGS.keys() < {file.stem for file in STAGES.glob("[!_]*.py")}


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("pretrain", ["pretrain.micro_batch_tokens", "pretrain.gradient_checkpointing"]),
        ("evaluate", ["evaluate.max_length"]),
        ("preprocess", []),
        ("export@encoder", []),
    ],
)
def test_the_advice_names_params_of_the_killed_stage(name: str, named: list[str]) -> None:
    assert named_in(failure_of_killed(name, -9, "x.log", 1).do) == named
    assert all(is_knob_of(Params, knob) for knob in named)


@pytest.mark.parametrize("kind", SECTIONS)
def test_the_advice_for_a_killed_task_names_params_of_every_kind(kind: str) -> None:
    named = named_in(failure_of_killed("finetune@sts2016", -9, "x.log", 1).do)
    assert named == ["finetune.sts2016.micro_batch_tokens", "finetune.sts2016.max_length"]
    assert all(is_knob_of(SECTIONS[kind], knob.removeprefix("finetune.sts2016.")) for knob in named)
