"""What the verbs share that ask an exported model: their options, how it is opened, and texts on standard input."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from clozeline.errors import DataError, ParamsError

if TYPE_CHECKING:
    from clozeline.artifacts.manifest import Task
    from clozeline.inference.open_model import OpenModel

PANEL = "Use a model"
_CHUNK_TEXTS = 1024
"""Texts of standard input that are answered before the next ones are read."""

TextsArgument = Annotated[
    list[str], typer.Argument(metavar="TEXT...", help="Texts; `-` reads them from standard input, one on each line.")
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="A folder of dist/, or a registry URI (models:/NAME@ALIAS). [default: the first of dist/ that can]",
        show_default=False,
    ),
]
PrecisionOption = Annotated[
    Literal["int8", "fp32"] | None,
    typer.Option(
        help="Which of the model's two graphs answers. [default: int8, unless fp32 was found better]",
        show_default=False,
    ),
]
TruncateOption = Annotated[
    bool, typer.Option("--truncate", help="Cut a text that is too long at its end, instead of refusing it.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object for each text, on a line of its own.")]
_VERBS = (
    "fill, embed and choose ask encoders, classify classifiers, tag taggers, answer those that answer questions; "
    "choose asks classifiers of entailment too"
)


def opened(place: str | None, tasks: "tuple[Task, ...]", precision: Literal["int8", "fp32"] | None) -> "OpenModel":
    """The model at `place`, which is of one of `tasks`; without a place, one of the first of them.

    Raises:
        ParamsError: the model is of another task, or there are several without a place.
        ArtifactError: there is no such model, or it is damaged.
    """
    from clozeline.inference.package import load
    from clozeline.serving.models.sources import ModelSource, default_for, fetched

    source = ModelSource.parse(place) if place else default_for(tasks[0])
    found = fetched(source)
    model = load(found.folder, precision=precision or found.served)
    if model.manifest.task not in tasks:
        raise ParamsError(
            f"{source.place} does something else",
            given=f"a model of the task {model.manifest.task}",
            expected=f"a model of the task {' or '.join(tasks)}",
            do=f"choose another --model, or another verb: {_VERBS}",
        )
    return model


def chunks(texts: list[str]) -> Iterator[list[str]]:
    """The texts as they were given; those of standard input in parts, as they come.

    Raises:
        DataError: a line of standard input is not UTF-8.
    """
    if texts != ["-"]:
        yield texts
        return
    chunk: list[str] = []
    for number, line in enumerate(sys.stdin.buffer, start=1):
        text = decoded(line, f"line {number} of standard input").strip()
        if text:
            chunk.append(text)
        if len(chunk) == _CHUNK_TEXTS:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def decoded(raw: bytes, place: str) -> str:
    """`raw` as text.

    Raises:
        DataError: it is not UTF-8, said of `place`.
    """
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{place} is not UTF-8",
            given=repr(raw[max(error.start - 10, 0) : error.end + 10]),
            expected="text in UTF-8",
            do="convert it first, as with `iconv -f LATIN1 -t UTF-8`",
        ) from error
