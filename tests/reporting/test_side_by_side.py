"""Several runs side by side: the differing params, the final figures with intervals, and all curves on one chart."""

from datetime import UTC, datetime

import pytest

from clozeline.artifacts.lock import Lock, LockedStage
from clozeline.cli.compare import tables
from clozeline.reporting.side_by_side import Cell, Comparison, page
from clozeline.tracking.compared_runs import ComparedRun
from clozeline.tracking.past_runs import EarlierRun
from tests.reporting.test_page import chapter, tags_of, text_of

STARTED = datetime(2026, 11, 20, 18, 3, tzinfo=UTC)
NARROW = "\N{NARROW NO-BREAK SPACE}"


def trained(name: str, top1: float, rate: float, *, has_lock: bool = True, has_curves: bool = True) -> ComparedRun:
    params = {"pretrain": {"steps": 100, "rate": rate, "layers": ["[dim]"]}}
    lock = Lock(stages={"pretrain": LockedStage(cmd="train", params={"params.yaml": params})})
    figures = {
        "evaluate.top1": top1,
        "evaluate.top1_low": top1 - 0.01,
        "evaluate.top1_high": top1 + 0.01,
        "finetune/library.headline.value": top1,
        "pretrain.steps": 100.0,
        "pretrain.tokens": 1e6 * rate,
    }
    curves = {"loss": [(25.0, 7.0), (100.0, 4.0)], "validation_loss": [(100.0, 4.5)], "accuracy": [(25.0, top1)]}
    facts = EarlierRun(STARTED, "4be21f0c9d5511", figures, lock if has_lock else None)
    return ComparedRun(f"{name}-id", name, facts, curves if has_curves else {})


@pytest.fixture
def two() -> Comparison:
    return Comparison([trained("fox", 0.39, 1.0), trained("<owl>", 0.41, 2.0)])


def test_only_what_differs_is_listed_and_only_figures_with_intervals_are_final(two: Comparison) -> None:
    assert two.params == {"pretrain.rate": ("1.0", "2.0")}
    assert two.final == {
        "encoder: top-1": (
            Cell(f"39.0{NARROW}%", f"38.0{NARROW}% – 40.0{NARROW}%"),
            Cell(f"41.0{NARROW}%", f"40.0{NARROW}% – 42.0{NARROW}%"),
        )
    }
    assert two.others == {"pretrain: tokens": (Cell("1,000,000"), Cell("2,000,000"))}
    assert two.notes == []


def test_the_curves_of_all_runs_are_on_one_chart_in_a_colour_for_each_run(two: Comparison) -> None:
    html = page(two, STARTED)
    tags_of(html)
    loss, accuracy = html.split("<figure>")[1:]
    assert "fox, training: 7 at 25, 4 at 100; fox, validation: 4.5 at 100, 4.5 at 100; &lt;owl&gt;, training: 7" in loss
    assert [part.split('"')[0] for part in loss.split('class="key ')[1:]] == ["s0", "s0", "s1", "s1"]
    assert "fox, training: 0.39 at 25, 0.39 at 25; &lt;owl&gt;, training: 0.41 at 25" in accuracy
    assert "top-1 39.0 % 38.0 % – 40.0 % 41.0 %" in text_of(chapter(html, "figures"))
    assert "pretrain.rate 1.0 2.0" in text_of(chapter(html, "changes"))


def test_a_run_without_its_lock_or_its_curves_is_named() -> None:
    runs = [trained("fox", 0.39, 1.0, has_lock=False), trained("owl", 0.41, 2.0, has_curves=False)]
    comparison = Comparison(runs)
    assert comparison.params == {}
    params, curves = comparison.notes
    assert "params of fox are unknown" in params
    assert "no curves of owl" in curves
    told = text_of(page(comparison, STARTED))
    assert params in told
    assert curves in told
    assert "fox, training" in told


def test_the_terminal_shows_the_same_figures_and_params(two: Comparison) -> None:
    about, params, figures = tables(two)
    assert [list(column.cells) for column in about.columns][:2] == [["fox", "<owl>"], ["fox-id", "<owl>-id"]]
    assert [list(column.cells) for column in params.columns] == [["pretrain.rate"], ["1.0"], ["2.0"]]
    assert list(figures.columns[1].cells) == [f"39.0{NARROW}%\n[dim]38.0{NARROW}% – 40.0{NARROW}%[/]"]
