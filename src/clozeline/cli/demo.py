"""`clozeline demo`: a minute of pre-training, and its effect."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from clozeline.cli.tables import table_of
from clozeline.params.reading import read_params
from clozeline.system.progress import ProgressBar

if TYPE_CHECKING:
    from clozeline.cli.lesson import Lesson
    from clozeline.pretraining.watching import ShownAnswer, ShownQuestion
    from clozeline.training.curves import CurvePoint
    from clozeline.training.state import Callback


_STEPS = {"mlm": 600, "clm": 300}
"""About a minute on two cores; under clm every token is a target. Steps, not seconds, so that runs are reproducible."""
_ASKED = {"mlm": "it learns to predict hidden tokens", "clm": "it learns to predict the next token"}


def demo(
    mode: Annotated[
        Literal["mlm", "clm"], typer.Option(help="Masked language modelling, or causal: the next token.")
    ] = "mlm",
    steps: Annotated[
        int | None,
        typer.Option(min=10, help="Optimizer steps. [default: about a minute on two cores: 600 for mlm, 300 for clm]"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same model.")] = 1,
) -> None:
    """Train a small encoder for about a minute, and show its answers before and after.

    It trains on this project's tokens if `clozeline run` has made them, else on the docstrings of the standard library.
    Nothing is kept.

    Examples:

    - `clozeline demo`
    - `clozeline demo --mode clm --steps 1000`
    """
    # See stage.py: set before torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from clozeline.cli import lesson
    from clozeline.cli.plan_tables import show

    params = read_params(Path("params.yaml"))
    num_steps = steps or _STEPS[mode]
    with TemporaryDirectory(prefix="clozeline-demo-") as name:
        folder = Path(name)
        own = lesson.PROJECTS_OWN
        text = "this project's text" if own.is_there else "the docstrings of the standard library"
        typer.echo(f"Training a small encoder on {text}: {_ASKED[mode]}.")
        logging.getLogger("clozeline.stages").setLevel(logging.WARNING)
        given = own if own.is_there else lesson.standard_library(params, folder)
        short_training = lesson.short(params.pretrain, mode, num_steps)
        with ProgressBar("train", num_steps) as bar:
            learned = lesson.teach(short_training, given, seed, folder / "work", [_watch(bar)])
    show(_report(learned, mode))


def _watch(bar: ProgressBar) -> "Callback":
    from clozeline.training.state import Callback

    class Watch(Callback):
        def on_point(self, point: "CurvePoint") -> None:
            bar.advance(point.step - bar.done, note=f"loss {point.loss:.2f}")

    return Watch()


def _report(learned: "Lesson", mode: str) -> Iterator[RenderableType]:
    yield Text()
    for question, *answers in zip(learned.questions, learned.before, learned.after, strict=True):
        yield Text(f"{question.text}   (right: {question.truth})")
        yield _answers(question, *answers)
        if mode == "clm":
            yield Text(f"continues before: {answers[0].continuation}")
            yield Text(f"continues after:  {answers[1].continuation}")
        yield Text()
    yield Text(
        f"{learned.num_parameters:,} parameters, trained on {learned.num_tokens:,} tokens. Validation loss in nats per"
        f" token: {learned.loss_before:.2f} before, {learned.loss_after:.2f} after;"
        f" {learned.unigram_entropy:.2f} from token frequencies alone."
    )


def _answers(question: "ShownQuestion", before: "ShownAnswer", after: "ShownAnswer") -> Table:
    table = table_of("", "before", ">", "after", ">")
    for guesses in zip(before.guesses, after.guesses, strict=True):
        cells = []
        for token, probability in guesses:
            mark = " ✓" if token == question.truth else ""
            cells += [f"{escape(token)}{mark}", f"{probability:.1%}"]
        table.add_row(*cells)
    return table
