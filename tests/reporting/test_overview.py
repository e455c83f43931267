"""The top of the page shows the most important figure first, and the changes since the last run."""

from collections.abc import Mapping
from datetime import datetime

from clozeline.records.record import Lock
from clozeline.reporting.page import build
from clozeline.system.errors import TransientError
from clozeline.tracking.past_runs import PastRun, PastRuns
from tests.reporting.conftest import Ran
from tests.reporting.test_page import chapter, text_of, top

STARTED = datetime.fromisoformat("2026-11-20T18:03:00+00:00")


def after(ran: Ran, figures: Mapping[str, float], lock: Lock | None = None) -> str:
    """Return the top of the report of a run whose earlier run has these figures and this dvc.lock."""
    earlier = PastRun("id", "fox", "1", STARTED, "4be21f0c9d5511", dict(figures), lock)
    return top(build(ran.with_run(past=lambda: PastRuns(earlier=earlier))).html)


def test_the_overview_leads_with_masked_accuracy_its_baseline_and_its_release(ran: Ran) -> None:
    html = build(ran.run).html
    told = text_of(top(html))
    lead = told.index("39.2 % of the hidden tokens are predicted correctly on the first guess unigram baseline: 6.0 %")
    assert lead < told.index("95 % interval: 38.4 % – 40.1 %") < told.index("refused")
    assert told.index("clozeline-encoder version 3, now candidate.") < told.index("Models")
    assert not any(character.isdigit() for character in told[told.index("UTC.") : lead])
    assert "there is nothing to compare with yet" in told
    assert "last run" not in told.lower()
    library = "library accuracy 79.6 % 78.0 % – 81.2 % 78.5 % TF-IDF"
    sizes = "1.58 MB fp32 5.65 MB; 100.0 % agreement 1.0 ms fp32 2.0 ms; on one thread refused"
    assert told.index("encoder top-1 39.2 %") < told.index(library) < told.index(sizes)
    shown = [part.split('<div id="')[1].split('"')[0] for part in html.split("<section>")[1:] if 'open=""' in part]
    assert shown == ["encoder", "tasks", "training"], "other chapters are folded"
    assert '<section id="' not in html, "links lead into the chapters"


def test_the_overview_shows_what_there_is(ran: Ran) -> None:
    def silent(*_: object) -> None:
        raise TransientError("no server answers", given="nothing", expected="a server", do="start it")

    for changes, words in (
        ({"released": lambda package: None}, "not released dist/encoder"),
        ({"released": silent, "past": silent}, "39.2 % of the hidden tokens"),
    ):
        told = text_of(top(build(ran.with_run(**changes)).html))
        assert words in told
        assert "library accuracy 79.6 %" in told
    (ran.root / "metrics/evaluate.json").unlink()
    assert "79.6 % accuracy of library TF-IDF" in text_of(top(build(ran.run).html))


def test_a_change_is_marked_by_its_sign_unless_it_may_be_chance(ran: Ran) -> None:
    chance = '79.0\N{NARROW NO-BREAK SPACE}% <span class="note">+0.6 points, within the interval</span>'
    for figures, told, times in (
        ({"evaluate.top1": 0.35}, '<span class="good">+4.2 points</span>', 2),  # beside the figure, and in its line
        ({"evaluate.top1": 0.45}, '<span class="bad">-5.8 points</span>', 2),
        ({"finetune/library.headline.value": 0.79}, chance, 1),
    ):
        html = after(ran, figures)
        assert html.count(told) == times
        assert "its dvc.lock is missing, so the changes are unknown" in text_of(html)


def test_the_knobs_the_data_and_the_code_that_changed_are_named(ran: Ran) -> None:
    lock, changed = ran.root / "dvc.lock", ran.root / "earlier.lock"
    text = lock.read_text().replace("min_characters: 60", "min_characters: 30").replace("a" * 32, "b" * 32)
    changed.write_text(text)
    told = text_of(after(ran, {}, Lock.read(changed)))
    assert "Since the run of 2026-11-20 18:03 UTC, this changed: preprocess.min_characters, raw.txt" in told
    assert "at commit 4be21f0c9d " in told
    assert "preprocess.min_characters 30 60" in told
    assert f"raw.txt {'b' * 10} {'a' * 10}" in told
    assert "data/clean" not in told, "outputs of stages are not listed as changes"


def test_loss_and_accuracy_have_training_and_validation_on_one_chart(ran: Ran) -> None:
    told = chapter(build(ran.run).html, "training")
    loss, accuracy = (told.split(f"<desc>{axis} by step. ")[1] for axis in ("nats per target", "share of targets, 0-1"))
    assert loss.startswith("training: 9.08 at 25, 3.23 at 1000; validation: 3.68 at 250, 3.23 at 1000</desc>")
    assert accuracy.startswith("training: 0.1101 at 25, 0.3096 at 1000; validation: 0.2717 at 250, 0.3096 at 1000</")


def test_fine_tuning_has_its_curves(ran: Ran) -> None:
    told = chapter(build(ran.run).html, "tasks")
    assert "<desc>per target by step. loss: 9.11 at 25, 3.86 at 200</desc>" in told
    assert "<desc> by step. validation score: 0.71 at 100, 0.78 at 200</desc>" in told, "NaN is not a point"
    columns = "step,loss,learning_rate,gradient_norm,num_tokens,accuracy\n"
    (ran.root / "plots/finetune/library_training.csv").write_text(columns)
    (ran.root / "plots/finetune/library_validation.csv").write_text("step,epoch,validation_score\n0,0.0,0.5\n")
    (ran.root / "plots/finetune/library.csv").write_text("actual,predicted\n")
    (ran.root / "plots/finetune/library_classes.csv").write_text("class,f1\n")
    page = build(ran.run)
    assert page.faults == ()
    assert "loss in training" not in page.html, "kinds without training have no curve"
    assert [words for words in ("validation score", "Confusion") if words in chapter(page.html, "tasks")] == []
