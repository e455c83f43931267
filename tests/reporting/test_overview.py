"""The top of the page shows the most important figure first, and the changes since the last run."""

from datetime import datetime

import pytest

from clozeline.records.record import Lock
from clozeline.registry.decisions import Released
from clozeline.reporting.page import build
from clozeline.system.errors import TransientError
from clozeline.tracking.past_runs import EarlierRun, PastRuns
from tests.reporting.conftest import METRICS, Ran, write_json
from tests.reporting.test_page import chapter, tags_of, text_of, top

STARTED = datetime.fromisoformat("2026-11-20T18:03:00+00:00")


def after(ran: Ran, lock: str | None = None, **figures: float) -> str:
    """Return the top of the report of a run whose earlier run has these figures and this dvc.lock."""
    file = ran.root / "earlier.lock"
    file.write_text(lock or (ran.root / "dvc.lock").read_text())
    named = {name.replace("__", "/").replace("_dot_", "."): value for name, value in figures.items()}
    earlier = EarlierRun(STARTED, "4be21f0c9d5511", named, Lock.read(file) if lock else None)
    return text_of(top(build(ran.with_run(past=lambda: PastRuns(earlier=earlier))).html))


def test_the_overview_leads_with_masked_accuracy_its_baseline_and_its_release(ran: Ran) -> None:
    told = text_of(top(build(ran.run).html))
    lead = told.index("39.2 % of the hidden tokens are predicted correctly on the first guess unigram baseline: 6.0 %")
    assert lead < told.index("95 % interval: 38.4 % – 40.1 %") < told.index("refused")
    assert told.index("clozeline-encoder version 3, now candidate.") < told.index("Models")
    assert not any(character.isdigit() for character in told[told.index("UTC.") : lead])


def test_the_overview_of_a_causal_encoder_leads_with_next_token_accuracy(ran: Ran) -> None:
    told = text_of(build(ran.with_run(is_causal=True)).html)
    assert "39.2 % of the next tokens are predicted correctly on the first guess" in told
    assert "each predicted from the tokens before it" in told
    assert "hidden once" not in told


def test_each_model_is_one_line_with_baseline_size_latency_and_release(ran: Ran) -> None:
    told = text_of(top(build(ran.run).html))
    library = "library accuracy 79.6 % 78.0 % – 81.2 % 78.5 % TF-IDF"
    assert told.index("encoder top-1 39.2 %") < told.index(library)
    sizes = "1.58 MB fp32 5.65 MB; 100.0 % agreement 1.0 ms fp32 2.0 ms; on one thread refused"
    assert told.index(library) < told.index(sizes)


def test_a_package_that_is_not_released_says_so(ran: Ran) -> None:
    def nothing(package: str) -> Released | None:
        return None

    told = text_of(top(build(ran.with_run(released=nothing)).html))
    assert "not released dist/encoder" in told
    assert told.count("not released") == 3  # next to the figure, and for two models


def test_without_registry_and_tracker_the_overview_still_shows_its_figures(ran: Ran) -> None:
    def silent(*_: object) -> None:
        raise TransientError("no server answers", given="nothing", expected="a server", do="start it")

    told = text_of(top(build(ran.with_run(released=silent, past=silent)).html))
    assert "39.2 % of the hidden tokens" in told
    assert "library accuracy 79.6 %" in told


def test_without_encoder_figures_the_overview_leads_with_the_first_task(ran: Ran) -> None:
    (ran.root / "metrics/evaluate.json").unlink()
    assert "79.6 % accuracy of library TF-IDF" in text_of(top(build(ran.run).html))


@pytest.mark.parametrize(
    ("before", "told"),
    [(0.35, '<span class="good">+4.2 points</span>'), (0.45, '<span class="bad">-5.8 points</span>')],
)
def test_a_change_is_shown_in_points_and_marked_by_its_sign(ran: Ran, before: float, told: str) -> None:
    earlier = EarlierRun(STARTED, None, {"evaluate.top1": before}, None)
    html = top(build(ran.with_run(past=lambda: PastRuns(earlier=earlier))).html)
    assert html.count(told) == 2  # next to the figure, and in the line of the model
    assert "Last run, 2026-11-20 18:03 UTC" in text_of(html)


