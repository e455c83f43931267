"""What to try next, what to stop, and what mattered: the one file that uses Optuna.

A study is made anew for each question from the records of the trials, with a seed of its own for each trial. So a sweep
proposes the same whether it was killed or not.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.importance import get_param_importances
from optuna.pruners import MedianPruner
from optuna.samplers import TPESampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from clozeline.experiments.plan import Dimension, Range, SweepPlan, Value
from clozeline.experiments.trials import TrialRecord

_STATES: Final = {
    "running": TrialState.RUNNING,
    "finished": TrialState.COMPLETE,
    "pruned": TrialState.PRUNED,
    "failed": TrialState.FAIL,
}
_LEAST_FOR_IMPORTANCES: Final = 4


def propose(plan: SweepPlan, trials: Sequence[TrialRecord], number: int) -> Mapping[str, Value]:
    """Return the values of trial `number`: tree-structured Parzen estimators (Bergstra et al. 2011)."""
    study = _study(plan, trials, TPESampler(seed=_seed(plan, number)))
    asked = study.ask(_space(plan)).params
    return {key: _readable(value, plan.space[key]) for key, value in asked.items()}


def is_hopeless(plan: SweepPlan, trials: Sequence[TrialRecord], running: TrialRecord) -> bool:
    """Return whether the best validation figure of `running` is worse than the median of the others at that step."""
    study = _study(plan, [trial for trial in trials if trial.number != running.number], None)
    return bool(MedianPruner().prune(study, _frozen(plan, running)))


def importances(plan: SweepPlan, trials: Sequence[TrialRecord]) -> Mapping[str, float]:
    """Return how much each key mattered, as shares of 1 (PED-ANOVA, Watanabe et al. 2023); empty: too few trials."""
    finished = [trial for trial in trials if trial.state == "finished"]
    values = {trial.value for trial in finished}
    if len(finished) < _LEAST_FOR_IMPORTANCES or len(values) < 2:
        return {}
    shares: dict[str, float] = get_param_importances(_study(plan, finished, None))
    return shares


def _study(plan: SweepPlan, trials: Sequence[TrialRecord], sampler: TPESampler | None) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction=plan.direction, sampler=sampler or TPESampler(seed=0))
    study.add_trials([frozen for trial in trials if (frozen := _inside(plan, trial)) is not None])
    return study


def _inside(plan: SweepPlan, trial: TrialRecord) -> FrozenTrial | None:
    """Return the trial for Optuna; None: its values are outside the space, as those of params.yaml may be."""
    try:
        return _frozen(plan, trial)
    except ValueError:
        return None


def _frozen(plan: SweepPlan, trial: TrialRecord) -> FrozenTrial:
    return create_trial(
        state=_STATES[trial.state],
        value=trial.value if trial.state == "finished" else None,
        params=dict(trial.values),
        distributions=_space(plan),
        intermediate_values=dict(trial.looks),
    )


def _space(plan: SweepPlan) -> dict[str, BaseDistribution]:
    return {key: _distribution(values) for key, values in plan.space.items()}


def _distribution(values: Dimension) -> BaseDistribution:
    if not isinstance(values, Range):
        return CategoricalDistribution(values)
    if values.is_whole:
        step = 1 if values.step is None else int(values.step)
        return IntDistribution(int(values.low), int(values.high), log=values.log, step=step)
    return FloatDistribution(values.low, values.high, log=values.log, step=values.step)


def _readable(value: Value, tried: Dimension) -> Value:
    """Return a number of a range with three digits, as a person writes it; it stays in the range."""
    if not isinstance(value, float) or not isinstance(tried, Range) or tried.step is not None:
        return value
    return min(max(float(f"{value:.3g}"), float(tried.low)), float(tried.high))


def _seed(plan: SweepPlan, number: int) -> int:
    return (plan.seed * 1_000_003 + number) % 2**32
