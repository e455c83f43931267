"""Several runs side by side: the differing params, and the final figures with intervals."""

import json
from datetime import UTC, datetime

import pytest

from clozeline.cli.keep import tables
from clozeline.records.record import Lock, LockedStage
from clozeline.reporting.run import Cell, RunComparison
from clozeline.tracking.past_runs import PastRun

STARTED = datetime(2026, 11, 20, 18, 3, tzinfo=UTC)
NARROW = "\N{NARROW NO-BREAK SPACE}"


def trained(name: str, top1: float, rate: float, *, has_lock: bool = True) -> PastRun:
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
    known = lock if has_lock else None
    return PastRun(f"{name}-id", name, "1", STARTED, "4be21f0c9d5511", figures, known, f"{name}-training")


@pytest.fixture
def two() -> RunComparison:
    return RunComparison([trained("fox", 0.39, 1.0), trained("<owl>", 0.41, 2.0)])


def test_only_what_differs_is_listed_and_only_figures_with_intervals_are_final(two: RunComparison) -> None:
    assert two.params == {"pretrain.rate": ("1.0", "2.0")}
    assert two.final == {
        "encoder: top-1": (
            Cell(f"39.0{NARROW}%", f"38.0{NARROW}% – 40.0{NARROW}%"),
            Cell(f"41.0{NARROW}%", f"40.0{NARROW}% – 42.0{NARROW}%"),
        )
    }
    assert two.notes == []
    comparison = RunComparison([trained("fox", 0.39, 1.0, has_lock=False), trained("owl", 0.41, 2.0)])
    assert comparison.params == {}
    (note,) = comparison.notes
    assert "fox" in note
    assert "owl" not in note


def test_json_has_the_params_and_the_figures_as_numbers(two: RunComparison) -> None:
    record = json.loads(json.dumps(two.record()))
    assert record["params"] == {"pretrain.rate": ["1.0", "2.0"]}
    assert list(record["figures"]) == ["evaluate.top1"]
    assert record["figures"]["evaluate.top1"][0] == {"value": 0.39, "low": 0.39 - 0.01, "high": 0.39 + 0.01}
    assert [run["name"] for run in record["runs"]] == ["fox", "<owl>"]
    assert record["runs"][0]["started"] == STARTED.isoformat()


def test_the_terminal_shows_the_same_figures_and_params(two: RunComparison) -> None:
    about, params, figures = tables(two)
    assert [list(column.cells) for column in about.columns][:2] == [["fox", "<owl>"], ["fox-id", "<owl>-id"]]
    assert [list(column.cells) for column in params.columns] == [["pretrain.rate"], ["1.0"], ["2.0"]]
    assert list(figures.columns[1].cells) == [f"39.0{NARROW}%\n[dim]38.0{NARROW}% – 40.0{NARROW}%[/]"]
