"""The error of a failed stage repeats the stage's own message; its class follows from the exit code."""

from clozeline.orchestration.stage_process import Ended, failure_of
from clozeline.system.errors import ClozelineError, DataError, TransientError

DATA_ERROR = """\
Running stage 'upper':
> python steps.py upper raw.txt upper.txt
error: raw.txt is bad
  given:    bad
  expected: good
  do:       write good
"""


def ended(text: str, exit_code: int = 3) -> Ended:
    return Ended(name="upper", exit_code=exit_code, text=text, log="work/logs/upper.log")


def test_a_failure_is_the_error_that_the_stage_raised_with_its_class() -> None:
    error = failure_of(ended(DATA_ERROR))
    assert type(error) is DataError
    assert (error.given, error.expected, error.do) == ("bad", "good", "write good")
    assert "stage `upper`: raw.txt is bad" in str(error)
    assert error.is_reported, "the stage's own message is shown"


def test_the_last_of_several_errors_is_reported() -> None:
    earlier = DATA_ERROR.replace("raw.txt is bad", "a first attempt failed")
    assert "raw.txt is bad" in failure_of(ended(earlier + DATA_ERROR)).problem


def test_a_message_of_several_lines_is_kept_whole() -> None:
    said = "1 error:\n\nsteps: must be positive\n  got -1"
    error = failure_of(ended(DATA_ERROR.replace("given:    bad", f"given:    {said}")))
    assert type(error) is DataError
    assert (error.given, error.expected, error.do) == (said, "good", "write good")


def test_an_error_without_given_and_expected_is_found_whole() -> None:
    said = "raw.txt is bad: 1 error:\n\n  steps: must be positive"
    error = failure_of(ended(f"error: a first attempt\nfailed\nerror: {said}\n  do: write good\n"))
    assert (type(error), error.given, error.expected, error.do) == (DataError, None, "", "write good")
    assert error.problem == f"stage `upper`: {said}"


def test_exit_code_75_is_retried() -> None:
    assert type(failure_of(ended(DATA_ERROR, exit_code=75))) is TransientError


def test_a_crash_without_an_error_message_names_its_exit_code_and_the_log() -> None:
    error = failure_of(ended("Segmentation fault\n", exit_code=139))
    assert type(error) is ClozelineError
    assert "139" in str(error.given)
    assert not error.is_reported
    assert "work/logs/upper.log" in error.do
