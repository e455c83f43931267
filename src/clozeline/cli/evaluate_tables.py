"""Results of `clozeline evaluate`, as tables for people or as one JSON object for programs."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import typer
from pydantic_core import to_json
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table

from clozeline.cli.tables import table_of

if TYPE_CHECKING:
    from clozeline.contest.comparison import PairedTest
    from clozeline.contest.judgement import Judgement
    from clozeline.evaluation.figures import Figures

_SIGNIFICANT = 0.05
_ESTIMATORS = {"folds": "one token in {num_folds} hidden at a time", "pll": "each token hidden alone"}
_PAIRS = "of the pairs"
_CAUSAL = "each token predicted from those before it"
_OTHER_TOKENS = (
    "Their tokens differ: perplexity and top-1 do not compare. Nats per byte do, but favour a tokenizer with shorter"
    " tokens: while one token is hidden, the model sees the rest of its word."
)
_NOT_ALIKE = (
    "One model sees both sides of each token, the other only the tokens before it: these figures do not say which is"
    " better."
)


def show(judgement: "Judgement", *, as_json: bool) -> None:
    """Print the judgement to standard output."""
    if as_json:
        typer.echo(to_json(judgement, inf_nan_mode="null"))
        return
    console = Console()
    for table in _tables(judgement):
        console.print(table, soft_wrap=isinstance(table, str))


def _tables(judgement: "Judgement") -> Iterator[RenderableType]:
    if judgement.models[0].text:
        yield _text_table(judgement)
    if judgement.comparison:
        yield _verdict(judgement, judgement.comparison.nats_per_byte, "nats per byte", is_low_better=True)
    if judgement.models[0].blimp:
        yield _blimp_table(judgement)
    if judgement.blimp_accuracy:
        yield _verdict(judgement, judgement.blimp_accuracy, _PAIRS, is_low_better=False)


def _text_table(judgement: "Judgement") -> Table:
    found = [model.text for model in judgement.models if model.text]
    masked = _ESTIMATORS[judgement.how.estimator].format(num_folds=judgement.how.num_folds)
    ways = dict.fromkeys(_CAUSAL if model.objective == "clm" else masked for model in judgement.models)
    asked = "; ".join(ways)
    title = f"{found[0].validation_documents:,} documents, {found[0].text_bytes:,} bytes; {asked}"
    title += f"; rows of {judgement.how.max_length} tokens"
    rows = [
        ("nats per byte", *(_interval(figures, "nats_per_byte", "{:.4f}") for figures in found)),
        ("tokens", *(f"{figures.validation_tokens:,}" for figures in found)),
        ("unknown tokens", *(f"{figures.unknown_tokens:,}" for figures in found)),
    ]
    if judgement.same_tokens:
        rows += [
            ("perplexity", *(_interval(figures, "perplexity", "{:.2f}") for figures in found)),
            ("top-1", *(_interval(figures, "top1", "{:.1%}") for figures in found)),
            ("top-5", *(f"{figures.top5:.1%}" for figures in found)),
        ]
    rows.append(("calibration error", *(f"{model.expected_calibration_error:.4f}" for model in judgement.models)))
    table = table_of(title, *_heads(judgement), rows=rows)
    notes = [] if judgement.same_tokens else [_OTHER_TOKENS]
    table.caption = "\n".join(notes if judgement.asked_alike else [*notes, _NOT_ALIKE]) or None
    return table


def _blimp_table(judgement: "Judgement") -> Table:
    found = [model.blimp for model in judgement.models if model.blimp]
    title = f"Accuracy on {found[0].overall.num_pairs:,} minimal pairs; chance is 50 %"
    of_phenomena = zip(*(figures.phenomena for figures in found), strict=True)
    rows = ((f"{of[0].name} ({of[0].num_pairs:,})", *(f"{one.accuracy:.1%}" for one in of)) for of in of_phenomena)
    table = table_of(title, *_heads(judgement), rows=rows)
    table.add_section()
    table.add_row("mean of paradigms", *(f"{figures.accuracy:.1%}" for figures in found))
    table.add_row("undecided pairs", *(f"{figures.overall.num_ties:,}" for figures in found))
    return table


def _verdict(judgement: "Judgement", test: "PairedTest", unit: str, *, is_low_better: bool) -> str:
    first, second = (escape(name) for name in _columns(judgement))
    summary = f"{first} - {second}: {test.difference:+.4f} {unit} (95 %: {test.low:+.4f} to {test.high:+.4f}), "
    summary += f"p = {test.p_value:.4f}: "
    if not (judgement.asked_alike or unit == _PAIRS):
        return summary + "but one sees both sides of a token, the other one side"
    if test.p_value >= _SIGNIFICANT:
        return summary + "no significant difference on these texts"
    return summary + f"[bold]{first if (test.difference < 0) == is_low_better else second}[/] is better"


def _interval(figures: "Figures", name: str, form: str) -> str:
    figure, low, high = (form.format(getattr(figures, f"{name}{end}")) for end in ("", "_low", "_high"))
    return f"{figure} ({low}-{high})"


def _columns(judgement: "Judgement") -> Sequence[str]:
    return [model.name for model in judgement.models]


def _heads(judgement: "Judgement") -> Sequence[str]:
    return ["", *(f">{escape(name)}" for name in _columns(judgement))]
