"""Answers of a model on standard output: tables for people, tab-separated lines or JSON for programs.

Shapes: T given texts, H hidden.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

import orjson
import typer
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from clozeline.inference.answerer import Answer
from clozeline.inference.tagger import Entity, Tagged, TaggedToken

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from clozeline.inference.classifier import LabelScore
    from clozeline.inference.completer import Completion
    from clozeline.inference.language import Filled

Answers = TypeVar("Answers", bound=Iterable[object])
_BAR_CELLS = 20
_COLOURS = ("cyan", "green", "yellow", "magenta", "red", "blue")
_LINE_BREAKS = re.compile(r"[\r\n]+")
_CHARACTERS_AROUND = 80
"""Context shown on either side of an answer, in characters."""


def table_of(title: str, *columns: str, rows: Iterable[Iterable[str]] = ()) -> Table:
    """Return a table; a column whose name starts with `>` holds numbers."""
    table = Table(title=title, title_justify="left", title_style="bold", caption_justify="left")
    for column in columns:
        table.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left")
    for row in rows:
        table.add_row(*row)
    return table


@dataclass(frozen=True, slots=True)
class AnswerForm(Generic[Answers]):
    """The three ways to show the answers of one verb."""

    keys: tuple[str, str]
    """Keys of the given text and of its answer in a JSON object."""
    lines: Callable[[Sequence[str], Answers], Iterator[Sequence[object]]]
    tables: Callable[[Sequence[str], Answers], Iterator[RenderableType]]


def printer(as_json: bool, form: AnswerForm[Answers]) -> Callable[[Sequence[str], Answers], None]:
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


FILL = AnswerForm(("text", "masks"), _fill_lines, _fill_tables)
COMPLETE = AnswerForm(("text", "completion"), _complete_lines, _complete_tables)
EMBED = AnswerForm(("text", "embedding"), _embed_lines, _embed_tables)
CLASSIFY = AnswerForm(("text", "labels"), _classify_lines, _classify_tables)


def answers_from(context: str) -> AnswerForm[list[list[Answer]]]:
    """Return the form in which answers from this text are shown."""
    return AnswerForm(("question", "answers"), _answer_lines, partial(_answer_tables, context))


def _tag_lines(texts: Sequence[str], found: list[Tagged]) -> Iterator[Sequence[object]]:
    for text, entities in zip(texts, found, strict=True):
        for one in entities:
            yield text, text[one.start : one.end], _type(one), one.score, one.start, one.end


def _tag_tables(texts: Sequence[str], found: list[Tagged]) -> Iterator[RenderableType]:
    types = sorted({_type(one) for entities in found for one in entities})
    colours = {name: _COLOURS[place % len(_COLOURS)] for place, name in enumerate(types)}
    for text, entities in zip(texts, found, strict=True):
        yield _marked(text, entities, colours)
        if not entities:
            yield Text("no entities", style="dim")
            continue
        table = Table("entity", "type")
        table.add_column("probability", justify="right")
        for one in entities:
            table.add_row(escape(text[one.start : one.end]), escape(_type(one)), f"{one.score:.1%}")
        yield table


def _type(one: Entity | TaggedToken) -> str:
    return one.entity_group if isinstance(one, Entity) else one.entity


def _marked(text: str, entities: Tagged, colours: Mapping[str, str]) -> Text:
    marked, place = Text(), 0
    for one in entities:
        colour = colours[_type(one)]
        marked.append(text[place : one.start])
        marked.append(text[one.start : one.end], style=f"bold {colour}")
        marked.append(f" {_type(one)}", style=f"dim {colour}")
        place = one.end
    return marked.append(text[place:])


def _answer_lines(questions: Sequence[str], answers: list[list[Answer]]) -> Iterator[Sequence[object]]:
    for question, found in zip(questions, answers, strict=True):
        for rank, one in enumerate(found, start=1):
            yield question, rank, one.answer, one.score, one.start, one.end


def _answer_tables(context: str, questions: Sequence[str], answers: list[list[Answer]]) -> Iterator[RenderableType]:
    for question, found in zip(questions, answers, strict=True):
        yield Text(question, style="bold")
        yield ranking("answer", [(one.answer or "(no answer in the text)", one.score) for one in found])
        if found[0].answer:
            yield _answer_in_context(context, found[0])


def _answer_in_context(context: str, best: Answer) -> Text:
    first, last = max(0, best.start - _CHARACTERS_AROUND), min(len(context), best.end + _CHARACTERS_AROUND)
    before, after = context[first : best.start], context[best.end : last]
    return Text.assemble(
        "…" if first else "",
        _LINE_BREAKS.sub(" ", before),
        (best.answer, "bold green"),
        _LINE_BREAKS.sub(" ", after),
        "…" if last < len(context) else "",
    )


TAG = AnswerForm(("text", "entities"), _tag_lines, _tag_tables)
