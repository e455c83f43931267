"""Every figure of every metric file, including those that no other chapter shows."""

from collections.abc import Iterable
from functools import partial

from markupsafe import Markup

from clozeline.artifacts.lock import leaves
from clozeline.reporting.numbers import amount
from clozeline.reporting.run import Part, Run
from clozeline.reporting.templates import code, html


def parts(run: Run) -> Iterable[Part]:
    return [partial(_file, run, path) for path in run.files.names("metrics/**/*.json")]


def _file(run: Run, path: str) -> Markup:
    figures = run.files.figures(path, stage=path.removeprefix("metrics/").removesuffix(".json").replace("/", "@"))
    rows = [(code(key), _shown(value)) for key, value in leaves(figures)]
    return html("folded", summary=path, body=html("table", caption=path, columns=("figure", ">value"), rows=rows))


def _shown(value: object) -> str:
    return amount(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
