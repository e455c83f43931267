"""The winner of a sweep: its figure on test data, which no trial has used, and its change of params.yaml."""

import difflib
import shutil
from collections.abc import Mapping
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from clozeline.lab import contest, plan
from clozeline.lab.contest import PairedTest
from clozeline.lab.sweep import EncoderTraining, Sweep, TaskTraining
from clozeline.lab.trials import TrialRecord
from clozeline.params.editing import edit
from clozeline.records import clean_text, record
from clozeline.stages.calling.api import PARAMS
from clozeline.system.errors import TrainingError

_MOST_TEXTS = 2000
_FILE = "outcome.json"


class FinalFigure(record.Record):
    """Figure of the winner on test data."""

    figure: str
    data: str
    value: float
    other: str  # what the figure is compared with: params.yaml as it is, or the baseline of the task
    other_value: float
    low: float
    high: float  # `low` and `high` are the ends of a 95 % interval: of the difference from `other`, or of `value`
    p_value: float | None = None  # of the difference; None: not tested


class Outcome(record.Record):
    """End of a sweep."""

    winner: int
    tested: FinalFigure | None  # None: params.yaml as it is won, or there are no test data
    num_uses: int  # how often this sweep has used the test data: once for each winner, as more trials may find another


def outcome_of(sweep: Sweep) -> tuple[TrialRecord, Outcome]:
    """Return the winner, and its figure on test data; measured only once.

    Raises:
        TrainingError: no trial has finished.
    """
    trials = sweep.trials.read()
    winner = sweep.best_of(trials)
    if winner is None:
        raise TrainingError(
            f"no trial of the sweep has a figure: {'; '.join(trial.reason or trial.state for trial in trials[:5])}",
            do="narrow the ranges in the sweep file, lower learning rates first, and call it again",
        )
    file = sweep.folder / _FILE
    known = Outcome.read(file) if file.is_file() else None
    if known is not None and known.winner == winner.number:
        return winner, known
    tested = _tested(sweep, winner, trials[0]) if winner.number else None
    uses = (known.num_uses if known else 0) + (tested is not None)
    outcome = Outcome(winner=winner.number, tested=tested, num_uses=uses)
    outcome.write(file)
    return winner, outcome


def diff_of(root: Path, values: Mapping[str, plan.Value]) -> str:
    """Return the change of the params.yaml in `root` to these values, for `git apply`; empty if it has them."""
    with TemporaryDirectory(prefix="clozeline-") as folder:
        copy = Path(folder) / PARAMS
        shutil.copyfile(root / PARAMS, copy)
        edit(copy, list(values.items()), "the winner of the sweep")
        before, after = ((place / PARAMS).read_text(encoding="utf-8").splitlines(True) for place in (root, copy.parent))
    lines = difflib.unified_diff(before, after, f"a/{PARAMS}", f"b/{PARAMS}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _tested(sweep: Sweep, winner: TrialRecord, base: TrialRecord) -> FinalFigure | None:
    ours, theirs = (sweep.training(trial.values) for trial in (winner, base))
    if isinstance(ours, TaskTraining):
        top = ours.tested().headline
        return FinalFigure(
            figure=top.metric,
            data=f"test part of {ours.task}",
            value=top.value,
            other=top.baseline,
            other_value=top.baseline_value,
            low=top.low,
            high=top.high,
        )
    assert isinstance(ours, EncoderTraining)
    assert isinstance(theirs, EncoderTraining)
    return _on_holdout(sweep, ours, theirs)


def _on_holdout(sweep: Sweep, ours: EncoderTraining, theirs: EncoderTraining) -> FinalFigure | None:
    holdout = sweep.corpus.clean / "holdout.parquet"
    if not clean_text.num_rows(holdout, clean_text.TEXT):
        return None
    with TemporaryDirectory(prefix="clozeline-") as folder:
        some = Path(folder) / "texts.parquet"
        num_texts = contest.keep(islice(chain.from_iterable(clean_text.texts_of(holdout)), _MOST_TEXTS), some)
        ours.experiment.run(keeps_weights=True)  # trains again if an ablation has removed the weights
        theirs.experiment.run(keeps_weights=True)
        first, second = ours.experiment.predicted(some), theirs.experiment.predicted(some)
    bytes_D = first.text_bytes_D.astype(np.float64)
    params = sweep.config.checked
    sampling = {"seed": params.seed, "num_samples": params.evaluate.num_bootstrap_samples}
    test = PairedTest.of(first.nats_D, second.nats_D, bytes_D, **sampling)
    value, other = (float(one.nats_D.sum() / bytes_D.sum()) for one in (first, second))
    return FinalFigure(
        figure="nats_per_byte",
        data=f"{num_texts:,} holdout texts",
        value=value,
        other="params.yaml",
        other_value=other,
        low=test.low,
        high=test.high,
        p_value=test.p_value,
    )
