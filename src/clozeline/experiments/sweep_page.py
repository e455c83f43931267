"""reports/sweep.html: what a sweep tried, what mattered, and what won."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from markupsafe import Markup

from clozeline.experiments.plan import Range, SweepPlan, ends_of
from clozeline.experiments.trials import TrialRecord
from clozeline.experiments.winner import Outcome
from clozeline.reporting.charts import Bar, bars
from clozeline.reporting.parallel import Axis, Line, parallel
from clozeline.reporting.templates import code, html, joined

_UNTESTED: Final = (
    "The test data were not used: either params.yaml as it was won, or there is no holdout text"
    " (`preprocess.holdout_fraction`)."
)


class _Chapter(NamedTuple):
    id: str
    title: str
    lead: str


_WINNER: Final = _Chapter("winner", "Winner", "Chosen by validation data alone.")
_CHARTS: Final = _Chapter("trials", "What was tried", "Each line is a trial: its values, and its figure below.")
_TABLE: Final = _Chapter("table", "Every trial", "A pruned trial was worse than half of the others at the same step.")


def sweep_page(
    plan: SweepPlan, trials: Sequence[TrialRecord], winner: TrialRecord, outcome: Outcome, diff: str, built_at: datetime
) -> str:
    """Return the page as HTML. `built_at` is in UTC."""
    chapters = [
        (_WINNER, joined(*_winner(plan, trials, winner, outcome, diff)), True),
        (_CHARTS, joined(_coordinates(plan, trials, winner), _importances(plan, trials)), True),
        (_TABLE, _table(plan, trials), True),
    ]
    title = f"Sweep of {plan.stage if plan.task is None else plan.task}"
    return f"{html('page', title=title, built_at=built_at, on_top='', chapters=chapters)}\n"


def _winner(
    plan: SweepPlan, trials: Sequence[TrialRecord], winner: TrialRecord, outcome: Outcome, diff: str
) -> list[Markup]:
    pairs = [
        (f"{plan.metric} of the winner, trial {winner.number + 1}", _number(winner.value)),
        (f"{plan.metric} of params.yaml as it was, trial 1", _number(trials[0].value)),
    ]
    if (tested := outcome.tested) is not None:
        pairs.append((f"{tested.figure}, {tested.data}", _number(tested.value)))
        pairs.append((f"{tested.figure} of {tested.other}", _number(tested.other_value)))
        interval = "of the difference" if tested.p_value is not None else "of the figure"
        pairs.append((f"95 % interval {interval}", f"{tested.low:.4f} to {tested.high:.4f}"))
        if tested.p_value is not None:
            pairs.append(("p-value of the difference", f"{tested.p_value:.4f}"))
        pairs.append(("times that this sweep used the test data", str(outcome.num_uses)))
    told = joined(html("facts", pairs=pairs), None if outcome.tested else html("paragraph", text=_UNTESTED))
    if not diff:
        return [told, html("paragraph", text="params.yaml has the values of the winner.")]
    change = html("paragraph", text="The change of params.yaml, which `git apply reports/sweep.diff` makes:")
    return [told, change, html("text_block", name="Change of params.yaml", text=diff)]


def _coordinates(plan: SweepPlan, trials: Sequence[TrialRecord], winner: TrialRecord) -> Markup:
    shown = [trial for trial in trials if trial.figure is not None]
    figures = [trial.figure for trial in shown if trial.figure is not None]
    axes = [_axis(key, plan) for key in plan.space]
    axes.append(Axis(plan.metric, min(figures), max(figures) if max(figures) > min(figures) else min(figures) + 1e-9))
    lines = [
        Line(
            f"trial {trial.number + 1}: {_number(trial.value)}",
            (*(_coordinate(trial, key) for key in plan.space), trial.value),
            is_best=trial.number == winner.number,
        )
        for trial in shown
    ]
    better = "left" if plan.direction == "minimize" else "right"
    note = f"Finished trials. On the last axis, {better} is better. A value outside the space is left out."
    return parallel("Values and figure of each trial", axes, lines, note=note)


def _axis(key: str, plan: SweepPlan) -> Axis:
    values = plan.space[key]
    if isinstance(values, Range):
        return Axis(key, float(values.low), float(values.high), values.log)
    return Axis(key, places=tuple(map(str, ends_of(values))))


def _coordinate(trial: TrialRecord, key: str) -> float | str | None:
    value = trial.values[key]
    return value if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _importances(plan: SweepPlan, trials: Sequence[TrialRecord]) -> Markup:
    from clozeline.experiments import proposals

    found = proposals.importances(plan, trials)
    if not found:
        return html("paragraph", text="The importance of each param needs four finished trials with different figures.")
    rows = [Bar(key, share, f"{share:.0%}") for key, share in found.items()]
    note = "Share of the differences between trials that each key explains (PED-ANOVA). Few trials tell it roughly."
    return bars("What mattered", rows, note=note, most=1.0)


def _table(plan: SweepPlan, trials: Sequence[TrialRecord]) -> Markup:
    columns = ("trial", f">{plan.metric}", "state", *plan.space)
    rows = [
        (
            str(trial.number + 1),
            _number(trial.value),
            f"{trial.state}: {trial.reason}" if trial.reason else trial.state,
            *(_shown(trial, key) for key in plan.space),
        )
        for trial in trials
    ]
    return html("table", caption="Trials", columns=columns, rows=rows)


def _shown(trial: TrialRecord, key: str) -> Markup:
    value = trial.values[key]
    return code(f"{value:.4g}" if isinstance(value, float) else value)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
