"""The page is complete, names what is missing, and shows no text as HTML."""

import re
import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from markupsafe import escape

from clozeline.records.package import Measured, read_manifest
from clozeline.records.record import Limit, Lock
from clozeline.reporting.page import SECTIONS, build
from clozeline.system.errors import TransientError
from clozeline.tracking.past_runs import PastRun, PastRuns
from tests.make.packages import rung_of
from tests.reporting.conftest import EXAMPLES, HARM, HEADLINE, METRICS, Ran, write_json

STARTED = datetime.fromisoformat("2026-11-20T18:03:00+00:00")


class Tags(HTMLParser):
    """Parser that fails on wrongly nested tags, and collects the ids of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value for name, value in attrs if name == "id" and value]
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def ids_in(html: str) -> list[str]:
    tags = Tags()
    tags.feed(html)
    assert tags.open == []
    return tags.ids


def text_of(html: str) -> str:
    """Return the text of `html` without tags, with single spaces."""
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def chapter(html: str, name: str) -> str:
    return html.partition(f'<div id="{name}">')[2].partition("</section>")[0]


def top(html: str) -> str:
    """Return the part of the page before the chapters."""
    return html.partition("<h1>")[2].partition("<section>")[0]


def test_the_page_is_complete_and_safe_and_the_same_for_the_same_files(ran: Ran) -> None:
    page = build(ran.run)
    html = page.html
    assert page.faults == ()
    assert ids_in(html) == [section.id for section in SECTIONS]
    assert html.count("<h1>") == 1
    assert not any(words in html for words in ('class="notice"', "nothing to show", "<script"))
    assert html.count("&lt;script&gt;alert(") > 10  # labels, words, texts, reasons, names of methods
    assert HARM.replace("'", "&#39;").replace("<", "&lt;").replace(">", "&gt;") in html
    assert "default-src &#39;none&#39;" in html
    assert not re.search(r'\b(src|href)="(?!#)|url\(|@import', html), "the page loads nothing"
    assert build(ran.run).html == html
    for name, words in (
        ("encoder", ["perplexity 34.60 32.50 – 36.90 444.3", "top-1 39.2 % 38.4 % – 40.1 % 6.0 %"]),
        ("gates", ["clozeline-encoder version 3, now candidate", "INT8 agrees with fp32 0.963 at least 0.96 ✓ passed"]),
        ("gates", ["perplexity of the unigram baseline / of the encoder 1.500 at least 2 ✗ failed"]),
        ("lineage", ["✓ All", f"raw.txt , a source, md5 {'a' * 32}", f"{'e' * 40} , with uncommitted changes"]),
    ):
        assert [it for it in words if it not in text_of(chapter(html, name))] == []
    way = "dist/encoder , made by export@encoder.*data/clean , made by preprocess.*raw.txt , a source"
    assert re.search(way, text_of(chapter(html, "lineage")))


LIBRARY = METRICS["metrics/finetune/library.json"]
RECALLS = {"recall": 0.38, "baseline_bm25_recall": 0.587, "hybrid_recall": 0.618, "contaminated_fraction": 0.034}
SPANS = {"f1": 0.7, "f1_low": 0.65, "f1_high": 0.75, "exact_match": 0.6, "no_answer_f1": 0.5, "num_test": 3000}
ANSWERS = {"baseline_nearest_sentence_f1": 0.2, "answers": {"num_misplaced": 4, "empty": 0}}
DROPPED = {"num_read": 63, "num_used": 60, "without_score": 2, "twice": 1}
TRAINED = {
    "records": DROPPED,
    "first_places": {"without_score": f"labels/sts {HARM}.tsv, line 61"},
    "over_seeds": {"num_seeds": 5, "best_seed": 7, "mean": 0.79, "deviation": 0.004, "lowest": 0.785, "highest": 0.795},
    "learning_rate": 0.00015,
    "rate_scores": {"5e-05": 0.58, "0.00015": 0.6104, "0.05": "NaN"},
}
COMPARED = {
    "without_near_duplicates": {**HEADLINE, "value": 0.701, "low": 0.69, "high": 0.71, "baseline_value": 0.702},
    "beside": [{"name": "a probe", "value": 0.431}],
    "lead_low": -0.0213,
    "lead_high": 0.004,
}
NO_BETTER = "✗ no better than"


@pytest.mark.parametrize(
    ("figures", "headline", "told", "untold"),
    [
        ({}, {}, ["fine-tuned encoder"], [NO_BETTER, "zero-shot"]),
        ({}, {"baseline_value": 0.796}, [f"{NO_BETTER} TF-IDF {HARM}"], []),
        (
            {"only_answer": "numpy"},
            {"trivial_value": 0.9, "method": "zero-shot encoder"},
            [f"{NO_BETTER} largest class", "✗ says `numpy` to every item of the test set"],
            ["fine-tuned encoder"],
        ),
        (
            SPANS | ANSWERS | {"macro_f1": None, "records": None, "baseline_tfidf_macro_f1": None},
            {},
            [
                "figure fine-tuned encoder, 95 % interval nearest sentence by TF-IDF no answer to anything",
                "F1 70.0 % 65.0 % – 75.0 % 20.0 % 50.0 % test 3,000 exact match 60.0 %",
                "Of the answers: misplaced 4.",
            ],
            [],
        ),
        (
            TRAINED,
            COMPARED,
            [
                f"without score 2 (first: labels/sts {HARM}.tsv, line 61), twice 1.",
                "Trained from 5 seeds: accuracy 79.0 % ± 0.4 %",
                "the preferred one first: 5e-05: 0.58, 0.00015: 0.6104, 0.05: diverged.",
                f"Difference to TF-IDF {HARM}: -2.1 points to +0.4 points (95 %, paired by test item).",
                "Without test items that are near-duplicates of training items: 70.1 % (69.0 % – 71.0 %)",
                f"{NO_BETTER} TF-IDF {HARM}",
            ],
            ["first places", "Of the over seeds"],
        ),
        (RECALLS, {"metric": "spearman"}, ["0.796 (0.78 – 0.812)", "recall 38.0 % 61.8 % – 58.7 %"], ["79.6"]),
    ],
)
def test_the_chapter_of_a_task_shows_its_figures_and_faults(
    ran: Ran, figures: Mapping[str, Any], headline: Mapping[str, Any], told: Sequence[str], untold: Sequence[str]
) -> None:
    changed = {**LIBRARY, **figures, "headline": {**HEADLINE, **headline}}
    write_json(ran.root / "metrics/finetune/library.json", {key: it for key, it in changed.items() if it is not None})
    html = build(ran.run).html
    text = text_of(chapter(html, "tasks"))
    assert [words for words in told if str(escape(words)) not in text] == []
    assert [words for words in untold if words in text] == []
    assert all(escape(words) in top(html) for words in told if words.startswith("✗"))


@pytest.mark.parametrize(
    ("path", "name", "stage"),
    [
        ("metrics/evaluate.json", "encoder", "evaluate"),
        ("plots/evaluate/place.csv", "encoder", "evaluate"),
        ("reports/examples/examples.json", "examples", "evaluate"),
        ("metrics/finetune/library.json", "tasks", "finetune@library"),
        ("metrics/export/library.json", "packages", "export@library"),
        ("plots/pretrain.csv", "training", "pretrain"),
    ],
)
def test_a_chapter_with_a_missing_file_names_the_command_and_the_others_are_complete(
    ran: Ran, path: str, name: str, stage: str
) -> None:
    whole = build(ran.run)
    (ran.root / path).unlink()
    page = build(ran.run)
    ids_in(page.html)
    told = text_of(chapter(page.html, name))
    assert told.count(f"{path}, which stage {stage} writes, is missing.") == 1
    assert f"<code>dvc repro {stage}</code>" in page.html
    assert f"{path}," in {fault.problem.split()[0] for fault in page.faults}
    assert all(chapter(page.html, other) == chapter(whole.html, other) for other in ("machine", "text"))


def test_a_damaged_file_is_named_with_its_fault(ran: Ran) -> None:
    for path, content, told in (
        ("metrics/evaluate.json", '{"perplexity": ', "metrics/evaluate.json cannot be read"),
        ("metrics/finetune/library.json", '{"headline": {"metric": "f1"}}', "headline.value: Field required"),
        ("reports/examples/examples.json", '[{"original": 5}]', "0.original: Input should be a valid string"),
        ("plots/evaluate/place.csv", "a,b\n1,2\n", "no column place_from"),
        ("plots/pretrain_validation.csv", "step,loss,accuracy\nx,y,z\n", ""),
    ):
        (ran.root / path).write_text(content)
        html = build(ran.run).html
        ids_in(html)
        assert told in text_of(html)


def test_an_empty_folder_gives_a_page_that_says_what_to_run(tmp_path: Path, ran: Ran) -> None:
    root = tmp_path / "empty"
    root.mkdir()
    shutil.copy(ran.root / "params.yaml", root)
    page = build(Ran(root).with_run(released=lambda package: None))
    ids_in(page.html)
    assert "dist/encoder is not released: " in text_of(page.html)
    assert "To do: run <code>clozeline release</code>." in page.html
    assert len(page.faults) > 8


def test_figures_that_do_not_match_dvc_lock_and_a_curve_of_another_run_are_named(ran: Ran) -> None:
    (ran.root / "plots/timing/pretrain.csv").write_text("step,tokens_per_second\n25,9000\n50,9100\n")
    assert "The curve is from another run, which ended at step 50." in text_of(chapter(build(ran.run).html, "training"))
    write_json(ran.root / "metrics/evaluate.json", {**METRICS["metrics/evaluate.json"], "perplexity": 1.0})
    params = ran.root / "params.yaml"
    params.write_text(params.read_text().replace("min_characters: 60", "min_characters: 61"))
    told = text_of(chapter(build(ran.run).html, "lineage"))
    assert "metrics/evaluate.json differs from its hash in dvc.lock" in told
    assert "preprocess.min_characters in params.yaml has changed since the stages ran" in told
    assert told.count("has changed since the stages ran") == 1


def test_every_tried_scheme_has_a_row(ran: Ran) -> None:
    manifest = read_manifest(ran.root / "dist/encoder")
    scheme = manifest.quantization
    assert scheme is not None
    failed, passed = (Limit.at_least("int8_agreement", given, 0.96) for given in (0.9, 0.97))
    figures = {"metric": "masked-LM accuracy", "fp32_metric": 0.35, "int8_metric": 0.3, "size_bytes": 1500000}
    measured = Measured(value=0.9, low=0.88, high=0.92, num_items=500, num_texts=400)
    rung = rung_of(scheme, **figures, checks=(failed,)).model_copy(update={"agreement": measured})
    fixed = {"static_activations": ("h", "mlp"), "static_ratio": 2.41, "smoothed_activations": ("mlp",)}
    passing = {"checks": (passed,), "size_bytes": 1600000}
    ladder = (
        rung,
        rung.model_copy(update=passing),
        rung.model_copy(update={"scheme": scheme.model_copy(update=fixed)}),
    )
    manifest.model_copy(update={"ladder": ladder}).write(ran.root / "dist/encoder/manifest.json")
    told = text_of(chapter(build(ran.run).html, "packages"))
    first = "1 weights int7 per column.* 1.50 MB 90.0 % \\(88.0 % – 92.0 %\\) masked-LM accuracy: 35.0 % → 30.0 %"
    assert re.search(first + " ✗ int8_agreement is 0.9000, at least 0.96: NO 2 ", told)
    assert re.search("1.60 MB .* ✓ 1 passed, served 3 ", told)
    assert re.search(r"; 2 of 9 activations with a fixed scale \(ratios up to 2.41, 1 smoothed\)", told)


def test_each_hidden_word_is_shown_in_its_place_and_marked_by_its_rank(ran: Ran) -> None:
    def cloze(html: str) -> str:
        (found,) = re.findall(r'<p class="cloze">(.*?)</p>', html)
        return re.sub(r"<sup>\d+</sup>", "", found)

    html = build(ran.run).html
    assert cloze(html).startswith('the <mark class="hit">cat</mark> sat <mark class="miss">on</mark> &lt;script')
    assert "2 words: 1 right at the first guess, 1 among the first five" in html
    causal = [{**EXAMPLES[0], "masked": EXAMPLES[0]["original"]}]
    write_json(ran.root / "reports/examples/examples.json", causal)
    assert cloze(build(ran.run).html).startswith("the cat sat on &lt;script")


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
