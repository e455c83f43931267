"""`clozeline ablate`: is a change of params.yaml better, and what does it cost?"""

import logging
import os
from typing import TYPE_CHECKING, Annotated

import typer

from clozeline.cli import torchrun
from clozeline.cli.endings import ending_orderly
from clozeline.cli.project import sound_project_here

if TYPE_CHECKING:
    from rich.table import Table

    from clozeline.contest.comparison import PairedTest
    from clozeline.experiments.ablation import Ablation, Effect

_SIGNIFICANT = 0.05


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel="Make a model")(ablate)


def ablate(
    first: Annotated[
        str, typer.Argument(metavar="A", help="params.yaml, a file in configs/, or 'KEY=VALUE KEY=VALUE'.")
    ],
    second: Annotated[str, typer.Argument(metavar="B", help="The other arm, written alike.")],
    seeds: Annotated[int, typer.Option(help="Number of seeds, at least 2. Both arms train from each.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")] = False,
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
    """
    torchrun.refuse_for("ablate")
    # See stage.py: set before torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    workspace = sound_project_here()
    from clozeline.experiments.ablation import ablate as compare
    from clozeline.experiments.ablation import check_seeds
    from clozeline.experiments.arms import arms_of
    from clozeline.experiments.shared_text import shared_corpus
    from clozeline.params import read_params

    for told in ("pretraining", "stages"):  # one line for each training is enough
        logging.getLogger(f"clozeline.{told}").setLevel(logging.WARNING)
    check_seeds(seeds)
    arms = arms_of(first, second, workspace.root)
    base = read_params(workspace.root / "params.yaml")
    with ending_orderly():
        found = compare(arms, seeds, shared_corpus(workspace), base, workspace.experiments)
    _show(found, as_json=as_json)


def _show(found: "Ablation", *, as_json: bool) -> None:
    from pydantic_core import to_json
    from rich.console import Console

    if as_json:
        typer.echo(to_json(found, inf_nan_mode="null"))
        return
    console = Console()
    console.print(_table(found))
    for line in (_verdict(found), _next(found)):
        console.print(line, soft_wrap=True, markup=False, highlight=False)


def _table(found: "Ablation") -> "Table":
    from rich.markup import escape

    from clozeline.cli.tables import table_of

    title = f"A: {escape(found.first)}\nB: {escape(found.second)}\n{len(found.seeds)} seeds from {found.seeds[0]} on;"
    title += f" {found.num_documents:,} validation documents"
    rows = (
        ("nats per byte", *_means(found.nats_per_byte, 4), *_cells(found.nats_per_byte.over_seeds, 4)),
        ("  over documents", "", "", *_cells(found.over_documents, 4)),
        ("wall seconds", *_means(found.wall_seconds, 1), *_cells(found.wall_seconds.over_seeds, 1)),
        ("CPU seconds", *_means(found.cpu_seconds, 1), *_cells(found.cpu_seconds.over_seeds, 1)),
    )
    return table_of(title, "", ">A", ">B", ">B - A", ">95 %", ">p", rows=rows)


def _means(effect: "Effect", digits: int) -> tuple[str, str]:
    return f"{effect.first:.{digits}f}", f"{effect.second:.{digits}f}"


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
    if wall.over_seeds.p_value >= _SIGNIFICANT:
        return f"{text}; neither is slower beyond chance"
    slower, share = (
        ("B", wall.second / wall.first) if wall.over_seeds.difference > 0 else ("A", wall.first / wall.second)
    )
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
