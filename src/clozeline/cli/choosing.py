"""`clozeline choose`: labels without training (zero-shot classification)."""

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from clozeline.cli.asking import (
    PANEL,
    JsonOption,
    ModelOption,
    PrecisionOption,
    TextsArgument,
    TruncateOption,
    chunks,
    opened,
)
from clozeline.errors import ParamsError

if TYPE_CHECKING:
    from clozeline.inference.open_model import OpenModel


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel=PANEL)(choose)


def choose(
    texts: TextsArgument,
    labels: Annotated[
        str,
        typer.Option(
            "--labels",
            "-l",
            help="Labels to choose among, such as `list,file`. For an encoder, each word must be one token.",
        ),
    ],
    template: Annotated[
        str | None,
        typer.Option(help="The prompt, with {} where a label belongs. [default: This text is about {}.]"),
    ] = None,
    multi_label: Annotated[
        bool, typer.Option("--multi-label", help="Score each label independently; needs an entailment classifier.")
    ] = False,
    model: ModelOption = None,
    truncate: TruncateOption = False,
    precision: PrecisionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Choose among labels without training (zero-shot), by the word that fits into a prompt or by entailment.

    An encoder scores how well each label fills the prompt. An entailment classifier scores whether the prompt with the
    label follows from the text.

    Prints a table in a terminal; otherwise, tab-separated text, rank, label, probability.

    Examples:

    - `clozeline choose "Read all lines of it." --labels file,list,tuple`
    - `clozeline choose "Open it." -l file,list --template "It works on a {}."`
    - `clozeline choose - -l refund,delivery --multi-label --model dist/mnli < texts.txt`
    """
    from clozeline.choosing.zero_shot import TEMPLATE
    from clozeline.choosing.zero_shot import choose as chosen
    from clozeline.cli import text_answers

    candidates = _labels(labels)
    asked = _opened(model, precision, multi_label)
    show = text_answers.printer(as_json, text_answers.CLASSIFY)
    for chunk in chunks(texts):
        found = [
            chosen(asked, text, candidates, template=template or TEMPLATE, multi_label=multi_label, truncate=truncate)
            for text in chunk
        ]
        show(chunk, found)


def _labels(given: str) -> list[str]:
    labels = [label.strip() for label in given.split(",")]
    if not all(labels) or len(set(labels)) < len(labels):
        raise ParamsError(
            "--labels cannot be used",
            given=repr(given),
            expected="non-empty labels separated by commas, each once",
            do="write them like --labels list,file",
        )
    return labels


def _opened(place: str | None, precision: Literal["int8", "fp32"] | None, multi_label: bool) -> "OpenModel":
    """Open the encoder, or the model at `place`; a classifier of entailment has to be named."""
    from clozeline.choosing.zero_shot import can_choose, tells_entailment
    from clozeline.inference.classifier import Classifier
    from clozeline.inference.encoder import Encoder

    model: OpenModel = opened(place, precision, Encoder, Classifier)
    if not can_choose(model):
        raise ParamsError(
            f"{place or 'the encoder'} cannot choose among labels that it was not trained on",
            given=f"labels: {', '.join(model.manifest.labels) or 'none, and no mask'}",
            expected="an encoder that fills masks, or a classifier of pairs with a label `entailment`",
            do="choose another --model, or use `clozeline classify` for the labels that a classifier was trained on",
        )
    if multi_label and not tells_entailment(model):
        raise ParamsError(
            "an encoder cannot score labels independently: they compete for one mask",
            given="--multi-label",
            expected="a classifier that was trained on entailment",
            do="leave --multi-label out, or name an entailment classifier with --model",
        )
    return model
