"""The page of `clozeline status --page` has what the command prints, and escapes what others wrote."""

from datetime import UTC, datetime

from clozeline.cli.status import _model
from clozeline.cli.status_page import status_page
from clozeline.orchestration.project_status import Disk, ModelStatus, Problem, ProjectStatus, Remote
from clozeline.orchestration.scheduled_runs import ScheduledRun

NOW = datetime(2026, 11, 25, 5, 30, tzinfo=UTC)
HELD = ModelStatus(
    name="clozeline-encoder",
    champion="7",
    since=NOW,
    why="<b>every</b> gate passed",
    who="worker@host",
    candidate="8",
    outcome="held",
    reason="too few items: `clozeline release --accept` promotes it",
)
FAILED = ScheduledRun(deployment="nightly/nightly", state="Failed", started=NOW, message="full", do="free some room")


def page(
    models: list[ModelStatus] | None = None, runs: list[ScheduledRun] | None = None, remote: Remote | None = None
) -> str:
    disk = Disk(free_bytes=41_200_000_000, total_bytes=120_000_000_000)
    found = ProjectStatus(models=models or [], runs=runs or [], disk=disk, remote=remote, problems=[])
    return status_page(found, "corpus", NOW)


def test_the_page_shows_the_next_command_for_a_held_candidate_and_a_failed_run() -> None:
    shown = page([HELD], [FAILED], Remote(url="s3://bucket/x", num_missing=12))
    for told in (
        "Status of corpus",
        "version 7",
        "by worker@host",
        "version 8: held",
        "<code>clozeline release --accept</code>",
        '<span class="badge bad">Failed</span>',
        "Next: free some room",
        "not planned",
        "41.2 of 120.0 GB",
        "lacks 12 objects: <code>clozeline remote push</code>",
    ):
        assert told in shown, told
    assert "&lt;b&gt;every&lt;/b&gt; gate passed" in shown


def test_the_page_and_the_command_show_when_a_fleet_changes_to_the_champion() -> None:
    waiting = HELD.model_copy(update={"serve_from": NOW})
    assert "a fleet serves it from 05:30:00 UTC on; <code>clozeline rollback encoder</code>" in page([waiting])
    told = "  a fleet serves it from 05:30:00 UTC on; `clozeline rollback encoder` takes the change back"
    assert told in list(_model(waiting))
    assert "fleet" not in page([HELD])


def test_the_page_of_a_new_project_shows_the_first_commands() -> None:
    shown = page()
    for command in ("clozeline run", "make deploy", "clozeline remote add URL"):
        assert f"<code>{command}</code>" in shown


def test_the_page_names_an_unreachable_source_and_shows_the_rest() -> None:
    problem = Problem(about="remote", problem="the store does not answer", given="http://x", do="start it")
    disk = Disk(free_bytes=1, total_bytes=2)
    shown = status_page(
        ProjectStatus(models=None, runs=[FAILED], disk=disk, remote=None, problems=[problem]), "corpus", NOW
    )
    assert "Unknown: remote. The store does not answer (http://x). Next: start it." in shown
    assert "nightly/nightly" in shown
    assert "remote add" not in shown
