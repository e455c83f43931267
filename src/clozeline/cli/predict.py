"""`clozeline fill`, `embed` and `classify`: ask an exported model from the command line."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from clozeline.errors import DataError, ParamsError

if TYPE_CHECKING:
    from clozeline.inference.classifier import Classifier
    from clozeline.inference.embedder import Embedder
    from clozeline.inference.encoder import Encoder
    from clozeline.inference.manifest import Task
    from clozeline.inference.open_model import OpenModel

_PANEL = "Use a model"
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


def add_to(app: typer.Typer) -> None:
    for verb in (fill, embed, classify):
        app.command(rich_help_panel=_PANEL)(verb)


def fill(
    texts: TextsArgument,
    model: ModelOption = None,
    top_k: Annotated[int, typer.Option(min=1, help="Candidates for each mask.")] = 5,
    targets: Annotated[
        str | None, typer.Option(help="Only these words compete, as `list,tuple`; each has to be one token.")
    ] = None,
    truncate: TruncateOption = False,
    precision: PrecisionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fill each [MASK] of a text with the likeliest words.

    In a terminal: a table. Else: tab-separated text, mask (from 1), rank, token, probability, filled text.

    Examples:

    - `clozeline fill "Return the [MASK] of the list."`
    - `clozeline fill "[MASK] a file for [MASK]." --top-k 3`
    - `clozeline fill "Return a [MASK]." --targets list,tuple,dict`
    - `clozeline fill - < texts.txt > filled.tsv`
    """
    from clozeline.cli import answers

    encoder = _encoder(model, precision)
    mask_token = encoder.manifest.special_tokens.mask_token or "[MASK]"
    words = targets.split(",") if targets is not None else None
    show = answers.printer(as_json, answers.FILL)
    for chunk in _chunks(texts):
        masked = [text.replace("[MASK]", mask_token) for text in chunk]
        show(chunk, encoder.fill(masked, top_k=top_k, targets=words, truncate=truncate))


def embed(
    texts: TextsArgument,
    model: ModelOption = None,
    truncate: TruncateOption = False,
    precision: PrecisionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Turn each text into a vector of length 1; the cosine of two texts is the dot product of their vectors.

    In a terminal: how similar the texts are. Else: tab-separated text and numbers.

    Examples:

    - `clozeline embed "Sort a list in place." "Order the items of a sequence."`
    - `clozeline embed - --json < texts.txt > vectors.jsonl`
    """
    from clozeline.cli import answers

    embedder = _embedder(model, precision)
    show = answers.printer(as_json, answers.EMBED)
    for chunk in _chunks(texts):
        show(chunk, embedder.embed(chunk, truncate=truncate))


def classify(
    texts: TextsArgument,
    model: ModelOption = None,
    top_k: Annotated[int, typer.Option(min=1, help="Labels for each text.")] = 5,
    truncate: TruncateOption = False,
    precision: PrecisionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Label each text.

    In a terminal: a table. Else: tab-separated text, rank, label, probability.

    Examples:

    - `clozeline classify "Apply a 2D convolution over an input."`
    - `clozeline classify - --top-k 1 --model dist/library < texts.txt`
    """
    from clozeline.cli import answers

    classifier = _classifier(model, precision)
    show = answers.printer(as_json, answers.CLASSIFY)
    for chunk in _chunks(texts):
        show(chunk, classifier.classify(chunk, top_k=top_k, truncate=truncate))


def _encoder(place: str | None, precision: Literal["int8", "fp32"] | None) -> "Encoder":
    from clozeline.inference.encoder import Encoder

    model = _opened(place, ("fill-mask",), precision)
    assert isinstance(model, Encoder)
    return model


def _embedder(place: str | None, precision: Literal["int8", "fp32"] | None) -> "Embedder":
    """Without a place the encoder; a model that was fine-tuned for similarity is to be named."""
    from clozeline.inference.embedder import Embedder

    model = _opened(place, ("fill-mask", "feature-extraction"), precision)
    assert isinstance(model, Embedder)
    return model


def _classifier(place: str | None, precision: Literal["int8", "fp32"] | None) -> "Classifier":
    from clozeline.inference.classifier import Classifier

    model = _opened(place, ("text-classification",), precision)
    assert isinstance(model, Classifier)
    return model


def _opened(place: str | None, tasks: "tuple[Task, ...]", precision: Literal["int8", "fp32"] | None) -> "OpenModel":
    """`tasks`: of a model that can answer; without a place, one of the first."""
    from clozeline.inference.package import load
    from clozeline.serving.sources import ModelSource, default_for, fetched

    source = ModelSource.parse(place) if place else default_for(tasks[0])
    found = fetched(source)
    model = load(found.folder, precision=precision or found.served)
    if model.manifest.task not in tasks:
        raise ParamsError(
            f"{source.place} does something else",
            given=f"a model of the task {model.manifest.task}",
            expected=f"a model of the task {' or '.join(tasks)}",
            do="choose another --model, or another verb: fill and embed ask encoders, classify asks classifiers",
        )
    return model


def _chunks(texts: list[str]) -> Iterator[list[str]]:
    """The texts as they were given; those of standard input in parts, as they come."""
    if texts != ["-"]:
        yield texts
        return
    chunk: list[str] = []
    for number, line in enumerate(sys.stdin.buffer, start=1):
        text = _decoded(number, line).strip()
        if text:
            chunk.append(text)
        if len(chunk) == _CHUNK_TEXTS:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _decoded(number: int, line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"line {number} of standard input is not UTF-8",
            given=repr(line[max(error.start - 10, 0) : error.end + 10]),
            expected="text in UTF-8",
            do="convert it first, as with `iconv -f LATIN1 -t UTF-8`",
        ) from error
