"""What commands print: tables and lines for people, tab-separated lines or JSON for programs.

Shapes: T given texts, H hidden.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import orjson
import typer
from pydantic import BaseModel
from pydantic_core import to_json
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from clozeline.inference import answerer, classifier, completer, language

_BAR_CELLS = 20
_PLAIN_WIDTH = 160
_COLOURS = ("cyan", "green", "yellow", "magenta", "red", "blue")
_LINE_BREAKS = re.compile(r"[\r\n]+")
# Context shown on either side of an answer, in characters.
_CHARACTERS_AROUND = 80


JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
JsonLinesOption = Annotated[bool, typer.Option("--json", help="Print one JSON object per text, each on its own line.")]
# Cells of each row; None draws a line between the rows.
Rows = Iterable[Iterable[str] | None]


def table_of(title: str, *columns: str, rows: Rows = ()) -> Table:
    """Return a table; a column whose name starts with `>` holds numbers."""
    table = Table(title=title or None, title_justify="left", title_style="bold", caption_justify="left")
    for column in columns:
        table.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left")
    for row in rows:
        if row is None:
            table.add_section()
        else:
            table.add_row(*row)
    return table


def show(parts: Iterable[RenderableType], *, plain_if_piped: bool = False, wraps: bool = False) -> None:
    """Print tables without the empty ones, and lines.

    Args:
        plain_if_piped: outside a terminal, tables are columns of plain text, which other programs can read.
        wraps: whether lines wrap between words.
    """
    is_plain = plain_if_piped and not sys.stdout.isatty()
    console = Console(width=_PLAIN_WIDTH) if is_plain else Console()
    for part in parts:
        if isinstance(part, Table):
            if not part.row_count:
                continue
            if plain_if_piped and part.title:  # apart from the table, so that a long one does not wrap at its width
                console.print(Text(str(part.title), style="bold"))
                part.title = None
            part.box = None if is_plain else part.box
        console.print(part, soft_wrap=not wraps and isinstance(part, str | Text), highlight=False)


def show_or_json(found: object, parts: Iterable[RenderableType], *, as_json: bool) -> None:
    """Print `found` as one JSON object on request, otherwise its tables and its lines."""
    if as_json:
        typer.echo(found.model_dump_json() if isinstance(found, BaseModel) else to_json(found, inf_nan_mode="null"))
    else:
        show(parts)


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """The three ways to show the answers of one verb."""

    keys: tuple[str, str]  # keys of the given text and of its answer in a JSON object
    # Fields of each line for a text and its answer, without the text itself.
    rows: Callable[[str, Any], Iterable[Sequence[object]]]
    tables: Callable[[Sequence[str], Any], Iterator[RenderableType]]


def show_answers(texts: Sequence[str], answers: Iterable[object], form: AnswerForm, *, as_json: bool) -> None:
    """Print answers: JSON on request, tables in a terminal, otherwise tab-separated lines."""
    if not as_json and sys.stdout.isatty():
        show(form.tables(texts, answers), wraps=True)
        return
    for text, answer in zip(texts, answers, strict=True):
        if as_json:
            pair = dict(zip(form.keys, (text, answer), strict=True))
            typer.echo(orjson.dumps(pair, option=orjson.OPT_SERIALIZE_NUMPY))
            continue
        for row in form.rows(text, answer):
            typer.echo("\t".join(map(_field, (text, *row))))


def ranked(*fields: str) -> Callable[[str, Iterable[object]], Iterator[Sequence[object]]]:
    """Return the rows of what was found, best first: its rank, and these fields of it."""

    def rows(_: str, found: Iterable[object]) -> Iterator[Sequence[object]]:
        for rank, one in enumerate(found, start=1):
            yield rank, *(getattr(one, name) for name in fields)

    return rows


def _field(value: object) -> str:
    """Return a value without tabs and line breaks, which would end the field."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value).replace("\\", r"\\").replace("\t", r"\t").replace("\n", r"\n").replace("\r", r"\r")


def ranking(what: str, scores: Iterable[tuple[str, float]]) -> Table:
    """Return a table of names with their probabilities, as numbers and as bars."""
    rows = ((escape(name), f"{score:.1%}", "█" * round(_BAR_CELLS * score)) for name, score in scores)
    return table_of("", what, ">probability", "", rows=rows)


def _fill_rows(_: str, masks: list[list[language.Filled]]) -> Iterator[Sequence[object]]:
    for number, mask in enumerate(masks, start=1):
        for rank, one in enumerate(mask, start=1):
            yield number, rank, one.token_str, one.score, one.sequence


