"""`clozeline sweep`: find better params by trials."""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from clozeline.cli import torchrun
from clozeline.cli.endings import ending_orderly
from clozeline.cli.project import sound_project_here

if TYPE_CHECKING:
    from rich.table import Table

    from clozeline.experiments.sweep import Sweep
    from clozeline.experiments.trial_log import TrialLog
    from clozeline.experiments.trials import TrialRecord
    from clozeline.experiments.winner import Outcome
    from clozeline.workspace import Workspace

_PARENT: Final = "CLOZELINE_SWEEP_RUN"
"""Environment variable with the name of the sweep's run in MLflow, for its further workers."""
_DIFF: Final = "reports/sweep.diff"


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel="Make a model")(sweep)


def sweep(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What to try, as in the example above.")],
    workers: Annotated[int, typer.Option(min=1, help="Trainings at once, also on a cluster; 1 is reproducible.")] = 1,
    write: Annotated[bool, typer.Option("--write", help="Write the winner's values into params.yaml.")] = False,
) -> None:
    """Try values of params.yaml, each trial chosen from the results of those before it, and show which won.

    FILE says what to try:

        metric: nats_per_byte
        trials: 20
        space:
          pretrain.optimizer.learning_rate: {low: 1.0e-3, high: 2.0e-2, log: true}
          pretrain.masking.mask_rate: {low: 0.1, high: 0.5}
          pretrain.schedule.decay: [linear, cosine]

    Other metrics are best_validation_loss_nats_per_token and best_validation_accuracy, and of a task, with keys
    finetune.TASK.…, validation_score. A range with `step: 8` has steps. `pruning: false` ends no trial early: otherwise
    one stops that is worse than half of the others at a validation pass. `seed: 1` gives other proposals. More trials,
    later, add to those that there are.

    Trial 1 is params.yaml as it is. Trials are chosen by validation data; the winner alone is measured on test data, at
    the end: an encoder on the holdout text beside trial 1, a task on its test part. The winner's change of params.yaml
    is reports/sweep.diff, for `git apply` or `--write`. A table shows every trial, and MLflow has its runs.

    A stopped sweep continues when it is called again. It needs the extra `sweep`.

    Examples:

    - `clozeline sweep sweep.yaml`
    - `clozeline sweep sweep.yaml --workers 2`
    - `clozeline sweep sweep.yaml --write`
    """
    torchrun.refuse_for("sweep")
    # See stage.py: set before torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    workspace = sound_project_here()
    import optuna  # noqa: F401  # a missing extra is refused before anything runs

    from clozeline.experiments.plan import read_plan
    from clozeline.experiments.shared_text import shared_corpus
    from clozeline.experiments.sweep import Sweep, run_trials

    plan, config = read_plan(file, workspace.root)
    for told in ("pretraining", "stages"):  # one line for each trial is enough
        logging.getLogger(f"clozeline.{told}").setLevel(logging.WARNING)
    with ending_orderly():
        corpus = shared_corpus(workspace, with_encoder=plan.task is not None)
        found = Sweep(plan, config, corpus, workspace.experiments)
        if (parent := os.environ.get(_PARENT)) is not None:
            run_trials(found, _log(found, parent), joins=True)
            return
        with _in_mlflow(workspace, found) as log:
            with _further_workers(file, workers - 1, log.parent):
                run_trials(found, log)
            run_trials(found, log)  # those of a worker that was killed
            _end(workspace, found, write=write)


def _log(found: "Sweep", parent: str) -> "TrialLog":
    from clozeline.experiments.trial_log import TrialLog, outbox_in

    return TrialLog(outbox_in(found.folder), parent, found.folder.name, found.plan.metric)


@contextmanager
def _in_mlflow(workspace: "Workspace", found: "Sweep") -> "Iterator[TrialLog]":
    """Open the run of the sweep in MLflow, and close it however the block ends."""
    from clozeline.experiments.trial_log import outbox_in
    from clozeline.tracking.flow_run import FlowRun
    from clozeline.tracking.mlflow_messages import WORKSPACE
    from clozeline.workspace import tracking_uri

    name = f"sweep of {found.plan.stage if found.plan.task is None else found.plan.task}"
    tags = {WORKSPACE: found.folder.name}
    run = FlowRun.open(outbox_in(found.folder).folder, tracking_uri(workspace), name, tags)
    try:
        yield _log(found, run.run)
    except BaseException:
        run.end("KILLED", tags={}, metrics={}, files=[])
        raise
    run.end("FINISHED", tags={}, metrics={}, files=[workspace.root / _DIFF])


