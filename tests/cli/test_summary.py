"""The final tables have every figure with its baseline, in 80 columns, and end with the next command to type."""

import io
import json
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

LATENCY = Latency(2.0, 1.0, 40.0, 20.0, 32, 1)
MADE = Decision(outcome="promoted", model="clozeline-encoder", version="3", served="int8")
RELEASES = [Release(package="encoder", latency=LATENCY, **dict(MADE))]
STAGES = [StageResult("preprocess", "executed", 12.34), StageResult("tokenize", "restored", 1.0)]


@pytest.fixture
def project(tmp_path: Path) -> Workspace:
    write_metrics(tmp_path)
    write_params(tmp_path / "params.yaml", "library")
    return Workspace(tmp_path)


@pytest.fixture
def params(project: Workspace) -> Params:
    return read_params(project.root / "params.yaml")


def change(file: Path, **changes: object) -> None:
    """Change figures in a metric file, and those of its headline if it has one; None removes a figure."""
    told = json.loads(file.read_text())
    headline = {key: changes.get(key, value) for key, value in told.get("headline", {}).items()}
    changed = told | changes | ({"headline": headline} if headline else {})
    file.write_text(json.dumps({key: value for key, value in changed.items() if value is not None}))


def shown(table: RenderableType) -> str:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


def rows(table: RenderableType) -> list[list[str]]:
    lines = [line for line in shown(table).splitlines() if line.startswith("│")]
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def test_each_table_has_its_figures_beside_what_they_are_compared_with(project: Workspace, params: Params) -> None:
    figures = summary.read_figures(project, params)
    assert rows(summary.stage_table(STAGES, 20.0)) == [
        ["preprocess", "executed", "12.3"],
        ["tokenize", "restored", "1.0"],
        ["the whole command", "", "20.0"],
    ]
    assert rows(summary.encoder_table(figures)) == [
        ["perplexity", "148.4", "900.0"],
        ["top-1", "30.0%", "5.0%"],
        ["top-5", "50.0%", "10.0%"],
    ]
    assert rows(summary.package_table(figures, RELEASES)) == [
        ["dist/encoder", "0.0 → 0.0", "99.0%", "2.0 → 1.0", "40.0 → 20.0", "int8"],
        ["dist/library", "0.0 → 0.0", "99.0%", "", "", "int8"],
    ]


@pytest.mark.parametrize(
    ("changed", "row", "fault"),
    [
        ({}, ["accuracy", "80.0%", "78.0%-82.0%", "70.0%", "10.0%"], ""),
        ({"value": 0.7}, ["accuracy", "✗ 70.0%"], "no better than TF-IDF + logistic regression"),
        ({"only_answer": "numpy"}, ["accuracy", "✗ 80.0%"], "says `numpy` to every item of the test set"),
    ],
)
def test_a_task_is_shown_with_its_baselines_and_marked_if_it_is_no_better(
    project: Workspace, params: Params, changed: dict[str, object], row: list[str], fault: str
) -> None:
    change(project.root / "metrics/finetune/library.json", **changed)
    table = summary.task_table(summary.read_figures(project, params))
    assert rows(table)[0][: len(row) + 1] == ["library", *row]
    assert (f"✗ library: {fault}" in shown(table)) == bool(fault)


def test_a_package_served_as_fp32_and_a_version_that_is_held_say_why(
    project: Workspace, params: Params, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_int8 = {"served": "fp32", "fp32_size_bytes": 4_000_000, "int8_size_bytes": None, "int8_agreement": None}
    change(project.root / "metrics/export/encoder.json", **without_int8)
    monkeypatch.setattr(summary, "version_table", lambda workspace, releases: "versions")
    latency = Latency(2.0, None, 40.0, None, 32, 1)
    made = RELEASES[0].model_copy(update={"latency": latency, "served": "fp32", "why_fp32": "no INT8 scheme passed"})
    (encoder, _) = rows(summary.package_table(summary.read_figures(project, params), [made]))
    assert encoder == ["dist/encoder", "4.0 → -", "none passed", "2.0 → -", "40.0 → -", "fp32"]
    reason = "measured on other text: `clozeline release --accept` promotes it"
    summary.show_releases(project, [made.model_copy(update={"outcome": "held", "reason": reason}), *RELEASES])
    assert capsys.readouterr().out.endswith(f"versions\nheld: {reason}\nfp32 is served: no INT8 scheme passed\n")


QUESTIONS = {
    ("python-docs", "mlm"): 'fill "Compute the [MASK] deviation along the given axis."',
    ("files", "mlm"): 'fill "A sentence of yours with a [MASK] in it."',
    ("files", "clm"): 'complete "The beginning of a sentence of yours"',
}


def test_the_suggested_question_fits_the_text_and_the_models(params: Params) -> None:
    for (kind, objective), question in QUESTIONS.items():
        source = params.preprocess.source.model_copy(update={"kind": kind})
        preprocess = params.preprocess.model_copy(update={"source": source})
        pretrain = params.pretrain.model_copy(update={"objective": objective})
        asked = params.model_copy(update={"preprocess": preprocess, "pretrain": pretrain})
        assert summary._question(asked) == question
    export = params.export.model_copy(update={"models": {"books": "finetuned/it"}})
    for changes, second in (({}, ""), ({"second_field": "other"}, ' --with "Another one."')):
        tasks = {"it": params.finetune["library"].model_copy(update=changes)}
        alone = params.model_copy(update={"export": export, "finetune": tasks})
        assert summary._question(alone) == f'classify "A sentence of yours."{second} --model dist/books'


def test_a_metric_file_that_is_missing_or_lacks_a_figure_is_named(project: Workspace, params: Params) -> None:
    path = project.root / "metrics/evaluate.json"
    path.write_text('{"perplexity": 1.0}')
    with pytest.raises(ArtifactError, match=r"evaluate\.json.*loss_nats_per_token"):
        summary.read_figures(project, params)
    path.unlink()
    with pytest.raises(ArtifactError, match=r"evaluate\.json"):
        summary.read_figures(project, params)


def test_next_commands_start_as_the_command_was_typed_and_without_tasks_no_table_is_shown(
    project: Workspace, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_params(project.root / "params.yaml")
    monkeypatch.chdir(project.root)
    for typed in (".venv/bin/clozeline", f"{project.root}/.venv/bin/clozeline"):
        monkeypatch.setattr("sys.argv", [typed, "run"])
        summary.show(project, [], [], seconds=1.0)
        told = capsys.readouterr().out
        assert "\n  .venv/bin/clozeline fill " in told
        assert "Encoder, on the whole validation set" in told
        assert "Tasks" not in told
