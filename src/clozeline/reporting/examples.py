"""The encoder's predictions for hidden words."""

from collections.abc import Iterable
from functools import partial

from markupsafe import Markup

from clozeline.artifacts.evaluate.cloze_example import Example, Guess
from clozeline.reporting.numbers import share
from clozeline.reporting.run import Part, Run
from clozeline.reporting.templates import html, joined

_FILE = "reports/examples/examples.json"


def parts(run: Run) -> Iterable[Part]:
    return [partial(_examples, run)]


def _examples(run: Run) -> Markup:
    examples = run.files.json(_FILE, list[Example], stage="evaluate")
    return joined(*(_example(number, example) for number, example in enumerate(examples, start=1)))


def _example(number: int, example: Example) -> Markup:
    ranks = [guess.rank for guess in example.guesses]
    first, five = ranks.count(1), sum(rank is not None for rank in ranks)
    summary = f"{len(ranks)} words: {first} right at the first guess, {five} among the first five"
    rows = [_row(place, guess) for place, guess in enumerate(example.guesses, start=1)]
    columns = (">#", "token", ">its probability", "five likeliest")
    caption = f"Example {number}: words and guesses"
    answers = html("table", caption=caption, columns=columns, rows=rows, kind="guesses")
    return html(
        "example",
        around=_around(example),
        guesses=example.guesses,
        answers=html("folded", summary=summary, body=answers),
    )


def _around(example: Example) -> list[str]:
    """Return the text between the hidden words; for a causal model, which hides none, the whole text."""
    around = example.masked.split(example.mask_token) if example.mask_token else []
    return around if len(around) == len(example.guesses) + 1 else [example.original]


def _row(place: int, guess: Guess) -> tuple[object, ...]:
    hidden = html("message", tag="mark", kind=guess.outcome, text=guess.original)
    return (place, hidden, share(guess.original_probability), html("likeliest", guess=guess))
