"""Answers of a model on standard output: tables for people, tab-separated lines or JSON for programs.

Shapes: T given texts, H hidden.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import orjson
import typer
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from clozeline.inference.classifier import LabelScore
    from clozeline.inference.completer import Completion
    from clozeline.inference.encoder import Filled

Answers = TypeVar("Answers", bound=Iterable[object])
_BAR_CELLS = 20


@dataclass(frozen=True, slots=True)
class Form(Generic[Answers]):
    """The three ways to show the answers of one verb."""

    keys: tuple[str, str]
    """Keys of the given text and of its answer in a JSON object."""
    lines: Callable[[Sequence[str], Answers], Iterator[Sequence[object]]]
    tables: Callable[[Sequence[str], Answers], Iterator[RenderableType]]


def printer(as_json: bool, form: Form[Answers]) -> Callable[[Sequence[str], Answers], None]:
    """Return the printer of answers: JSON on request, tables in a terminal, otherwise tab-separated lines."""
    if as_json:
        return lambda texts, answers: _print_json(form.keys, texts, answers)
    if sys.stdout.isatty():
        return lambda texts, answers: _print_tables(form.tables(texts, answers))
    return lambda texts, answers: _print_lines(form.lines(texts, answers))


def _print_json(keys: tuple[str, str], texts: Sequence[str], answers: Iterable[object]) -> None:
    for pair in zip(texts, answers, strict=True):
        typer.echo(orjson.dumps(dict(zip(keys, pair, strict=True)), option=orjson.OPT_SERIALIZE_NUMPY))


def _print_lines(lines: Iterator[Sequence[object]]) -> None:
    for line in lines:
        typer.echo("\t".join(_field(value) for value in line))


def _print_tables(tables: Iterator[RenderableType]) -> None:
    console = Console()
    for table in tables:
        console.print(table)


def _field(value: object) -> str:
    """Return a value without tabs and line breaks, which would end the field."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value).replace("\\", r"\\").replace("\t", r"\t").replace("\n", r"\n").replace("\r", r"\r")


def _fill_lines(texts: Sequence[str], answers: "list[list[list[Filled]]]") -> Iterator[Sequence[object]]:
    for text, masks in zip(texts, answers, strict=True):
        for number, mask in enumerate(masks, start=1):
            for rank, candidate in enumerate(mask, start=1):
                yield text, number, rank, candidate.token_str, candidate.score, candidate.sequence


def _fill_tables(texts: Sequence[str], answers: "list[list[list[Filled]]]") -> Iterator[RenderableType]:
    for text, masks in zip(texts, answers, strict=True):
        for number, mask in enumerate(masks, start=1):
            which = f" (mask {number} of {len(masks)})" if len(masks) > 1 else ""
            yield Text(f"{text}{which}", style="bold")
            yield ranking("word", [(candidate.token_str, candidate.score) for candidate in mask])


def _complete_lines(texts: Sequence[str], answers: "list[Completion]") -> Iterator[Sequence[object]]:
    for text, one in zip(texts, answers, strict=True):
        yield text, one.text, one.finish_reason


def _complete_tables(texts: Sequence[str], answers: "list[Completion]") -> Iterator[RenderableType]:
    for text, one in zip(texts, answers, strict=True):
        yield Text.assemble((text, "bold"), one.text, (" …" if one.finish_reason == "length" else "", "dim"))


def _embed_lines(texts: Sequence[str], embeddings_TH: "npt.NDArray[np.float32]") -> Iterator[Sequence[object]]:
    for text, embedding_H in zip(texts, embeddings_TH, strict=True):
        yield text, *embedding_H.tolist()


def _embed_tables(texts: Sequence[str], embeddings_TH: "npt.NDArray[np.float32]") -> Iterator[RenderableType]:
    """Yield the cosine of each pair of texts, because the raw numbers of a vector are meaningless to a reader."""
    similarities_TT = embeddings_TH @ embeddings_TH.T
    num_texts, hidden_size = embeddings_TH.shape
    yield Text(f"{num_texts} vectors of {hidden_size} numbers (--json prints them). Cosine of each pair of texts:")
    table = Table("", "text")
    for number in range(1, num_texts + 1):
        table.add_column(str(number), justify="right")
    for number, text in enumerate(texts, start=1):
        table.add_row(str(number), escape(text), *(f"{cosine:.2f}" for cosine in similarities_TT[number - 1]))
    yield table


def _classify_lines(texts: Sequence[str], answers: "list[list[LabelScore]]") -> Iterator[Sequence[object]]:
    for text, scores in zip(texts, answers, strict=True):
        for rank, score in enumerate(scores, start=1):
            yield text, rank, score.label, score.score


def _classify_tables(texts: Sequence[str], answers: "list[list[LabelScore]]") -> Iterator[RenderableType]:
    for text, scores in zip(texts, answers, strict=True):
        yield Text(text, style="bold")
        yield ranking("label", [(score.label, score.score) for score in scores])


def ranking(what: str, scores: Sequence[tuple[str, float]]) -> Table:
    """Return a table of names with their probabilities, as numbers and as bars."""
    table = Table()
    table.add_column(what)
    table.add_column("probability", justify="right")
    table.add_column("")
    for name, score in scores:
        table.add_row(escape(name), f"{score:.1%}", "█" * round(_BAR_CELLS * score))
    return table


FILL = Form(("text", "masks"), _fill_lines, _fill_tables)
COMPLETE = Form(("text", "completion"), _complete_lines, _complete_tables)
EMBED = Form(("text", "embedding"), _embed_lines, _embed_tables)
CLASSIFY = Form(("text", "labels"), _classify_lines, _classify_tables)
