"""Where everything is from: the stages and their hashes, the way back to the raw text, the knobs."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from markupsafe import Markup
from ruamel.yaml import YAML

from clozeline.artifacts.lock import LockedStage, leaves
from clozeline.lineage.trace import Ancestor, ancestry
from clozeline.reporting.elements import code, described, element, folded, joined, table
from clozeline.reporting.numbers import seconds
from clozeline.reporting.run import Part, Run

_SHOWN = ("metrics/", "plots/")


def parts(run: Run) -> Iterable[Part]:
    ways = [partial(_way, run, package) for package in run.packages]
    return [partial(_identity, run), partial(_agreement, run), partial(_stages, run), *ways, partial(_knobs, run)]


def _identity(run: Run) -> Markup:
    facts: list[tuple[object, object]] = [("dvc.lock, md5", code(run.files.md5("dvc.lock")))]
    past = run.past()
    commit = code(past.commit) if past.commit else "not made in a git checkout, or by another run"
    if past.commit and past.is_dirty:
        commit = joined([commit, ", with changes that were not committed"])
    return described(
        [*facts, ("git commit", commit), ("MLflow run", code(past.run_id) if past.run_id else "none of this dvc.lock")]
    )


def _agreement(run: Run) -> Markup:
    """Whether the figures on this page are those that dvc.lock names, and the knobs those of params.yaml."""
    lock = run.files.lock()
    locked = [out for stage in lock.stages.values() for out in stage.outs if out.path.startswith(_SHOWN)]
    there = [out for out in locked if (run.files.root / out.path).is_file()]
    differing = [out.path for out in there if run.files.md5(out.path) != out.md5]
    faults = [f"{path} is not the file that dvc.lock names" for path in differing]
    faults += [f"{knob} in params.yaml is no longer what the stages ran with" for knob in _changed_knobs(run)]
    if not faults:
        told = f"✓ All {len(there)} files of figures are those that dvc.lock names, and so are the knobs."
        return element("p", told, class_="good")
    heading = element("strong", "This page mixes states; to make them one, run `clozeline run`.")
    return element("aside", heading, _listed(faults), class_="notice")


def _changed_knobs(run: Run) -> list[str]:
    now = {key: str(value) for key, value in leaves(_params(run))}
    ran = {key: value for stage in run.files.lock().stages.values() for key, value in stage.flat_params().items()}
    return sorted(key for key, value in ran.items() if now.get(key) != value)


def _params(run: Run) -> dict[str, Any]:
    tree: dict[str, Any] = YAML(typ="safe").load((run.files.root / "params.yaml").read_text(encoding="utf-8"))
    return tree


def _listed(items: Iterable[object]) -> Markup:
    return element("ul", *(element("li", item) for item in items))


def _stages(run: Run) -> Markup:
    past = run.past().stages
    rows = []
    for name, stage in run.files.lock().stages.items():
        made = past.get(name)
        when = f"{made.ended:%Y-%m-%d %H:%M} UTC" if made else "elsewhere, or before MLflow's memory"
        rows.append((code(name), when, seconds(made.seconds) if made else "–", code(stage.sha256[:16])))
    columns = ("stage", "executed", ">took", "sha256 of all it read and made")
    return table("Stages: what is unchanged was made then, and restored since", columns, rows)


def _way(run: Run, package: str) -> Markup:
    origin = ancestry(run.files.lock(), f"dist/{package}")
    return folded(f"From dist/{package} back to the raw text", element("ul", _ancestor(origin, set()), class_="tree"))


def _ancestor(ancestor: Ancestor, told: set[str]) -> Markup:
    if ancestor.path in told:
        return element("li", code(ancestor.path), " (see above)")
    told.add(ancestor.path)
    made_by = f"made by {ancestor.stage}" if ancestor.stage else "a source"
    before = [_ancestor(parent, told) for parent in ancestor.parents]
    return element(
        "li", code(ancestor.path), f", {made_by}, md5 ", code(ancestor.md5), element("ul", *before) if before else None
    )


def _knobs(run: Run) -> Markup:
    stages = run.files.lock().stages
    return folded("Params of every stage", *(_knobs_of(name, stage) for name, stage in stages.items() if stage.params))


def _knobs_of(name: str, stage: LockedStage) -> Markup:
    rows = [(code(key), value) for key, value in stage.flat_params().items()]
    return table(f"Params that {name} ran with", ("knob", "value"), rows)
