"""`clozeline glue`: the nine tasks of GLUE from the encoder, with their average."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clozeline.cli import torchrun
from clozeline.params.recipes import laid_over

if TYPE_CHECKING:
    from rich.table import Table

    from clozeline.glue.figures import Average, Figures, TaskFigures
    from clozeline.tasks.intervals import Range

_WORDS = {"f1": "F1", "matthews": "Matthews", "pearson": "Pearson", "spearman": "Spearman"}


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel="Use a model")(glue)


def glue(
    data: Annotated[Path, typer.Argument(metavar="FOLDER", help="Your copy of GLUE: a folder for each task.")],
    model: Annotated[
        str, typer.Option("--model", "-m", help="The encoder: a folder, or a name on the hub.")
    ] = "models/encoder",
    tasks: Annotated[
        str | None, typer.Option(metavar="NAME,NAME", help="Tasks to do. [default: all that are in FOLDER]")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each task, with seeds from `seed` upwards.")] = 1,
    limit: Annotated[
        int | None, typer.Option(min=10, help="Use at most this many rows of each part: a trial, not a GLUE figure.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A knob of all tasks, as under `finetune`: `epochs=5`."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for converted data, checkpoints and results.")] = Path("work/glue"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the JSON object instead of a table.")] = False,
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
    """
    torchrun.refuse_for("glue")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # see stage.py: set before torch is loaded
    from clozeline.glue.running import run
    from clozeline.glue.tasks import chosen
    from clozeline.glue.training import GlueRun

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
    _show(figures, file, as_json=as_json)


def _show(figures: "Figures", file: Path, *, as_json: bool) -> None:
    from rich.console import Console

    if as_json:
        typer.echo(figures.model_dump_json())
        return
    console = Console()
    console.print(_table(figures))
    for line in _lines(figures):
        console.print(line, soft_wrap=True, highlight=False)
    console.print(f"All figures: {file}", soft_wrap=True, highlight=False)


def _knobs(settings: list[str]) -> dict[str, Any]:
    from clozeline.api.editing import assignments

    knobs: dict[str, Any] = {}
    for key, value in assignments(settings):
        for part in reversed(key.split(".")):
            value = {part: value}
        knobs = laid_over(knobs, value)
    return knobs


def _table(figures: "Figures") -> "Table":
    from clozeline.cli.tables import table_of

    rows = "all rows" if figures.limit is None else f"at most {figures.limit:,} rows of each part"
    title = f"GLUE, dev parts; {figures.model}; {len(figures.seeds)} seed(s); {rows}"
    columns = ("task", "metrics", ">score", ">95 % over seeds", ">95 % over rows", ">trained on", ">rows")
    return table_of(title, *columns, rows=map(_row, figures.tasks))


def _row(task: "TaskFigures") -> tuple[str, ...]:
    metrics = ", ".join(f"{_in_words(name)} {100 * value:.1f}" for name, value in task.metrics.items())
    intervals = (_range(task.over_seeds), _range(task.over_rows))
    return (task.title, metrics, f"{100 * task.score:.1f}", *intervals, f"{task.num_train:,}", f"{task.num_dev:,}")


def _lines(figures: "Figures") -> list[str]:
    from clozeline.glue.running import missing_titles

    if figures.average is not None:
        lines = [_average("GLUE average of eight tasks, without WNLI", figures.average)]
        with_wnli = figures.average_with_wnli
        return lines if with_wnli is None else [*lines, _average("with WNLI, as on the leaderboard", with_wnli)]
    lines = []
    if figures.missing:
        lines.append(f"No GLUE average: {', '.join(missing_titles(figures))} missing.")
    elif figures.limit is not None:
        lines.append("No GLUE average: --limit leaves rows out.")
    if (mean := figures.mean_of_measured) is not None:
        lines.append(_average(f"Mean of these {len(mean.tasks)} tasks ({', '.join(mean.tasks)})", mean))
    return lines


def _average(name: str, average: "Average") -> str:
    over_seeds = "" if average.over_seeds is None else f" over seeds {_range(average.over_seeds)},"
    return f"{name}: {100 * average.score:.1f} (95 %:{over_seeds} over rows {_range(average.over_rows)})"


def _in_words(name: str) -> str:
    *part, metric = name.split(" ")
    return " ".join([*(one.removeprefix("dev_") for one in part), _WORDS.get(metric, metric)])


def _range(found: "Range | None") -> str:
    return "-" if found is None else f"{100 * found.low:.1f} to {100 * found.high:.1f}"
