"""`clozeline demo`: a minute of pre-training, and what it taught."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from clozeline.progress import ProgressBar

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from clozeline.artifacts.curves import CurvePoint
    from clozeline.demo.lesson import Lesson
    from clozeline.demo.questions import Answer, Question
    from clozeline.training.callbacks import Callback

_STEPS = {"mlm": 600, "clm": 300}
"""About a minute on two cores: under clm every token is a target. Steps, not seconds, so that it repeats."""
_ASKED = {"mlm": "masked: fill the hidden word", "clm": "causal: say what comes next"}


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel="Make a model")(demo)


def demo(
    mode: Annotated[
        Literal["mlm", "clm"], typer.Option(help="Masked language modelling, or causal: the next token.")
    ] = "mlm",
    steps: Annotated[
        int | None,
        typer.Option(min=10, help="Optimizer steps. [default: about a minute on two cores: 600 for mlm, 300 for clm]"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Another seed, another model; the same one, the same model.")] = 1,
) -> None:
    """Train a small encoder for about a minute, and show what it says before and after.

    On this project's tokens, if `clozeline run` has made them; else on the docstrings of the standard library. Nothing
    is kept.

    Examples:

    - `clozeline demo`
    - `clozeline demo --mode clm --steps 1000`
    """
    # See stage.py: set before torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from clozeline.cli.plan_tables import show
    from clozeline.demo import corpus, lesson
    from clozeline.params import read_params

    params = read_params(Path("params.yaml"))
    num_steps = steps or _STEPS[mode]
    with TemporaryDirectory(prefix="clozeline-demo-") as name:
        folder = Path(name)
        own = corpus.PROJECTS_OWN
        typer.echo(_beginning(mode, own.is_there))
        logging.getLogger("clozeline.stages").setLevel(logging.WARNING)
        given = own if own.is_there else corpus.standard_library(params, folder)
        short = lesson.short(params.pretrain, mode, num_steps)
        with ProgressBar("train", num_steps) as bar:
            learned = lesson.teach(short, given, seed, folder / "work", [_watch(bar)])
    show(_report(learned, mode))


def _beginning(mode: str, is_own: bool) -> str:
    text = "this project's text" if is_own else "the docstrings of the standard library"
    return f"Training a small encoder on {text}, {_ASKED[mode]}."


def _watch(bar: ProgressBar) -> "Callback":
    from clozeline.training.callbacks import Callback

    class Watch(Callback):
        def on_point(self, point: "CurvePoint") -> None:
            bar.advance(point.step - bar.done, note=f"loss {point.loss:.2f}")

    return Watch()


def _report(learned: "Lesson", mode: str) -> "Iterator[RenderableType]":
    from rich.text import Text

    yield Text()
    for question, *answers in zip(learned.questions, learned.before, learned.after, strict=True):
        yield Text(f"{question.text}   (it is: {question.truth})")
        yield _answers(question, *answers)
        if mode == "clm":
            yield Text(f"goes on before: {answers[0].continuation}")
            yield Text(f"goes on after:  {answers[1].continuation}")
        yield Text()
    yield Text(
        f"{learned.num_parameters:,} parameters read {learned.num_tokens:,} tokens. Loss on text that it has not read:"
        f" {learned.loss_before:.2f} before, {learned.loss_after:.2f} after, nats for each token;"
        f" knowing only how frequent tokens are: {learned.unigram_entropy:.2f}."
    )


def _answers(question: "Question", before: "Answer", after: "Answer") -> "Table":
    from rich.markup import escape
    from rich.table import Table

    table = Table()
    for name in ("before", "", "after", ""):
        table.add_column(name, justify="left" if name else "right")
    for guesses in zip(before.guesses, after.guesses, strict=True):
        cells = []
        for token, probability in guesses:
            mark = " ✓" if token == question.truth else ""
            cells += [f"{escape(token)}{mark}", f"{probability:.1%}"]
        table.add_row(*cells)
    return table
