"""`clozeline ablate`, `sweep`, `glue` and `demo`: experiments with params.yaml and with the encoder.

`ablate` tells whether a change of params.yaml is better and what it costs, `sweep` finds better params by trials, and
`glue` runs the nine tasks of GLUE from the encoder, with their average. `demo` is a minute of pre-training.
"""

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from clozeline.cli import stage, tables, verbs
from clozeline.cluster.store import reachable_cluster
from clozeline.params.editing import assignments, edit
from clozeline.params.pretraining import laid_over
from clozeline.params.reading import read_params
from clozeline.records.finetune.statistics import Interval
from clozeline.system import files, progress
from clozeline.system.workspace import Workspace, run_lock

if TYPE_CHECKING:
    from clozeline.lab.ablation import Ablation, Effect
    from clozeline.lab.contest import PairedTest
    from clozeline.lab.experiment import Corpus
    from clozeline.lab.glue import Average, GlueFigures
    from clozeline.lab.sweep import Outcome, Sweep
    from clozeline.lab.trials import TrialRecord


# Environment variable with the name of the sweep's run in MLflow, for its further workers.
_PARENT = "CLOZELINE_SWEEP_RUN"
_DIFF = "reports/sweep.diff"
_WORDS = {"f1": "F1", "matthews": "Matthews", "pearson": "Pearson", "spearman": "Spearman"}
# About a minute on two cores; under clm every token is a target. Steps, not seconds, so that runs are reproducible.
_DEMO_STEPS = {"mlm": 600, "clm": 300}
_ASKED = {"mlm": "it learns to predict hidden tokens", "clm": "it learns to predict the next token"}


def ablate(
    first: Annotated[str, typer.Argument(metavar="A")],
    second: Annotated[str, typer.Argument(metavar="B")],
    seeds: Annotated[int, typer.Option(min=2)] = 5,
    as_json: tables.JsonOption = False,
) -> None:
    """Train two versions of params.yaml from the same seeds, and say whether their difference is more than chance.

    An arm is params.yaml with changes of `pretrain` or `tokenize`; `params.yaml` alone is the arm without changes. Both
    share the text, and the tokens unless they change them. The result is B minus A: nats per byte of the validation
    text (lower is better) and seconds of the training, wall clock and processor, each with its 95 % interval and
    p-value. params.yaml itself stays as it is.

    A finished training is kept in work/experiments and never runs twice: a stopped ablation continues, more seeds add
    to those that there are, and another arm reuses what it shares.

    Examples:

    - `clozeline ablate params.yaml pretrain.masking.mask_rate=0.3`
    - `clozeline ablate params.yaml 'pretrain.optimizer.learning_rate=2.0e-3 pretrain.steps=500' --seeds 8`
    - `clozeline ablate params.yaml configs/low-resource.yaml --json`

    Args:
        first: params.yaml, a file in configs/, or 'KEY=VALUE KEY=VALUE'.
        second: The other arm, written alike.
        seeds: Number of seeds, at least 2: one training cannot tell an effect from chance. Both arms train from each.
    """
    stage.refuse_for("ablate")
    workspace = verbs.sound_project_here()
    from clozeline.lab import ablation
    from clozeline.lab.experiment import arms_of

    _tell_little()
    arms = arms_of(first, second, workspace.root)
    base = read_params(workspace.root / "params.yaml")
    with verbs.ending_orderly():
        found = ablation.ablate(arms, seeds, shared_corpus(workspace), base, workspace.experiments)
    lines = (Text(line) for line in (_verdict(found), _next(found)))
    tables.show_or_json(found, [_ablation_table(found), *lines], as_json=as_json)


def _tell_little() -> None:
    """Leave one line for each training."""
    for told in ("pretraining", "stages"):
        logging.getLogger(f"clozeline.{told}").setLevel(logging.WARNING)


def shared_corpus(workspace: Workspace, *, with_encoder: bool = False) -> "Corpus":
    """Return the text and tokens of the project's params.yaml; stages that are out of date run first.

    `with_encoder`: also the encoder, for experiments that fine-tune it.

    Raises:
        ParamsError: `CLOZELINE_CLUSTER` names no cluster.
        TransientError: the cluster does not answer.
        ClozelineError: as the flow `pipeline`.
    """
    reachable_cluster()  # the flow would start each stage again and again, for minutes
    from clozeline.lab.experiment import held
    from clozeline.versions.graph import read_stage_graph

    last_stage = "pretrain" if with_encoder else "tokenize"
    if any(node.is_changed for node in read_stage_graph(workspace.root, only=last_stage)):
        from clozeline.flows.pipeline import pipeline
        from clozeline.orchestration.servers import ensure_prefect_server

        ensure_prefect_server(workspace)
        pipeline(workspace.root, only=last_stage)
    with run_lock(workspace.lock_file):
        return held(workspace.root, workspace.experiments, with_encoder=with_encoder)


