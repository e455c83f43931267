"""Claim: each task of GLUE is read from the official files and from the hub's, with the same rows."""

import json
from pathlib import Path

import pytest

from clozeline.lab.glue_data import GlueTask, found_in, glue_tasks, part_of_texts, write_records
from clozeline.system.errors import DataError
from tests.make.glue_copies import label, texts, write_hub, write_official


def rows_of(folder: Path, task: GlueTask, out: Path, limit: int | None = None) -> dict[str, list[dict[str, object]]]:
    files = found_in(folder, task)
    assert files is not None
    write_records(task, files, out, limit)
    return {
        name: [json.loads(line) for line in (out / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
        for name in ("train", "dev")
    }


@pytest.mark.parametrize("task", glue_tasks().values(), ids=glue_tasks())
def test_official_and_hub_files_give_the_same_rows(task: GlueTask, tmp_path: Path) -> None:
    write_official(tmp_path / "official", [task])
    write_hub(tmp_path / "hub", [task])
    official, of_hub = (rows_of(tmp_path / name, task, tmp_path / "out") for name in ("official", "hub"))
    assert official == of_hub
    first = dict(zip(task.columns, texts(task, "train", 0), strict=True))
    assert official["train"][0] == {**first, "label": label(task, 0), "part": "train"}
    assert [row["part"] for row in official["dev"]] == [part for part in task.parts for _ in range(12)]
    assert part_of_texts(tmp_path / "out", task)[" ".join(texts(task, [*task.parts][-1], 3))] == [*task.parts][-1]


def test_a_limit_takes_the_same_rows_whatever_their_order(tmp_path: Path) -> None:
    task = glue_tasks()["rte"]
    write_official(tmp_path, [task])
    once = rows_of(tmp_path, task, tmp_path / "out", 10)
    assert (len(once["train"]), len(once["dev"])) == (10, 10)
    path = tmp_path / task.title / "train.tsv"
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([header, *reversed(lines)]) + "\n", encoding="utf-8")
    assert rows_of(tmp_path, task, tmp_path / "out", 10) == once


def test_a_missing_task_is_no_error_but_a_missing_part_is(tmp_path: Path) -> None:
    write_official(tmp_path, [glue_tasks()["mnli"]])
    assert found_in(tmp_path, glue_tasks()["rte"]) is None
    (tmp_path / "MNLI" / "dev_mismatched.tsv").unlink()
    with pytest.raises(DataError, match="dev_mismatched"):
        found_in(tmp_path, glue_tasks()["mnli"])


def test_secret_labels_are_refused_with_their_line(tmp_path: Path) -> None:
    task = glue_tasks()["rte"]
    write_official(tmp_path, [task])
    with (tmp_path / task.title / "dev.tsv").open("a", encoding="utf-8") as file:
        file.write("12\tone\tother\t-1\n")
    with pytest.raises(DataError, match=r"dev\.tsv, line 14") as told:
        rows_of(tmp_path, task, tmp_path / "out")
    assert "not_entailment" in str(told.value)


def test_one_short_line_is_left_out_and_many_are_refused(tmp_path: Path) -> None:
    task = glue_tasks()["qqp"]
    write_official(tmp_path, [task])
    path = tmp_path / task.title / "train.tsv"
    with path.open("a", encoding="utf-8") as file:
        file.write("40\tcut\n")
    assert len(rows_of(tmp_path, task, tmp_path / "out")["train"]) == 40
    with path.open("a", encoding="utf-8") as file:
        file.write("41\tcut\n")
    with pytest.raises(DataError, match="lack columns"):
        rows_of(tmp_path, task, tmp_path / "out")
