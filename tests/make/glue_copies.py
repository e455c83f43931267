"""Made-up copies of GLUE, in the layout of the official archive and in that of the hub."""

import random
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from clozeline.lab.glue_data import GlueTask

# First lines of the official files; CoLA's have none.
HEADERS = {
    "sst2": "sentence\tlabel",
    "mrpc": "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",
    "stsb": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
    "qqp": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
    "mnli": "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse"
    "\tsentence2_parse\tsentence1\tsentence2\tlabel1\tgold_label",
    "qnli": "index\tquestion\tsentence\tlabel",
    "rte": "index\tsentence1\tsentence2\tlabel",
    "wnli": "index\tsentence1\tsentence2\tlabel",
}
# Tasks whose official files have numbers for labels.
NUMBERED = ("cola", "sst2", "mrpc", "qqp", "wnli")
WORDS = ["salt", "oven", "butter", "flour", "mast", "keel", "tide", "rudder", "soil", "seed", "root", '"quoted']


def texts(task: GlueTask, part: str, number: int) -> list[str]:
    draw = random.Random(f"{task.name} {part} {number}")
    return [" ".join(draw.choices(WORDS, k=6)) for _ in task.columns]


def label(task: GlueTask, number: int) -> str | float:
    return task.labels[number % len(task.labels)] if task.labels else float(number % 6)


def official_line(task: GlueTask, part: str, number: int) -> str:
    found = label(task, number)
    shown = str(task.labels.index(str(found))) if task.name in NUMBERED else str(found)
    if not task.has_header:
        return "\t".join(["gj04", shown, "*" if shown == "0" else "", *texts(task, part, number)])
    cells = dict(zip(map(str, task.columns.values()), texts(task, part, number), strict=True)) | {
        str(task.label_column): shown
    }
    return "\t".join(cells.get(name.removeprefix("\ufeff"), "x") for name in HEADERS[task.name].split("\t"))


def write_official(folder: Path, tasks: Iterable[GlueTask], num_train: int = 40, num_dev: int = 12) -> None:
    for task in tasks:
        (folder / task.title).mkdir(parents=True)
        for part, num in {"train": num_train, **dict.fromkeys(task.parts, num_dev)}.items():
            lines = [official_line(task, part, number) for number in range(num)]
            header = [HEADERS[task.name]] if task.has_header else []
            text = "".join(f"{line}\n" for line in [*header, *lines])
            (folder / task.title / f"{part}.tsv").write_text(text, encoding="utf-8")


def write_hub(folder: Path, tasks: Sequence[GlueTask], num_train: int = 40, num_dev: int = 12) -> None:
    for task in tasks:
        (folder / task.name).mkdir(parents=True)
        parts = {"train": "train", **task.parts}
        for part, on_hub in parts.items():
            rows = [
                dict(zip(task.columns, texts(task, part, number), strict=True))
                | {"label": task.labels.index(str(label(task, number))) if task.labels else label(task, number)}
                for number in range(num_train if part == "train" else num_dev)
            ]
            path = folder / task.name / f"{on_hub}-00000-of-00001.parquet"
            pq.write_table(pa.Table.from_pylist([row | {"idx": place} for place, row in enumerate(rows)]), path)