def test_a_change_that_may_be_chance_is_not_marked_as_better(ran: Ran) -> None:
    earlier = EarlierRun(STARTED, None, {"finetune/library.headline.value": 0.79}, None)
    html = top(build(ran.with_run(past=lambda: PastRuns(earlier=earlier))).html)
    assert '79.0\N{NARROW NO-BREAK SPACE}% <span class="note">+0.6 points, within the interval</span>' in html


def test_a_change_of_a_correlation_is_shown_as_a_difference(ran: Ran) -> None:
    kept = METRICS["metrics/finetune/library.json"]
    spearman = {**kept, "headline": kept["headline"] | {"metric": "spearman"}}
    write_json(ran.root / "metrics/finetune/library.json", spearman)
    assert "0.7 +0.096" in after(ran, finetune__library_dot_headline_dot_value=0.7)


def test_the_knobs_the_data_and_the_code_that_changed_are_named(ran: Ran) -> None:
    lock = (ran.root / "dvc.lock").read_text().replace("min_characters: 60", "min_characters: 30")
    told = after(ran, lock.replace("a" * 32, "b" * 32))
    assert "Since the run of 2026-11-20 18:03 UTC, this changed: preprocess.min_characters, raw.txt" in told
    assert "at commit 4be21f0c9d " in told
    assert "preprocess.min_characters 30 60" in told
    assert f"raw.txt {'b' * 10} {'a' * 10}" in told
    assert "data/clean" not in told, "outputs of stages are not listed as changes"


def test_figures_of_an_earlier_run_are_compared_without_its_lock(ran: Ran) -> None:
    told = after(ran, evaluate_dot_top1=0.35)
    assert "its dvc.lock is missing, so the changes are unknown" in told
    assert "35.0 % +4.2 points" in told


def test_the_first_report_states_that_there_is_no_earlier_run(ran: Ran) -> None:
    told = text_of(top(build(ran.run).html))
    assert "there is nothing to compare with yet" in told
    assert "last run" not in told.lower()


def test_long_chapters_are_folded_and_links_lead_into_them(ran: Ran) -> None:
    html = build(ran.run).html
    tags_of(html)
    shown = [part.split('<div id="')[1].split('"')[0] for part in html.split("<section>")[1:] if 'open=""' in part]
    assert shown == ["encoder", "tasks", "training"]
    assert '<section id="' not in html


def test_a_folded_chapter_with_missing_figures_is_opened(ran: Ran) -> None:
    (ran.root / "metrics/preprocess.json").unlink()
    (ran.root / "plots/timing/pretrain.csv").unlink()
    html = build(ran.run).html
    assert '<details open=""><summary><h2>Text</h2>' in html
    assert '<details open=""><summary>Accuracy, learning rate, gradient norm, speed, and counts</summary>' in html
    assert "Gradient norm" in chapter(html, "training")


def test_loss_and_accuracy_have_training_and_validation_on_one_chart(ran: Ran) -> None:
    told = chapter(build(ran.run).html, "training")
    loss, accuracy = (told.split(f"<desc>{axis} by step. ")[1] for axis in ("nats per target", "share of targets, 0-1"))
    assert loss.startswith("training: 9.08 at 25, 3.23 at 1000; validation: 3.68 at 250, 3.23 at 1000</desc>")
    assert accuracy.startswith("training: 0.1101 at 25, 0.3096 at 1000; validation: 0.2717 at 250, 0.3096 at 1000</")


def test_fine_tuning_has_its_curves(ran: Ran) -> None:
    told = chapter(build(ran.run).html, "tasks")
    assert "<desc>per target by step. loss: 9.11 at 25, 3.86 at 200</desc>" in told
    assert "<desc> by step. validation score: 0.71 at 100, 0.78 at 200</desc>" in told, "NaN is not a point"
    (ran.root / "plots/finetune/library_training.csv").write_text(
        "step,loss,learning_rate,gradient_norm,num_tokens,accuracy\n"
    )
    (ran.root / "plots/finetune/library_validation.csv").write_text("step,epoch,validation_score\n0,0.0,0.5\n")
    page = build(ran.run)
    assert page.faults == ()
    assert "loss in training" not in page.html, "kinds without training have no curve"
    assert "validation score" not in chapter(page.html, "tasks")
