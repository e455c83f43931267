"""The verdict of the gates on each package."""

from collections.abc import Iterable
from functools import partial

from markupsafe import Markup

from clozeline.errors import ArtifactError
from clozeline.registry.gates import Gate
from clozeline.registry.history import Released
from clozeline.reporting.metric_tables import in_words
from clozeline.reporting.numbers import amount
from clozeline.reporting.run import Part, Run
from clozeline.reporting.templates import html, joined, verdict


def parts(run: Run) -> Iterable[Part]:
    return [partial(_package, run, package) for package in run.packages]


def require_released(run: Run, package: str) -> Released:
    """Return the release of a package; raises ArtifactError if it was never released."""
    released = run.released(package)
    if released is None:
        raise ArtifactError(
            f"dist/{package} is not released: no version in the registry has its files", do="run `clozeline release`"
        )
    return released


def badge(released: Released) -> Markup:
    """Return the outcome of the release as a badge."""
    outcome = released.decision.outcome if released.decision else "registered, without a decision"
    return html("message", kind=f"badge {'good' if outcome == 'promoted' else 'bad'}", text=outcome)


def state(released: Released) -> str:
    """Return the version, its aliases and its served precision in words."""
    aliases = f", now {', '.join(released.aliases)}" if released.aliases else ", now without an alias"
    served = f", serves {released.version.served}" if released.version.served else ""
    return f"{released.version}{aliases}{served}."


def _package(run: Run, package: str) -> Markup:
    released = require_released(run, package)
    decision = released.decision
    heading = html("heading", words="", name=f"dist/{package}", badge=badge(released))
    about = html("paragraph", text=f"{state(released)} {decision.reason if decision else ''}")
    if not decision or not decision.gates:
        return heading + about
    before = decision.champion_before
    champion = f"champion before: version {before}" if before else "no champion before"
    gates = html(
        "table",
        caption=f"Gates of {released.version}; {champion}",
        columns=("gate", ">given", "must be", ">limit", "verdict"),
        rows=[_row(gate) for gate in decision.gates],
    )
    return joined(heading, about, gates)


def _row(gate: Gate) -> tuple[object, ...]:
    badge = verdict(gate.is_passed, "passed" if gate.is_passed else "failed")
    return (in_words(gate.name), amount(gate.given), gate.must_be, amount(gate.limit), badge)
