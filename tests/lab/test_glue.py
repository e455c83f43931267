"""Claim: a run of GLUE trains what is there, keeps what is finished, and names what is missing;
official files and the hub's give the same rows.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from clozeline.cli import app
from clozeline.lab import glue as running
from clozeline.lab.glue import TaskFigures, Trained, average_of, figures_of, summary
from clozeline.lab.glue_data import GlueTask, chosen, found_in, glue_tasks, part_of_texts, write_records
from clozeline.records.finetune.statistics import Interval
from clozeline.system.errors import ArtifactError, DataError, ParamsError
from tests.make.glue_copies import label, texts, write_hub, write_official

SETTINGS = ("epochs=1", "max_length=24", "num_threads=1", "optimizer.learning_rate=0.01")
SMALL = [word for setting in SETTINGS for word in ("--set", setting)]


@pytest.fixture(autouse=True)
def outside_a_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def glue(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["glue", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_tasks_are_trained_once_and_missing_ones_are_named(small_encoder: Path, tmp_path, monkeypatch) -> None:
    write_official(tmp_path / "glue", [glue_tasks()["mnli"], glue_tasks()["stsb"]])
    asked = ("glue", "-m", small_encoder, *SMALL)
    found = json.loads(glue(*asked, "--json"))
    metrics = {"stsb": {"pearson", "spearman"}, "mnli": {"dev_matched accuracy", "dev_mismatched accuracy"}}
    assert {task["task"]: set(task["metrics"]) for task in found["tasks"]} == metrics
    assert [(task["task"], task["num_dev"]) for task in found["tasks"]] == [("stsb", 12), ("mnli", 24)]
    assert found["missing"] == ["cola", "sst2", "mrpc", "qqp", "qnli", "rte"]
    assert found["average"] is None
    (written,) = (tmp_path / "work/glue").glob("*/glue.json")
    assert json.loads(written.read_text()) == found
    assert not list((tmp_path / "work/glue/training").rglob("*.pt")), "checkpoints of finished trainings"
    monkeypatch.setattr(running, "train_each", lambda *_: pytest.fail("trained again"))
    assert "No GLUE average: CoLA, SST-2, MRPC, QQP, QNLI, RTE missing." in glue(*asked)
    with pytest.raises(pytest.fail.Exception, match="trained again"):
        glue(*asked, "--tasks", "stsb", "--seeds", "2")


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ("glue -m MODEL --tasks cola,rte", DataError, "lacks cola"),
        ("glue", ArtifactError, "models/encoder"),
        ("glue -m MODEL --set num_seeds=3", ParamsError, "num_seeds"),
        ("glue -m MODEL --tasks rte,axb", ParamsError, "axb"),
    ],
)
def test_faults_are_told_before_any_training(arguments, kind, words: str, small_encoder, monkeypatch) -> None:
    monkeypatch.setattr(running, "trained", lambda *_: pytest.fail("trained"))
    write_official(Path("glue"), [glue_tasks()["rte"]])
    with pytest.raises(kind, match=words):
        glue(*arguments.replace("MODEL", str(small_encoder)).split())


@pytest.mark.parametrize(
    ("arguments", "rate"),
    [
        ("-m MODEL --set optimizer.weight_decay=0.0", 5e-5),
        ("", 2e-3),
        ("-m MODEL --set optimizer.learning_rate=0.1", 0.1),
    ],
)
def test_another_model_than_ours_gets_the_rate_of_published_ones(arguments, rate, small_encoder, monkeypatch) -> None:
    def stop(_task: object, params: object, *_: object) -> None:
        raise InterruptedError(params.optimizer.learning_rate)  # type: ignore[attr-defined]

    monkeypatch.setattr(running, "trained", stop)
    write_official(Path("glue"), chosen("rte"))
    Path("models").mkdir()
    Path("models/encoder").symlink_to(small_encoder)
    with pytest.raises(InterruptedError) as stopped:
        glue("glue", *arguments.replace("MODEL", str(small_encoder)).split())
    assert stopped.value.args == (rate,)


# Row of BERT-large on the leaderboard (gluebenchmark.com), whose score is 80.5.
BERT_LARGE = {
    "cola": (60.5,),
    "sst2": (94.9,),
    "mrpc": (89.3, 85.4),
    "stsb": (87.6, 86.5),
    "qqp": (72.1, 89.3),
    "mnli": (86.7, 85.9),
    "qnli": (92.7,),
    "rte": (70.1,),
    "wnli": (65.1,),
}


def measured(name: str, *scores: float) -> TaskFigures:
    score = sum(scores) / len(scores)
    return TaskFigures(
        task=name,
        title=glue_tasks()[name].title,
        metrics={str(place): value for place, value in enumerate(scores)},
        score=score,
        score_of_seeds=(score - 1, score + 1),
        over_seeds=None,
        over_rows=Interval(low=score - 3, high=score + 3),
        num_train=100,
        num_dev=100,
    )


ROW = [measured(name, *scores) for name, scores in BERT_LARGE.items()]


def test_the_average_with_wnli_is_that_of_the_leaderboard() -> None:
    found = summary("bert", [1, 2], None, ROW)
    average = found.average
    assert average is not None
    assert found.average_with_wnli is not None
    assert found.average_with_wnli.score == pytest.approx(80.5, abs=0.05)
    assert "wnli" not in average.tasks
    assert average.score == pytest.approx(sum(it.score for it in ROW[:-1]) / 8)
    assert average.over_rows.high - average.score == pytest.approx(3 / np.sqrt(8))
    assert average.over_seeds is not None
    assert average.over_seeds.high - average.score == pytest.approx(12.706, abs=0.001), "t of 1, s = √2"

    part, short = summary("bert", [1, 2], None, ROW[1:]), summary("bert", [1, 2], 100, ROW)
    assert (part.missing, part.average, short.average) == (("cola",), None, None)
    assert part.mean_of_measured is not None
    assert part.mean_of_measured.score == pytest.approx(average_of(ROW[1:-1]).score), "without WNLI"


def figures(task: str, parts: list[str], right: list[float], *of_seeds: list[float]) -> TaskFigures:
    answered = [Trained(parts=parts, right=right, answers=answers, num_train=50) for answers in of_seeds]
    return figures_of(glue_tasks()[task], answered)


def test_two_metrics_and_two_parts_count_with_their_mean_and_constant_answers_do_not_correlate() -> None:
    given = ([0, 1, 1, 0, 1, 1.0], [0, 1, 0, 0, 1, 1.0], [1, 1, 1, 0, 1, 1.0])
    mrpc = figures("mrpc", ["dev"] * 6, *given)
    assert (mrpc.num_train, mrpc.num_dev) == (50, 6)
    assert mrpc.metrics == pytest.approx({"f1": (6 / 7 + 8 / 9) / 2, "accuracy": 5 / 6})
    assert mrpc.score == pytest.approx(sum(mrpc.metrics.values()) / 2)
    assert mrpc.over_rows.low < mrpc.score <= mrpc.over_rows.high
    mnli = figures("mnli", ["dev_matched"] * 2 + ["dev_mismatched"] * 4, *given)
    assert mnli.metrics == pytest.approx({"dev_matched accuracy": 3 / 4, "dev_mismatched accuracy": 7 / 8})
    assert mnli.score_of_seeds == pytest.approx(((1 + 3 / 4) / 2, (1 / 2 + 1) / 2))
    assert figures("stsb", ["dev"] * 4, [0, 1, 2, 3.0], [1.0] * 4).score == 0


def rows_of(folder: Path, name: str, limit: int | None = None) -> dict[str, list[dict[str, Any]]]:
    task = glue_tasks()[name]
    files = found_in(folder, task)
    assert files is not None
    write_records(task, files, folder / "out", limit)
    lines = {part: (folder / f"out/{part}.jsonl").read_text(encoding="utf-8") for part in ("train", "dev")}
    return {part: [json.loads(line) for line in of_part.splitlines()] for part, of_part in lines.items()}


@pytest.mark.parametrize("task", glue_tasks().values(), ids=glue_tasks())
def test_official_and_hub_files_give_the_same_rows(task: GlueTask, tmp_path: Path) -> None:
    write_official(tmp_path / "official", [task])
    write_hub(tmp_path / "hub", [task])
    official, of_hub = (rows_of(tmp_path / name, task.name) for name in ("official", "hub"))
    assert official == of_hub
    first = dict(zip(task.columns, texts(task, "train", 0), strict=True))
    assert official["train"][0] == {**first, "label": label(task, 0), "part": "train"}
    assert [row["part"] for row in official["dev"]] == [part for part in task.parts for _ in range(12)]
    part_of = part_of_texts(tmp_path / "official/out", task)
    assert part_of[" ".join(texts(task, [*task.parts][-1], 3))] == [*task.parts][-1]


def written(folder: Path, name: str, part: str, *more: str) -> Path:
    """Write the official files of a task; return that of a part, which gets more lines."""
    write_official(folder, [glue_tasks()[name]])
    path = folder / glue_tasks()[name].title / f"{part}.tsv"
    with path.open("a", encoding="utf-8") as file:
        file.writelines(more)
    return path


def test_a_limit_takes_the_same_rows_whatever_their_order(tmp_path: Path) -> None:
    path = written(tmp_path, "rte", "train")
    once = rows_of(tmp_path, "rte", 10)
    assert (len(once["train"]), len(once["dev"])) == (10, 10)
    header, *lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join([header, *reversed(lines)]), encoding="utf-8")
    assert rows_of(tmp_path, "rte", 10) == once


def test_missing_parts_secret_labels_and_many_short_lines_are_refused(tmp_path: Path) -> None:
    """A task may be missing, and one line may be short."""
    written(tmp_path, "mnli", "dev_mismatched").unlink()
    assert found_in(tmp_path, glue_tasks()["rte"]) is None
    with pytest.raises(DataError, match="dev_mismatched"):
        found_in(tmp_path, glue_tasks()["mnli"])
    written(tmp_path, "rte", "dev", "12\tone\tother\t-1\n")
    with pytest.raises(DataError, match=r"(?s)dev\.tsv, line 14.*not_entailment"):
        rows_of(tmp_path, "rte")
    written(tmp_path, "qqp", "train", "40\tcut\n")
    assert len(rows_of(tmp_path, "qqp")["train"]) == 40
    written(tmp_path / "many", "qqp", "train", "40\tcut\n", "41\tcut\n")
    with pytest.raises(DataError, match="lack columns"):
        rows_of(tmp_path / "many", "qqp")