def _fill_tables(texts: Sequence[str], answers: list[list[list[language.Filled]]]) -> Iterator[RenderableType]:
    for text, masks in zip(texts, answers, strict=True):
        for number, mask in enumerate(masks, start=1):
            which = f" (mask {number} of {len(masks)})" if len(masks) > 1 else ""
            yield Text(f"{text}{which}", style="bold")
            yield ranking("word", ((one.token_str, one.score) for one in mask))


def _complete_tables(texts: Sequence[str], answers: list[completer.Completion]) -> Iterator[RenderableType]:
    for text, one in zip(texts, answers, strict=True):
        yield Text.assemble((text, "bold"), one.text, (" …" if one.finish_reason == "length" else "", "dim"))


def _embed_tables(texts: Sequence[str], embeddings_TH: npt.NDArray[np.float32]) -> Iterator[RenderableType]:
    """Yield the cosine of each pair of texts, because the raw numbers of a vector are meaningless to a reader."""
    similarities_TT = embeddings_TH @ embeddings_TH.T
    num_texts, hidden_size = embeddings_TH.shape
    yield Text(f"{num_texts} vectors of {hidden_size} numbers (--json prints them). Cosine of each pair of texts:")
    rows = (
        (str(number), escape(text), *(f"{cosine:.2f}" for cosine in similarities_TT[number - 1]))
        for number, text in enumerate(texts, start=1)
    )
    yield table_of("", "", "text", *(f">{number}" for number in range(1, num_texts + 1)), rows=rows)


def _classify_tables(texts: Sequence[str], answers: list[list[classifier.LabelScore]]) -> Iterator[RenderableType]:
    for text, scores in zip(texts, answers, strict=True):
        yield Text(text, style="bold")
        yield ranking("label", ((one.label, one.score) for one in scores))


def _tag_rows(text: str, entities: classifier.Tagged) -> Iterator[Sequence[object]]:
    for one in entities:
        yield text[one.start : one.end], _type(one), one.score, one.start, one.end


def _tag_tables(texts: Sequence[str], found: list[classifier.Tagged]) -> Iterator[RenderableType]:
    types = sorted({_type(one) for entities in found for one in entities})
    colours = {name: _COLOURS[place % len(_COLOURS)] for place, name in enumerate(types)}
    for text, entities in zip(texts, found, strict=True):
        yield _marked(text, entities, colours)
        rows = [(escape(text[one.start : one.end]), escape(_type(one)), f"{one.score:.1%}") for one in entities]
        yield table_of("", "entity", "type", ">probability", rows=rows) if rows else Text("no entities", style="dim")


def _type(one: classifier.Entity | classifier.TaggedToken) -> str:
    return one.entity_group if isinstance(one, classifier.Entity) else one.entity


def _marked(text: str, entities: classifier.Tagged, colours: Mapping[str, str]) -> Text:
    marked, place = Text(), 0
    for one in entities:
        colour = colours[_type(one)]
        marked.append(text[place : one.start])
        marked.append(text[one.start : one.end], style=f"bold {colour}")
        marked.append(f" {_type(one)}", style=f"dim {colour}")
        place = one.end
    return marked.append(text[place:])


def _answer_tables(
    context: str, questions: Sequence[str], answers: list[list[answerer.Answer]]
) -> Iterator[RenderableType]:
    for question, found in zip(questions, answers, strict=True):
        yield Text(question, style="bold")
        yield ranking("answer", ((one.answer or "(no answer in the text)", one.score) for one in found))
        if found[0].answer:
            yield _answer_in_context(context, found[0])


def _answer_in_context(context: str, best: answerer.Answer) -> Text:
    first, last = max(0, best.start - _CHARACTERS_AROUND), min(len(context), best.end + _CHARACTERS_AROUND)
    before, after = (_LINE_BREAKS.sub(" ", part) for part in (context[first : best.start], context[best.end : last]))
    ends = ("…" if first else "", "…" if last < len(context) else "")
    return Text.assemble(ends[0], before, (best.answer, "bold green"), after, ends[1])


FILL = AnswerForm(("text", "masks"), _fill_rows, _fill_tables)
COMPLETE = AnswerForm(("text", "completion"), lambda _, one: [(one.text, one.finish_reason)], _complete_tables)
EMBED = AnswerForm(("text", "embedding"), lambda _, embedding_H: [embedding_H.tolist()], _embed_tables)
CLASSIFY = AnswerForm(("text", "labels"), ranked("label", "score"), _classify_tables)
TAG = AnswerForm(("text", "entities"), _tag_rows, _tag_tables)


def answers_from(context: str) -> AnswerForm:
    """Return the form in which answers from this text are shown."""
    return AnswerForm(
        ("question", "answers"), ranked("answer", "score", "start", "end"), partial(_answer_tables, context)
    )
