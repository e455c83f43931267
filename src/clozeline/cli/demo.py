"""`clozeline demo`: a minute of pre-training, and its effect."""

import logging
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

import typer

from clozeline.cli.tables import show
from clozeline.params.reading import read_params
from clozeline.system.progress import ProgressBar

_STEPS = {"mlm": 600, "clm": 300}
"""About a minute on two cores; under clm every token is a target. Steps, not seconds, so that runs are reproducible."""
_ASKED = {"mlm": "it learns to predict hidden tokens", "clm": "it learns to predict the next token"}


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

    pretrain, num_steps = read_params(Path("params.yaml")).pretrain, steps or _STEPS[mode]
    logging.getLogger("clozeline.stages").setLevel(logging.WARNING)
    with TemporaryDirectory(prefix="clozeline-demo-") as name:
        folder, is_own = Path(name), lesson.has_tokens(Path())
        text = "this project's text" if is_own else "the docstrings of the standard library"
        typer.echo(f"Training a small encoder on {text}: {_ASKED[mode]}.")
        if not is_own:
            lesson.standard_library(folder)
        short_training = lesson.short(pretrain, mode, num_steps)
        with ProgressBar("train", num_steps) as bar:
            where = Path() if is_own else folder
            learned = lesson.teach(short_training, where, seed, folder / "lesson", [lesson.Watch(bar)])
    show(lesson.report(learned, mode), plain_if_piped=True)
