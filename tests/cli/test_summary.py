"""The final table has every figure with its baseline, in 80 columns."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from clozeline.cli import summary
from clozeline.flows.pipeline import StageResult
from clozeline.flows.release import Release
from clozeline.inference.latency import Latency
from clozeline.params.project import Params
from clozeline.params.reading import read_params
from clozeline.registry.decisions import Decision
from clozeline.system.errors import ArtifactError
from clozeline.system.workspace import Workspace
from tests.make.params import write_params
from tests.make.projects import write_metrics

PROJECT = Path(__file__).parents[2]
LATENCY = Latency(2.0, 1.0, 40.0, 20.0, 32, 1)
MADE = Decision(outcome="promoted", model="clozeline-encoder", version="3", served="int8")
RELEASES = [Release(package="encoder", latency=LATENCY, **dict(MADE))]


@pytest.fixture
def project(tmp_path: Path) -> Workspace:
    write_metrics(tmp_path)
    write_params(tmp_path / "params.yaml", "library")
    return Workspace(tmp_path)


@pytest.fixture
def params(project: Workspace) -> Params:
    return read_params(project.root / "params.yaml")


def shown(table: RenderableType) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


def rows(table: RenderableType) -> list[list[str]]:
    lines = [line for line in shown(table).splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def test_each_stage_has_its_outcome_and_seconds() -> None:
    stages = [StageResult("preprocess", "executed", 12.34), StageResult("tokenize", "restored", 1.0)]
    assert rows(summary.stage_table(stages, 20.0)) == [
        ["preprocess", "executed", "12.3"],
        ["tokenize", "restored", "1.0"],
        ["the whole command", "", "20.0"],
    ]


def test_the_encoder_is_shown_with_the_unigram_baseline(project: Workspace, params: Params) -> None:
    assert rows(summary.encoder_table(summary.read_figures(project, params))) == [
        ["perplexity", "148.4", "900.0"],
        ["top-1", "30.0%", "5.0%"],
        ["top-5", "50.0%", "10.0%"],
    ]


def test_a_correlation_is_not_shown_in_per_cent(project: Workspace, params: Params) -> None:
    file = project.root / "metrics/finetune/library.json"
    told = json.loads(file.read_text())
    told["headline"]["metric"] = "spearman"
    file.write_text(json.dumps(told))
    assert rows(summary.task_table(summary.read_figures(project, params))) == [
        ["library", "spearman", "0.800", "0.780-0.820", "0.700", "0.100"]
    ]


def test_a_task_is_shown_with_its_baselines(project: Workspace, params: Params) -> None:
    assert rows(summary.task_table(summary.read_figures(project, params))) == [
        ["library", "accuracy", "80.0%", "78.0%-82.0%", "70.0%", "10.0%"]
    ]


@pytest.mark.parametrize(
    ("changed", "cell", "told"),
    [
        ({"value": 0.7}, "✗ 70.0%", "✗ library: no better than TF-IDF + logistic regression"),
        ({"trivial_value": 0.8}, "✗ 80.0%", "✗ library: no better than largest class"),
        ({"only_answer": "numpy"}, "✗ 80.0%", "✗ library: says `numpy` to every item of the test set"),
    ],
)
def test_a_task_no_better_than_a_baseline_or_with_a_constant_answer_is_marked(
    project: Workspace, params: Params, changed: dict[str, object], cell: str, told: str
) -> None:
    file = project.root / "metrics/finetune/library.json"
    figures = json.loads(file.read_text())
    headline = {key: changed.get(key, value) for key, value in figures["headline"].items()}
    file.write_text(json.dumps(figures | changed | {"headline": headline}))
    table = summary.task_table(summary.read_figures(project, params))
    assert rows(table)[0][2] == cell
    assert told in shown(table)


def test_a_package_has_sizes_agreement_and_latency(project: Workspace, params: Params) -> None:
    figures = summary.read_figures(project, params)
    encoder, library = rows(summary.package_table(figures, RELEASES))
    assert encoder == ["dist/encoder", "0.0 → 0.0", "99.0%", "2.0 → 1.0", "40.0 → 20.0", "int8"]
    assert library == ["dist/library", "0.0 → 0.0", "99.0%", "", "", "int8"]


def test_a_package_served_as_fp32_says_so(
    project: Workspace, params: Params, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = project.root / "metrics/export/encoder.json"
    int8 = ("int8_size_bytes", "int8_agreement")
    figures = {key: value for key, value in json.loads(file.read_text()).items() if key not in int8}
    file.write_text(json.dumps(figures | {"served": "fp32", "fp32_size_bytes": 4_000_000}))
    monkeypatch.setattr(summary, "version_table", lambda workspace, releases: "versions")
    latency = Latency(2.0, None, 40.0, None, 32, 1)
    made = replace(RELEASES[0], latency=latency, precision="fp32", why_fp32="no INT8 scheme passed")
    (encoder, _) = rows(summary.package_table(summary.read_figures(project, params), [made]))
    assert encoder == ["dist/encoder", "4.0 → -", "none passed", "2.0 → -", "40.0 → -", "fp32"]
    summary.show_releases(project, [made])
    assert capsys.readouterr().out.endswith("fp32 is served: no INT8 scheme passed\n")


def test_a_version_that_is_held_says_why_and_what_to_do(
    project: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(summary, "version_table", lambda workspace, releases: "versions")
    reason = "measured on other text: `clozeline release --accept` promotes it"
    summary.show_releases(project, [replace(RELEASES[0], outcome="held", reason=reason), *RELEASES])
    assert capsys.readouterr().out.endswith(f"versions\nheld: {reason}\n")


def test_the_suggested_question_fits_the_training_text(params: Params) -> None:
    source = params.preprocess.source.model_copy(update={"kind": "files"})
    own = params.model_copy(update={"preprocess": params.preprocess.model_copy(update={"source": source})})
    assert "[MASK] deviation" in summary._question(params)
    assert "[MASK] deviation" not in summary._question(own)


def test_without_an_encoder_among_the_packages_a_task_is_asked(params: Params) -> None:
    export = params.export.model_copy(update={"models": {"books": "finetuned/library"}})
    alone = params.model_copy(update={"export": export})
    assert summary._question(alone) == 'classify "A text of yours." --model dist/books'


@pytest.mark.parametrize(
    ("task", "changes"), [("docsearch", {"read_together": True}), ("library", {"second_field": "other"})]
)
def test_a_model_that_reads_two_texts_together_is_asked_about_a_pair(
    params: Params, task: str, changes: dict[str, object]
) -> None:
    tasks = {"it": read_params(PROJECT / "params.yaml").finetune[task].model_copy(update=changes)}
    export = params.export.model_copy(update={"models": {"it": "finetuned/it"}})
    alone = params.model_copy(update={"export": export, "finetune": tasks})
    assert summary._question(alone) == 'classify "A text of yours." --with "Another one." --model dist/it'


@pytest.mark.parametrize("kind", ["python-docs", "files"])
def test_the_suggested_question_of_a_causal_model_is_to_continue_a_text(params: Params, kind: str) -> None:
    source = params.preprocess.source.model_copy(update={"kind": kind})
    changed = {
        "preprocess": params.preprocess.model_copy(update={"source": source}),
        "pretrain": params.pretrain.model_copy(update={"objective": "clm"}),
    }
    question = summary._question(params.model_copy(update=changed))
    assert question.startswith('complete "')
    assert "[MASK]" not in question


def test_a_metric_file_that_is_missing_is_named(project: Workspace, params: Params) -> None:
    (project.root / "metrics/finetune/library.json").unlink()
    with pytest.raises(ArtifactError, match=r"finetune/library\.json"):
        summary.read_figures(project, params)


def test_a_metric_file_that_lacks_a_figure_is_named_with_it(project: Workspace, params: Params) -> None:
    file = project.root / "metrics/evaluate.json"
    file.write_text(json.dumps({"perplexity": 1.0}))
    with pytest.raises(ArtifactError) as caught:
        summary.read_figures(project, params)
    assert "evaluate.json" in caught.value.problem
    assert "loss_nats_per_token" in str(caught.value)


def test_without_tasks_no_table_is_shown(project: Workspace, capsys: pytest.CaptureFixture[str]) -> None:
    write_params(project.root / "params.yaml")
    summary.show(project, [], [], seconds=1.0)
    shown = capsys.readouterr().out
    assert "Encoder, on the whole validation set" in shown
    assert "Tasks" not in shown


@pytest.mark.parametrize("typed", [".venv/bin/clozeline", "{here}/.venv/bin/clozeline"])
def test_next_commands_start_as_the_command_was_typed(
    project: Workspace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    monkeypatch.chdir(project.root)
    monkeypatch.setattr("sys.argv", [typed.format(here=project.root), "run"])
    summary.show(project, [], [], seconds=1.0)
    assert "\n  .venv/bin/clozeline fill " in capsys.readouterr().out