def _ablation_table(found: "Ablation") -> Table:
    title = f"A: {escape(found.first)}\nB: {escape(found.second)}\n{len(found.seeds)} seeds from {found.seeds[0]} on;"
    title += f" {found.num_documents:,} validation documents"
    rows = (
        ("nats per byte", *_of_effect(found.nats_per_byte, 4)),
        ("  over documents", "", "", *_cells(found.over_documents, 4)),
        ("wall seconds", *_of_effect(found.wall_seconds, 1)),
        ("CPU seconds", *_of_effect(found.cpu_seconds, 1)),
    )
    return tables.table_of(title, "", ">A", ">B", ">B - A", ">95 %", ">p", rows=rows)


def _of_effect(effect: "Effect", digits: int) -> tuple[str, ...]:
    return f"{effect.first:.{digits}f}", f"{effect.second:.{digits}f}", *_cells(effect.over_seeds, digits)


def _cells(test: "PairedTest", digits: int) -> tuple[str, str, str]:
    difference, low, high = (f"{figure:+.{digits}f}" for figure in (test.difference, test.low, test.high))
    return difference, f"{low} to {high}", f"{test.p_value:.4f}"


def _verdict(found: "Ablation") -> str:
    """Return the outcome in one line: which arm is better, and which is slower."""
    better, difference = found.better, found.nats_per_byte.over_seeds.difference
    if better is None:
        text = f"no difference beyond chance in nats per byte (p = {found.p_value:.4f})"
    else:
        arm = "B" if difference < 0 else "A"
        text = f"{arm} is better by {abs(difference):.4f} nats per byte (p = {found.p_value:.4f})"
    wall = found.wall_seconds
    if not wall.over_seeds.is_significant:
        return f"{text}; neither is slower beyond chance"
    slower = "B" if wall.over_seeds.difference > 0 else "A"
    share = max(wall.first, wall.second) / min(wall.first, wall.second)
    return f"{text}; {slower} trains {100 * (share - 1):.0f} % longer"


def _next(found: "Ablation") -> str:
    """Return what to type next."""
    if found.better is None:
        more = 2 * len(found.seeds)
        return f"next: more seeds show smaller differences, and these are kept: the same command with --seeds {more}"
    if found.better == "params.yaml":
        return "next: params.yaml is the better arm as it is: `clozeline run`"
    words = (f"--set {word!r}" if "=" in word else f"--config {word}" for word in found.better.split())
    return f"next: train and release the better arm: `clozeline run {' '.join(words)}`"


