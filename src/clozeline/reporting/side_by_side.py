"""Several runs side by side: what differs between their params, their final figures, and their curves on one chart."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from markupsafe import Markup

from clozeline.reporting.changes import differences
from clozeline.reporting.charts import Series, lines
from clozeline.reporting.metric_tables import in_words, interval
from clozeline.reporting.numbers import format_of
from clozeline.reporting.run import Chapter
from clozeline.reporting.templates import code, html, joined
from clozeline.storage.atomic import replacing_file
from clozeline.tracking.compared_runs import ComparedRun

PAGE: Final = Path("reports/comparison.html")
_ENDS: Final = ("_low", "_high")
_TASK: Final = "finetune/"
_ALONE: Final = "pseudo_"
_CHARTS: Final = (("Loss", "nats per target", "loss"), ("Accuracy", "share of targets, 0-1", "accuracy"))
_NO_CURVES: Final = "MLflow has no curves of {}: its encoder was trained elsewhere, or the run was deleted."
_NO_PARAMS: Final = "The params of {} are unknown, because MLflow no longer has its dvc.lock."


@dataclass(frozen=True)
class Cell:
    """A figure of one run in words."""

    value: str
    interval: str = ""
    """Its 95 % interval; "" if none was measured."""


@dataclass(frozen=True)
class Comparison:
    """Runs in the order in which they were named."""

    runs: Sequence[ComparedRun]

    @property
    def params(self) -> Mapping[str, tuple[str, ...]]:
        """Value in each run of each differing knob, source and file of code."""
        locks = [run.facts.lock for run in self.runs]
        known = [lock for lock in locks if lock is not None]
        return differences(known) if len(known) == len(locks) else {}

    @property
    def notes(self) -> Sequence[str]:
        """Parts of the comparison that are missing, in words."""
        without_lock = [run.name for run in self.runs if run.facts.lock is None]
        without_curves = [run.name for run in self.runs if not run.curves]
        return [
            note.format(", ".join(names))
            for note, names in ((_NO_PARAMS, without_lock), (_NO_CURVES, without_curves))
            if names
        ]

    @property
    def final(self) -> Mapping[str, tuple[Cell, ...]]:
        """Figures that have a 95 % interval, by their name in words."""
        return self._rows(lambda key: any(f"{key}{_ENDS[0]}" in run.facts.figures for run in self.runs))

    @property
    def others(self) -> Mapping[str, tuple[Cell, ...]]:
        """Other figures that differ."""
        final = self.final
        rows = self._rows(lambda key: not key.endswith(_ENDS) and ".headline." not in key)
        return {name: row for name, row in rows.items() if name not in final and len(set(row)) > 1}

    def _rows(self, is_wanted: Callable[[str], bool]) -> Mapping[str, tuple[Cell, ...]]:
        keys = sorted({key for run in self.runs for key in run.facts.figures if is_wanted(key)}, key=_place)
        return {_words(key): tuple(_cell(run, key) for run in self.runs) for key in keys}


def write(runs: Sequence[ComparedRun], root: Path, built_at: datetime) -> Comparison:
    """Write `reports/comparison.html` of the project in `root`, and return what it shows."""
    comparison = Comparison(runs)
    path = root / PAGE
    path.parent.mkdir(exist_ok=True)
    with replacing_file(path) as file:
        file.write_text(f"{page(comparison, built_at)}\n", encoding="utf-8")
    return comparison


def page(comparison: Comparison, built_at: datetime) -> Markup:
    """Return the comparison as a page for a browser."""
    notes = [html("message", tag="p", kind="notice", text=note) for note in comparison.notes]
    about = [
        (
            html("cell", value=run.name, beside=[run.run_id[:8]]),
            f"{run.facts.started:%Y-%m-%d %H:%M} UTC",
            code((run.facts.commit or "–")[:7]),
        )
        for run in comparison.runs
    ]
    table = html("table", caption="Runs", columns=("run", "started", "commit"), rows=about)
    changed: dict[str, tuple[str, ...]] = {code(key): row for key, row in comparison.params.items()}
    chapters = [
        (
            Chapter("changes", "What differs", "Params, sources and code that are not the same in all runs."),
            _table(comparison, "Params, sources and code", changed),
            True,
        ),
        (
            Chapter("figures", "Final figures", "The encoder on validation text, tasks on their test sets."),
            _figures(comparison, "Final figures, with 95 % intervals", comparison.final),
            True,
        ),
        (
            Chapter("training", "Pre-training", "Loss and accuracy, in training and on validation text."),
            joined(*(_chart(comparison, *chart) for chart in _CHARTS)),
            True,
        ),
        (
            Chapter("others", "Other figures", "Every other figure that differs."),
            _figures(comparison, "Other figures", comparison.others),
            False,
        ),
    ]
    return html("page", title="Runs side by side", built_at=built_at, on_top=joined(table, *notes), chapters=chapters)


def _figures(comparison: Comparison, caption: str, rows: Mapping[str, tuple[Cell, ...]]) -> Markup | None:
    cells = {
        key: tuple(html("cell", value=cell.value, beside=[cell.interval]) for cell in row) for key, row in rows.items()
    }
    return _table(comparison, caption, cells, number=">")


def _table(
    comparison: Comparison, caption: str, rows: Mapping[str, Sequence[object]], number: str = ""
) -> Markup | None:
    columns = ("", *(f"{number}{run.name}" for run in comparison.runs))
    made = [(key, *row) for key, row in rows.items()]
    return html("table", caption=caption, columns=columns, rows=made) if made else None


def _chart(comparison: Comparison, title: str, y: str, curve: str) -> Markup | None:
    series = [
        Series(f"{run.name}, {part}", run.curves[name], has_dots, colour=number)
        for number, run in enumerate(comparison.runs)
        for name, part, has_dots in ((curve, "training", False), (f"validation_{curve}", "validation", True))
        if run.curves.get(name)
    ]
    note = "Lines with dots: validation text, always at the same mask rate."
    return lines(title, series, x="step", y=y, note=note) if series else None


def _cell(run: ComparedRun, key: str) -> Cell:
    value = run.facts.figures.get(key)
    return Cell("–") if value is None else Cell(format_of(key)(value), interval(run.facts.figures, key))


def _place(key: str) -> tuple[int, str]:
    """Sort the encoder's figures before those of tasks, and these before all others."""
    return (0 if key.startswith("evaluate.") else 1 if key.startswith(_TASK) else 2), key


def _words(key: str) -> str:
    owner, _, name = key.partition(".")
    owner = "encoder" if owner == "evaluate" else owner.removeprefix(_TASK)
    alone = ", each hidden alone" if name.startswith(_ALONE) else ""
    return f"{owner}: {in_words(name.removeprefix(_ALONE))}{alone}"
