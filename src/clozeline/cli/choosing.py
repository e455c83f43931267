"""`clozeline choose`: labels that nobody trained (zero-shot classification)."""

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
        str, typer.Option("--labels", "-l", help="What to choose among, as `list,file`; for an encoder of known words.")
    ],
    template: Annotated[
        str | None,
        typer.Option(help="The prompt, with {} where a label belongs. [default: This text is about {}.]"),
    ] = None,
    multi_label: Annotated[
        bool, typer.Option("--multi-label", help="Score each label for itself; only a model of entailment can.")
    ] = False,
    model: ModelOption = None,
    truncate: TruncateOption = False,
    precision: PrecisionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Choose among labels that nobody trained (zero-shot): by the word that fits into a prompt, or by entailment.

    An encoder says which label it would fill in; a classifier of pairs that was trained on entailment says whether the
    prompt with a label follows from the text.

    In a terminal: a table. Else: tab-separated text, rank, label, probability.

    Examples:

    - `clozeline choose "Read all lines of it." --labels file,list,tuple`
    - `clozeline choose "Open it." -l file,list --template "It works on a {}."`
    - `clozeline choose - -l refund,delivery --multi-label --model dist/mnli < texts.txt`
    """
    from clozeline.cli import answers
    from clozeline.inference.zero_shot import TEMPLATE
    from clozeline.inference.zero_shot import choose as chosen

    candidates = _labels(labels)
    asked = _opened(model, precision, multi_label)
    show = answers.printer(as_json, answers.CLASSIFY)
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
            expected="labels with commas between them, none of them empty, each once",
            do="write them as --labels list,file",
        )
    return labels


def _opened(place: str | None, precision: Literal["int8", "fp32"] | None, multi_label: bool) -> "OpenModel":
    """Without a place the encoder; a classifier of entailment is to be named."""
    from clozeline.inference.zero_shot import can_choose, tells_entailment

    model = opened(place, ("fill-mask", "text-classification"), precision)
    if not can_choose(model):
        raise ParamsError(
            f"{place or 'the encoder'} cannot choose among labels that it was not trained on",
            given=f"labels: {', '.join(model.manifest.labels) or 'none, and no mask'}",
            expected="an encoder that fills masks, or a classifier of pairs with a label `entailment`",
            do="choose another --model; `clozeline classify` asks a classifier for the labels that it has",
        )
    if multi_label and not tells_entailment(model):
        raise ParamsError(
            "the labels of an encoder compete for one blank",
            given="--multi-label",
            expected="a classifier that was trained on entailment",
            do="leave --multi-label out, or name such a model with --model",
        )
    return model
