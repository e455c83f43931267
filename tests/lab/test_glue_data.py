"""Claim: each task of GLUE is read from the official files and from the hub's, with the same rows."""

import json
from pathlib import Path
from typing import Any

import pytest

from clozeline.lab.glue_data import GlueTask, found_in, glue_tasks, part_of_texts, write_records
from clozeline.system.errors import DataError
from tests.make.glue_copies import label, texts, write_hub, write_official


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
