"""Spans on standard output: entities of texts, and answers from a text."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from clozeline.cli.text_answers import Form, ranking
from clozeline.inference.answerer import Answer
from clozeline.inference.entities import Entity, Tagged, TaggedToken

_COLOURS = ("cyan", "green", "yellow", "magenta", "red", "blue")
_LINE_BREAKS = re.compile(r"[\r\n]+")
_CHARACTERS_AROUND = 80
"""Context shown on either side of an answer, in characters."""


def answers_from(context: str) -> Form[list[list[Answer]]]:
    """Return the form in which answers from this text are shown."""
    return Form(("question", "answers"), _answer_lines, partial(_answer_tables, context))


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


TAG = Form(("text", "entities"), _tag_lines, _tag_tables)
