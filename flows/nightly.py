"""The scheduled flow: bring every stage up to date, push, release the packages, and write the report."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from prefect import State, flow
from prefect.client.schemas.objects import StateType

from clozeline.flows.pipeline import pipeline
from clozeline.flows.push import push
from clozeline.flows.release import release
from clozeline.orchestration.prefect_adapter import leave_to, living_run, require_no_crash_loop
from clozeline.orchestration.release import HeldError, Release
from clozeline.reporting.page import write
from clozeline.system.errors import ClozelineError, ContractError
from clozeline.system.workspace import Workspace

# Names of the final states that alerts in infra/prefect.yaml match, by the error. Any other error is `Failed`.
STATES: Mapping[type[ClozelineError], str] = {HeldError: "Held", ContractError: "ContractBroken"}


@flow(name="nightly")
def nightly(project: Path = Path()) -> State[object] | None:
    """Run `pipeline` on a new snapshot, push to the remote, `release`, and write the report, even if one fails.

    The push precedes the release, which needs it: whatever is behind a new champion can be fetched on any machine.
    Any error fails this flow; the first one is raised. If a version is held, that is an error, too: a version that
    waits for a person must not look like a successful night. A run that Prefect starts beside a running one, whose
    heartbeats it missed, leaves the work to it.
    """
    living = living_run(Workspace(project.resolve()).lock_file)
    if living:
        return leave_to(living)
    require_no_crash_loop()
    errors: list[ClozelineError] = []
    releases: Sequence[Release] = ()
    with _kept_in(errors):
        pipeline(project, refresh=True)
    with _kept_in(errors):
        push(project.resolve())
    if not errors:
        with _kept_in(errors):
            releases = release(project, waits=True)
    with _kept_in(errors):
        write(Workspace(project.resolve()), datetime.now(UTC))
    held = [made for made in releases if made.outcome == "held"]
    if held:
        errors.append(HeldError.of(held))
    if not errors:
        return None
    if type(errors[0]) not in STATES:
        raise errors[0]
    name = STATES[type(errors[0])]
    return State(type=StateType.FAILED, name=name, message=str(errors[0]), data=errors[0])


@contextmanager
def _kept_in(errors: list[ClozelineError]) -> Iterator[None]:
    """Add an error to `errors` instead of raising it."""
    try:
        yield
    except ClozelineError as error:
        errors.append(error)