def sweep(
    file: Annotated[Path, typer.Argument(metavar="FILE")],
    workers: Annotated[int, typer.Option(min=1)] = 1,
    write: Annotated[bool, typer.Option("--write")] = False,
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

    Args:
        file: What to try, as in the example above.
        workers: Trainings at once, also on a cluster; 1 is reproducible.
        write: Write the winner's values into params.yaml.
    """
    stage.refuse_for("sweep")
    workspace = verbs.sound_project_here()
    import optuna  # noqa: F401  # a missing extra is refused before anything runs

    from clozeline.lab.plan import read_plan
    from clozeline.lab.sweep import Sweep, TrialLog, run_trials, tracked

    plan, config = read_plan(file, workspace.root)
    _tell_little()
    with verbs.ending_orderly():
        corpus = shared_corpus(workspace, with_encoder=plan.task is not None)
        found = Sweep(plan, config, corpus, workspace.experiments)
        if (parent := os.environ.get(_PARENT)) is not None:
            run_trials(found, TrialLog(found, parent), joins=True)
            return
        with tracked(found, workspace, [workspace.root / _DIFF]) as log:
            with _further_workers(file, workers - 1, log.parent):
                run_trials(found, log)
            run_trials(found, log)  # those of a worker that was killed
            _end(workspace, found, write=write)


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


def _end(workspace: Workspace, found: "Sweep", *, write: bool) -> None:
    """Measure the winner, write the diff, show every trial, and say what to type next."""
    from clozeline.lab.plan import diff_of
    from clozeline.lab.sweep import outcome_of

    winner, outcome = outcome_of(found)
    diff = diff_of(workspace.root, winner.values) if winner.number else ""
    (workspace.root / _DIFF).parent.mkdir(exist_ok=True)
    with files.replacing_file(workspace.root / _DIFF) as beside:
        beside.write_text(diff, encoding="utf-8")
    charts = f"charts of the trials: `optuna-dashboard sqlite:///{os.path.relpath(found.trials.file)}`"
    tables.show([_table(found, winner), *map(Text, _summary(found, winner, outcome)), Text(charts)])
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


def _table(found: "Sweep", winner: "TrialRecord") -> Table:
    """Return every trial, with its values and what came of it; the winner is bold."""

    def cells(trial: "TrialRecord") -> Iterator[str]:
        figure = "" if trial.value is None else f"{trial.value:.4f}"
        values = (f"{value:.4g}" if isinstance(value, float) else str(value) for value in trial.values.values())
        state = f"{trial.state}: {trial.reason}" if trial.reason else trial.state
        of_winner = "[bold]" if trial.number == winner.number else ""
        return (of_winner + escape(cell) for cell in (str(trial.number + 1), figure, state, *values))

    columns = (">trial", f">{found.plan.metric}", "state", *map(escape, found.plan.space))
    return tables.table_of("Trials", *columns, rows=map(cells, found.trials.read()))


def _summary(found: "Sweep", winner: "TrialRecord", outcome: "Outcome") -> Iterator[str]:
    trials = found.trials.read()
    counts = {state: sum(trial.state == state for trial in trials) for state in ("finished", "pruned", "failed")}
    yield f"{len(trials)} trials: {', '.join(f'{count} {state}' for state, count in counts.items() if count)}"
    values = ", ".join(f"{key}={value}" for key, value in winner.values.items())
    yield f"winner: trial {winner.number + 1}, {found.plan.metric} {winner.value:.4f} ({values});"
    first = trials[0].value
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


def glue(
    data: Annotated[Path, typer.Argument(metavar="FOLDER")],
    model: Annotated[str, typer.Option("--model", "-m")] = "models/encoder",
    tasks: Annotated[str | None, typer.Option(metavar="NAME,NAME")] = None,
    seeds: Annotated[int, typer.Option(min=1)] = 1,
    limit: Annotated[int | None, typer.Option(min=10)] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE")] = None,
    out: Path = Path("work/glue"),
    as_json: tables.JsonOption = False,
) -> None:
    """Fine-tune the encoder for the nine tasks of GLUE, and print each score and the average.

    FOLDER holds CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE and WNLI with the official train.tsv and dev.tsv, or the
    folders cola, sst2, … with the Parquet files of nyu-mll/glue on the hub. Test labels are secret, so the dev parts
    are the test; a tenth of each training part selects the weights. STS-B is a regression on the pair.

    Each score is a mean over seeds, with 95 % intervals over seeds and over rows. A task with two metrics or parts
    counts with their mean. The average is that of eight tasks, without WNLI, whose dev part contradicts its training
    part; with WNLI it is shown apart. If a task is missing or --limit is set there is no average, and the missing tasks
    are named.

    Settings are those of params.yaml (`finetune_defaults`, `presets`), or ours outside a project; another model than
    models/encoder is trained with a learning rate of 5e-5 unless --set says otherwise. A finished task and seed is not
    done again: stop at any time, and repeat the command.

    Examples:

    - `clozeline glue data/glue --tasks cola,rte --limit 500`
    - `clozeline glue data/glue --seeds 3`
    - `clozeline glue data/glue -m sentence-transformers/all-MiniLM-L6-v2 --set epochs=3 --set batch_size=16`

    Args:
        data: Your copy of GLUE: a folder for each task.
        model: The encoder: a folder, or a name on the hub.
        tasks: Tasks to do. [default: all that are in FOLDER]
        seeds: Trainings of each task, with seeds from `seed` upwards.
        limit: Use at most this many rows of each part: a trial, not a GLUE figure.
        settings: A knob of all tasks, as under `finetune`: `epochs=5`.
        out: Folder for converted data, checkpoints and results.
    """
    stage.refuse_for("glue")
    from clozeline.lab.glue import GlueRun, run
    from clozeline.lab.glue_data import chosen

    request = GlueRun(
        data=data,
        model=model,
        tasks=chosen(tasks),
        is_each_needed=tasks is not None,
        num_seeds=seeds,
        limit=limit,
        knobs=_knobs(settings or []),
        work=out,
    )
    figures, file = run(request)
    tables.show_or_json(figures, [_glue_table(figures), *_lines(figures), f"All figures: {file}"], as_json=as_json)


def _knobs(settings: list[str]) -> dict[str, Any]:
    knobs: dict[str, Any] = {}
    for key, value in assignments(settings):
        for part in reversed(key.split(".")):
            value = {part: value}
        knobs = laid_over(knobs, value)
    return knobs


def _glue_table(figures: "GlueFigures") -> Table:
    used = "all rows" if figures.limit is None else f"at most {figures.limit:,} rows of each part"
    title = f"GLUE, dev parts; {figures.model}; {len(figures.seeds)} seed(s); {used}"
    columns = ("task", "metrics", ">score", ">95 % over seeds", ">95 % over rows", ">trained on", ">rows")
    rows = []
    for task in figures.tasks:
        named = [(name.removeprefix("dev_").split(" "), value) for name, value in task.metrics.items()]
        metrics = ", ".join(f"{' '.join(_WORDS.get(x, x) for x in name)} {100 * value:.1f}" for name, value in named)
        intervals = (_range(task.over_seeds), _range(task.over_rows))
        numbers = (f"{task.num_train:,}", f"{task.num_dev:,}")
        rows.append((task.title, metrics, f"{100 * task.score:.1f}", *intervals, *numbers))
    return tables.table_of(title, *columns, rows=rows)


def _lines(figures: "GlueFigures") -> list[str]:
    from clozeline.lab.glue_data import glue_tasks

    if figures.average is not None:
        lines = [_average("GLUE average of eight tasks, without WNLI", figures.average)]
        with_wnli = figures.average_with_wnli
        return lines if with_wnli is None else [*lines, _average("with WNLI, as on the leaderboard", with_wnli)]
    lines = []
    if figures.missing:
        titles = ", ".join(glue_tasks()[name].title for name in figures.missing)
        lines.append(f"No GLUE average: {titles} missing.")
    elif figures.limit is not None:
        lines.append("No GLUE average: --limit leaves rows out.")
    if (mean := figures.mean_of_measured) is not None:
        lines.append(_average(f"Mean of these {len(mean.tasks)} tasks ({', '.join(mean.tasks)})", mean))
    return lines


def _average(name: str, average: "Average") -> str:
    over_seeds = "" if average.over_seeds is None else f" over seeds {_range(average.over_seeds)},"
    return f"{name}: {100 * average.score:.1f} (95 %:{over_seeds} over rows {_range(average.over_rows)})"


def _range(found: Interval | None) -> str:
    return "-" if found is None else f"{100 * found.low:.1f} to {100 * found.high:.1f}"


def demo(
    mode: Literal["mlm", "clm"] = "mlm",
    steps: Annotated[int | None, typer.Option(min=10)] = None,
    seed: Annotated[int, typer.Option(min=0)] = 1,
) -> None:
    """Train a small encoder for about a minute, and show its answers before and after.

    It trains on this project's tokens if `clozeline run` has made them, else on the docstrings of the standard library.
    Nothing is kept.

    Examples:

    - `clozeline demo`
    - `clozeline demo --mode clm --steps 1000`

    Args:
        mode: Masked language modelling, or causal: the next token.
        steps: Optimizer steps. [default: about a minute on two cores: 600 for mlm, 300 for clm]
        seed: The same seed gives the same model.
    """
    from clozeline.cli import lesson

    pretrain, num_steps = read_params(Path("params.yaml")).pretrain, steps or _DEMO_STEPS[mode]
    logging.getLogger("clozeline.stages").setLevel(logging.WARNING)
    with TemporaryDirectory(prefix="clozeline-demo-") as name:
        folder, is_own = Path(name), lesson.has_tokens(Path())
        text = "this project's text" if is_own else "the docstrings of the standard library"
        typer.echo(f"Training a small encoder on {text}: {_ASKED[mode]}.")
        if not is_own:
            lesson.standard_library(folder)
        short_training = lesson.short(pretrain, mode, num_steps)
        with progress.ProgressBar("train", num_steps) as bar:
            work, bars = folder / "lesson", [lesson.BarOfTraining(bar)]
            learned = lesson.teach(short_training, Path() if is_own else folder, seed, work, bars)
    tables.show(lesson.report(learned, mode), plain_if_piped=True, wraps=True)
