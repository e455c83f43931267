"""The chapter on lineage: the stages with their hashes, the chain back to the raw text, and the params."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from markupsafe import Markup

from clozeline.artifacts.lock import LockedStage, leaves
from clozeline.lineage.trace import Ancestor, ancestry
from clozeline.params.reading import read_tree
from clozeline.reporting.numbers import seconds
from clozeline.reporting.run import Part, Run
from clozeline.reporting.templates import code, html, joined

_SHOWN = ("metrics/", "plots/")


def parts(run: Run) -> Iterable[Part]:
    ways = [partial(_way, run, package) for package in run.packages]
    return [partial(_identity, run), partial(_agreement, run), partial(_stages, run), *ways, partial(_knobs, run)]


def _identity(run: Run) -> Markup:
    facts: list[tuple[object, object]] = [("dvc.lock, md5", code(run.files.md5("dvc.lock")))]
    past = run.past()
    commit = code(past.commit) if past.commit else "unknown: outside a git checkout, or of another run"
    if past.commit and past.is_dirty:
        commit = joined(commit, ", with uncommitted changes")
    tracked = code(past.run_id) if past.run_id else "none with this dvc.lock"
    return html("facts", pairs=[*facts, ("git commit", commit), ("MLflow run", tracked)])


def _agreement(run: Run) -> Markup:
    """Tell whether the figures on the page match dvc.lock, and the params of dvc.lock match params.yaml."""
    lock = run.files.lock()
    locked = [out for stage in lock.stages.values() for out in stage.outs if out.path.startswith(_SHOWN)]
    there = [out for out in locked if (run.files.root / out.path).is_file()]
    differing = [out.path for out in there if run.files.md5(out.path) != out.md5]
    faults = [f"{path} differs from its hash in dvc.lock" for path in differing]
    faults += [f"{knob} in params.yaml has changed since the stages ran" for knob in _changed_knobs(run)]
    if not faults:
        message = f"✓ All {len(there)} metric and plot files match dvc.lock, and so does params.yaml."
        return html("message", tag="p", kind="good", text=message)
    return html("faults", faults=faults)


def _changed_knobs(run: Run) -> list[str]:
    now = {key: str(value) for key, value in leaves(_params(run))}
    ran = {key: value for stage in run.files.lock().stages.values() for key, value in stage.flat_params().items()}
    return sorted(key for key, value in ran.items() if now.get(key) != value)


def _params(run: Run) -> dict[str, Any]:
    tree: dict[str, Any] = read_tree(run.files.root / "params.yaml")
    return tree


def _stages(run: Run) -> Markup:
    past = run.past().stages
    rows = []
    for name, stage in run.files.lock().stages.items():
        made = past.get(name)
        when = f"{made.ended:%Y-%m-%d %H:%M} UTC" if made else "elsewhere, or before MLflow's records"
        rows.append((code(name), when, seconds(made.seconds) if made else "–", code(stage.sha256[:16])))
    columns = ("stage", "executed", ">took", "sha256 of its inputs and outputs")
    caption = "Stages, and when each last ran; since then its outputs were restored from the cache"
    return html("table", caption=caption, columns=columns, rows=rows)


def _way(run: Run, package: str) -> Markup:
    origin = ancestry(run.files.lock(), f"dist/{package}")
    tree = html("message", tag="ul", kind="tree", text=_ancestor(origin, set()))
    return html("folded", summary=f"From dist/{package} back to the raw text", body=tree)


def _ancestor(ancestor: Ancestor, listed: set[str]) -> Markup:
    is_listed = ancestor.path in listed
    listed.add(ancestor.path)
    parents = () if is_listed else (_ancestor(parent, listed) for parent in ancestor.parents)
    return html("ancestor", ancestor=ancestor, is_listed=is_listed, parents=joined(*parents))


def _knobs(run: Run) -> Markup:
    stages = run.files.lock().stages
    tables = joined(*(_knobs_of(name, stage) for name, stage in stages.items() if stage.params))
    return html("folded", summary="Params of every stage", body=tables)


def _knobs_of(name: str, stage: LockedStage) -> Markup:
    rows = [(code(key), value) for key, value in stage.flat_params().items()]
    return html("table", caption=f"Params of {name}", columns=("knob", "value"), rows=rows)
