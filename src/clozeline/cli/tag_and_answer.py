"""`clozeline tag` and `clozeline answer`: spans that an exported model finds in a text."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from clozeline.cli.asking import (
    PANEL,
    JsonOption,
    ModelOption,
    PrecisionOption,
    TextsArgument,
    chunks,
    decoded,
    opened,
)
from clozeline.errors import DataError, ParamsError

_STANDARD_INPUT = "-"


def add_to(app: typer.Typer) -> None:
    for verb in (tag, answer):
        app.command(rich_help_panel=PANEL)(verb)


def tag(
    texts: TextsArgument,
    model: ModelOption = None,
    aggregation: Annotated[
        Literal["none", "simple", "first", "average", "max"],
        typer.Option(
            help="none: each token alone; simple: neighbours of one type joined; first, average, max: whole words, by "
            "the tag of their first token, of the mean of their tokens, or of their most confident token."
        ),
    ] = "first",
    precision: PrecisionOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the entities of each text: people, places, or whatever the model was trained to tag.

    A text may be of any length: a long one is read in windows that overlap.

    Prints the marked text and a table in a terminal; otherwise, one tab-separated line per entity: text, entity, type,
    probability, start and end in characters.

    Examples:

    - `clozeline tag "Maria Lopez moved from Oslo to Rome."`
    - `clozeline tag - --json --model dist/wnut17 < texts.txt > entities.jsonl`
    """
    from clozeline.cli import span_answers, text_answers
    from clozeline.inference.tagger import Tagger

    tagger = opened(model, precision, Tagger)
    show = text_answers.printer(as_json, span_answers.TAG)
    for chunk in chunks(texts):
        show(chunk, tagger.tag(chunk, strategy=aggregation))


def answer(
    questions: Annotated[
        list[str],
        typer.Argument(
            metavar="QUESTION...", help="Questions; quote each. `-` reads them from standard input, one per line."
        ),
    ],
    context: Annotated[str | None, typer.Option("--context", "-c", help="Text that may hold the answer.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="File with that text, in UTF-8; `-` is standard input.")
    ] = None,
    model: ModelOption = None,
    top_k: Annotated[int, typer.Option(min=1, help="Answers to each question.")] = 3,
    no_answer: Annotated[
        bool | None,
        typer.Option(
            "--no-answer/--always-answer",
            help='Whether "no answer" is allowed. [default: if the model was trained with unanswerable questions]',
            show_default=False,
        ),
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Maximum number of tokens of an answer.")] = 15,
    precision: PrecisionOption = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per question, each on its own line.")
    ] = False,
) -> None:
    """Answer each question with a passage of a text.

    The text may be of any length: a long one is read in windows that overlap.

    Prints a table and the best answer in its context in a terminal; otherwise, tab-separated question, rank, answer,
    probability, start and end in characters. An empty answer means that the text does not contain one.

    Examples:

    - `clozeline answer "Where does Maria live?" --context "Maria Lopez moved from Oslo to Rome."`
    - `clozeline answer "What does it cost?" "Who pays?" --file contract.txt --top-k 1`
    - `clozeline answer - --file README.md --json < questions.txt`
    """
    from clozeline.cli import span_answers, text_answers
    from clozeline.inference.answerer import Answerer
    from clozeline.inference.spans import SpanSearch

    text = _context(context, file, questions)
    answerer = opened(model, precision, Answerer)
    learned = answerer.manifest.no_answer_margin is not None
    search = SpanSearch(
        top_k=top_k,
        max_answer_tokens=max_tokens,
        may_be_unanswerable=learned if no_answer is None else no_answer,
    )
    show = text_answers.printer(as_json, span_answers.answers_from(text))
    for chunk in chunks(questions):
        # One question at a time, because each has the windows of the whole text.
        show(chunk, [answerer.ask([(question, text)], search=search)[0] for question in chunk])


def _context(context: str | None, file: Path | None, questions: list[str]) -> str:
    if context is not None and file is None:
        text = context
    elif file is not None and context is None:
        text = _read(file, questions)
    else:
        raise ParamsError(
            "`clozeline answer` needs exactly one text to answer from",
            given="neither --context nor --file" if file is None else "both --context and --file",
            expected="one of them",
            do="give the text with --context, or its file: --file notes.txt",
        )
    if not text.strip():
        raise DataError(
            "the text to answer from is empty",
            given=repr(text[:20]) if file is None else f"{file}, without a visible character",
            expected="text that may hold the answer",
            do="give the text with --context, or its file: --file notes.txt",
        )
    return text


def _read(file: Path, questions: list[str]) -> str:
    if str(file) == _STANDARD_INPUT:
        if questions == [_STANDARD_INPUT]:
            raise ParamsError(
                "standard input cannot be both the questions and the text",
                given="`-` for both",
                expected="one of them from standard input",
                do="give the questions as arguments, or put the text into a file",
            )
        return _decoded(sys.stdin.buffer.read(), "standard input")
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise DataError(
            f"{file} cannot be read",
            given=error.strerror or type(error).__name__,
            expected="a file with text in UTF-8",
            do="name another file, or give the text with --context",
        ) from error
    return _decoded(raw, str(file))


def _decoded(raw: bytes, place: str) -> str:
    lines = enumerate(raw.splitlines(keepends=True), start=1)
    return "".join(decoded(line, f"line {number} of {place}") for number, line in lines)
