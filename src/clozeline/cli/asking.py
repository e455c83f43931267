"""Shared parts of the commands that run an exported model: their options, loading the model, reading standard input."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from clozeline.errors import DataError, ParamsError

if TYPE_CHECKING:
    from clozeline.inference.open_model import OpenModel

Model = TypeVar("Model", bound="OpenModel")
PANEL = "Use a model"
_CHUNK_TEXTS = 1024
"""Number of texts of standard input that are answered before more are read."""

TextsArgument = Annotated[
    list[str], typer.Argument(metavar="TEXT...", help="Texts; `-` reads them from standard input, one per line.")
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="A folder of dist/, or a registry URI (models:/NAME@ALIAS). "
        "[default: the matching model of dist/, else of the registry]",
        show_default=False,
    ),
]
PrecisionOption = Annotated[
    Literal["int8", "fp32"] | None,
    typer.Option(
        help="Precision of the graph that answers. [default: int8, unless export or release chose fp32]",
        show_default=False,
    ),
]
TruncateOption = Annotated[
    bool, typer.Option("--truncate", help="Cut the end of a text that is too long, instead of refusing the text.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object per text, each on its own line.")]
_VERBS = (
    "fill takes masked encoders; complete causal ones; embed encoders and embedders; "
    "choose masked encoders and entailment classifiers; classify classifiers; tag taggers; "
    "answer question-answering models"
)


def opened(place: str | None, precision: Literal["int8", "fp32"] | None, *kinds: type[Model]) -> Model:
    """Open the model at `place`, which must be of one of `kinds`; without a place, the default model for the first of
    their tasks.

    Raises:
        ParamsError: the model is of another task, or there are several without a place.
        ArtifactError: the model is missing or damaged.
    """
    from clozeline.inference.model_kinds import MODEL_KINDS
    from clozeline.inference.package import load
    from clozeline.serving.models.sources import ModelSource, default_for, fetched

    tasks = [task for task, row in MODEL_KINDS.items() if issubclass(row.model, kinds)]
    source = ModelSource.parse(place) if place else default_for(tasks[0])
    found = fetched(source)
    model = load(found.folder, precision=precision or (found.version.served if found.version else None))
    if not isinstance(model, kinds):
        raise ParamsError(
            f"{source.place} is a model for another task",
            given=f"a model of the task {model.manifest.task}",
            expected=f"a model of the task {' or '.join(tasks)}",
            do=f"choose another --model or another command: {_VERBS}",
        )
    return model


def chunks(texts: list[str]) -> Iterator[list[str]]:
    """Yield the given texts, or those of standard input in chunks as they come.

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
    """Decode `raw` as text.

    Raises:
        DataError: `raw` is not UTF-8; the message names `place`.
    """
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{place} is not UTF-8",
            given=repr(raw[max(error.start - 10, 0) : error.end + 10]),
            expected="text in UTF-8",
            do="convert it first, for example with `iconv -f LATIN1 -t UTF-8`",
        ) from error
