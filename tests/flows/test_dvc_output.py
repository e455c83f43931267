"""DVC's lines, captured from its own runs, are read for what they say."""

import pytest

from clozeline.errors import ClozelineError, DataError, TransientError
from flows.dvc_output import Ended, failure_of, is_advice, outcome_of

DATA_ERROR = """\
Running stage 'upper':
> python steps.py upper raw.txt upper.txt
error: raw.txt is bad
  given:    bad
  expected: good
  do:       write good
ERROR: failed to reproduce 'upper': failed to run: python steps.py upper raw.txt upper.txt, exited with 3
"""


def ended(text: str, exit_code: int = 255) -> Ended:
    return Ended(name="upper", exit_code=exit_code, text=text, log="work/logs/upper.log")


@pytest.mark.parametrize(
    ("line", "outcome"),
    [
        ("Running stage 'upper':", "executed"),
        ("Stage 'upper' is cached - skipping run, checking out outputs", "restored"),
        ("Stage 'upper' didn't change, skipping", "unchanged"),
        ("Running stage 'upper@again':", None),
        ("it said: Running stage 'upper':", None),
    ],
)
def test_a_line_tells_how_its_own_stage_ends(line: str, outcome: str | None) -> None:
    assert outcome_of("upper", line) == outcome


def test_advice_on_dvcs_own_commands_is_told_from_what_a_stage_says() -> None:
    assert is_advice("Use `dvc push` to send your updates to remote storage.")
    assert is_advice("\tgit add dvc.lock")
    assert not is_advice("Updating lock file 'dvc.lock'")
    assert not is_advice("git add is what this text is about")


def test_a_failure_is_the_error_that_the_stage_told_with_its_class() -> None:
    error = failure_of(ended(DATA_ERROR))
    assert type(error) is DataError
    assert (error.given, error.expected, error.do) == ("bad", "good", "write good")
    assert "stage `upper`: raw.txt is bad" in str(error)


def test_what_a_library_said_in_several_lines_is_told_whole() -> None:
    said = "1 error:\n\nsteps: must be positive\n  got -1"
    error = failure_of(ended(DATA_ERROR.replace("given:    bad", f"given:    {said}")))
    assert type(error) is DataError
    assert (error.given, error.expected, error.do) == (said, "good", "write good")


def test_exit_code_75_is_worth_another_try() -> None:
    assert type(failure_of(ended(DATA_ERROR.replace("exited with 3", "exited with 75")))) is TransientError


def test_a_busy_lock_of_dvc_is_worth_another_try() -> None:
    text = "ERROR: failed to reproduce 'upper': '/p/upper.txt' is busy, it is being blocked by:\n  (PID 5): dvc repro\n"
    assert type(failure_of(ended(text))) is TransientError


def test_a_crash_without_a_told_error_names_its_exit_code_and_the_log() -> None:
    error = failure_of(
        ended("Segmentation fault\nERROR: failed to reproduce 'upper': failed to run: x, exited with -11\n")
    )
    assert type(error) is ClozelineError
    assert "-11" in str(error.given)
    assert "work/logs/upper.log" in error.do
