"""What the encoder says of hidden words."""

from collections.abc import Iterable
from functools import partial

from markupsafe import Markup

from clozeline.artifacts.cloze_example import Example, Guess
from clozeline.reporting.elements import element, folded, joined, table
from clozeline.reporting.numbers import share
from clozeline.reporting.run import Part, Run

_FILE = "reports/examples/examples.json"
_OPEN = 2
"""So many are shown with all their guesses; the others unfold."""


def parts(run: Run) -> Iterable[Part]:
    return [partial(_examples, run)]


def _examples(run: Run) -> Markup:
    examples = run.files.json(_FILE, list[Example], stage="evaluate")
    return joined(_example(number, example) for number, example in enumerate(examples, start=1))


def _example(number: int, example: Example) -> Markup:
    ranks = [guess.rank for guess in example.guesses]
    first, five = ranks.count(1), sum(rank is not None for rank in ranks)
    told = f"{len(ranks)} words asked: {first} named first, {five} among the first five"
    rows = [_row(place, guess) for place, guess in enumerate(example.guesses, start=1)]
    columns = (">#", "hidden", ">its probability", "five likeliest")
    answers = table(f"Example {number}: what was hidden, and what was guessed", columns, rows, kind="guesses")
    return element(
        "article",
        element("p", _text(example), class_="cloze"),
        folded(told, answers, is_open=number <= _OPEN),
        class_="example",
    )


def _text(example: Example) -> Markup:
    """The text with each hidden word marked; a causal model's, which hides none, plain."""
    around = example.masked.split(example.mask_token) if example.mask_token else []
    if len(around) != len(example.guesses) + 1:
        return joined([example.original])
    marked = [
        element("mark", guess.original, element("sup", place), class_=guess.outcome)
        for place, guess in enumerate(example.guesses, start=1)
    ]
    return joined([around[0], *(piece for pair in zip(marked, around[1:], strict=True) for piece in pair)])


def _row(place: int, guess: Guess) -> tuple[object, ...]:
    likeliest = [
        element(
            "span",
            candidate.token,
            " ",
            element("small", share(candidate.probability)),
            class_="guess hit" if candidate.token == guess.original else "guess",
        )
        for candidate in guess.candidates
    ]
    verdict = element("mark", guess.original, class_=guess.outcome)
    return (place, verdict, share(guess.original_probability), joined(likeliest))
