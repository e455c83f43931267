"""`clozeline status --page`: the same facts on one page, in the style of the report."""

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from clozeline.reporting.templates import html, joined, with_code

if TYPE_CHECKING:
    from markupsafe import Markup

    from clozeline.orchestration.project_status import ModelStatus, Problem, ProjectStatus, Remote
    from clozeline.orchestration.scheduled_runs import ScheduledRun

_TIME: Final = "%Y-%m-%d %H:%M UTC"
_GB: Final = 1e9


class _Chapter(NamedTuple):
    id: str
    title: str
    lead: str


MODELS: Final = _Chapter("models", "Models", "Which version of each model is live, since when, and why.")
RUNS: Final = _Chapter("runs", "Scheduled runs", "The last run of each deployment, and when the next one is due.")
MACHINE: Final = _Chapter("machine", "Disk and remote", "What is free here, and what other machines can restore.")


def status_page(found: "ProjectStatus", name: str, built_at: datetime) -> str:
    """Return the page about the project `name` as HTML. `built_at` is in UTC."""
    chapters = [
        (MODELS, joined(*_models(found)), True),
        (RUNS, joined(*_runs(found)), True),
        (MACHINE, joined(*_machine(found)), True),
    ]
    title, on_top = f"Status of {name}", joined(*map(_problem, found.problems))
    return f"{html('page', title=title, built_at=built_at, on_top=on_top, chapters=chapters)}\n"


def _models(found: "ProjectStatus") -> Iterator["Markup"]:
    if found.models:
        columns = ("model", "champion", "since", "candidate")
        rows = [_model(model) for model in found.models]
        yield html("table", caption="Registered models", columns=columns, rows=rows, kind="models")
    elif found.models is not None:
        yield html("paragraph", text="No model has been released: `clozeline run`, then `clozeline release`.")


def _model(model: "ModelStatus") -> tuple["str | Markup", ...]:
    candidate = f"version {model.candidate}: {model.outcome or 'not decided yet'}" if model.candidate else ""
    champion = f"version {model.champion}" if model.champion else "none"
    to_decide = "" if model.outcome else "`clozeline release`"
    return (
        html("code", text=model.name),
        html("cell", value=champion, beside=[with_code(line) for line in model.of_fleet]),
        html("cell", value=_time(model.since), beside=[f"by {model.who}" if model.who else "", model.why]),
        html("cell", value=candidate, beside=[with_code(model.reason or to_decide)] if candidate else []),
    )


def _runs(found: "ProjectStatus") -> Iterator["Markup"]:
    if found.runs:
        columns = ("run", "state", "started", "ended", "next")
        rows = [_run(run) for run in found.runs]
        yield html("table", caption="Deployments", columns=columns, rows=rows, kind="models")
    elif found.runs is not None:
        yield html("paragraph", text="Nothing is scheduled: `make deploy`.")


def _run(run: "ScheduledRun") -> tuple["str | Markup", ...]:
    kind = "bad" if run.do else "good" if run.state == "Completed" else "none"
    state = html("message", kind=f"badge {kind}", text=run.state or "has not run yet")
    told = [run.message, with_code(f"Next: {run.do}")] if run.do else []
    times = (_time(run.started), _time(run.ended), _time(run.next) or "not planned")
    return html("code", text=run.deployment), html("cell", value=state, beside=told), *times


def _machine(found: "ProjectStatus") -> Iterator["Markup"]:
    free = f"{found.disk.free_bytes / _GB:.1f} of {found.disk.total_bytes / _GB:.1f} GB"
    pairs = [("Free on the disk", free)]
    if not any(problem.about == "remote" for problem in found.problems):
        pairs.append(("Remote", _remote(found.remote)))
    yield html("facts", pairs=pairs)


def _remote(remote: "Remote | None") -> "Markup":
    if remote is None:
        return with_code("none: `clozeline remote add URL` shares data and results with other machines")
    missing = remote.num_missing
    return with_code(
        f"{remote.url} " + (f"lacks {missing:,} objects: `clozeline remote push`" if missing else "has everything")
    )


def _problem(problem: "Problem") -> "Markup":
    about = f"Unknown: {problem.about}. {problem.problem[:1].upper()}{problem.problem[1:]}"
    given = f" ({problem.given})" if problem.given else ""
    return html("paragraph", text=f"{about}{given}. Next: {problem.do}.")


def _time(time: datetime | None) -> str:
    return f"{time:{_TIME}}" if time else ""