@contextmanager
def _further_workers(file: Path, count: int, parent: str) -> Iterator[None]:
    """Run trials in `count` more processes too; wait for them, or end them if the block fails."""
    command = [sys.executable, "-m", "clozeline", "sweep", str(file)]
    running = [subprocess.Popen(command, env={**os.environ, _PARENT: parent}) for _ in range(count)]
    try:
        yield
        for process in running:
            process.wait()
    finally:
        for process in running:
            process.terminate()
            process.wait()


def _end(workspace: "Workspace", found: "Sweep", *, write: bool) -> None:
    """Measure the winner, write the diff, show every trial, and say what to type next."""
    from rich.console import Console

    from clozeline.api.editing import edit
    from clozeline.experiments.winner import diff_of, outcome_of
    from clozeline.storage.atomic import replacing_file

    winner, outcome = outcome_of(found)
    diff = diff_of(workspace.root, winner.values) if winner.number else ""
    (workspace.root / _DIFF).parent.mkdir(exist_ok=True)
    with replacing_file(workspace.root / _DIFF) as beside:
        beside.write_text(diff, encoding="utf-8")
    Console().print(_table(found, winner))
    for line in _summary(found, winner, outcome):
        typer.echo(line)
    typer.echo(f"charts of the trials: `optuna-dashboard sqlite:///{os.path.relpath(found.trials.file)}`")
    if write and diff:
        for line in edit(workspace.root / "params.yaml", list(winner.values.items()), "the winner of the sweep"):
            typer.echo(f"params.yaml: {line}")
        typer.echo("next: `clozeline run`")
    elif diff:
        typer.echo(f"next: `git apply {_DIFF}`, or the same command with --write")
        if found.plan.task is None:
            words = " ".join(f"{key}={value}" for key, value in winner.values.items())
            typer.echo(f"does it hold for other seeds, too? `clozeline ablate params.yaml '{words}'`")
    else:
        typer.echo("next: params.yaml has the values of the winner: `clozeline run`")


def _table(found: "Sweep", winner: "TrialRecord") -> "Table":
    """Return every trial, with its values and what came of it; the winner is bold."""
    from rich.markup import escape

    from clozeline.cli.tables import table_of

    table = table_of("Trials", ">trial", f">{found.plan.metric}", "state", *(escape(key) for key in found.plan.space))
    for trial in found.trials.read():
        figure = "" if trial.value is None else f"{trial.value:.4f}"
        values = (f"{value:.4g}" if isinstance(value, float) else str(value) for value in trial.values.values())
        state = f"{trial.state}: {trial.reason}" if trial.reason else trial.state
        style = "bold" if trial.number == winner.number else None
        table.add_row(str(trial.number + 1), figure, *map(escape, (state, *values)), style=style)
    return table


def _summary(found: "Sweep", winner: "TrialRecord", outcome: "Outcome") -> Iterator[str]:
    trials = found.trials.read()
    counts = {state: sum(trial.state == state for trial in trials) for state in ("finished", "pruned", "failed")}
    yield f"{len(trials)} trials: {', '.join(f'{count} {state}' for state, count in counts.items() if count)}"
    values = ", ".join(f"{key}={value}" for key, value in winner.values.items())
    yield f"winner: trial {winner.number + 1}, {found.plan.metric} {winner.value:.4f} ({values});"
    first = trials[0].figure
    yield f"  params.yaml as it is: {'no figure' if first is None else f'{first:.4f}'}"
    if shares := found.trials.importances():
        told = ", ".join(f"{key} {share:.0%}" for key, share in shares.items())
        yield f"differences between trials come from: {told} (PED-ANOVA; few trials tell it roughly)"
    if (tested := outcome.tested) is not None:
        beside = f"{tested.other} {tested.other_value:.4f}"
        interval, chance = f"95 %: {tested.low:.4f} to {tested.high:.4f}", ""
        if tested.p_value is not None:
            interval = f"difference, 95 %: {tested.low:+.4f} to {tested.high:+.4f}"
            chance = f", p = {tested.p_value:.4f}"
        yield f"on {tested.data}: {tested.figure} {tested.value:.4f}, {beside} ({interval}{chance})"
        if outcome.num_uses > 1:
            yield f"  this sweep has used these test data {outcome.num_uses} times, once for each of its winners"
