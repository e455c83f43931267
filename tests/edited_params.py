"""Copies of the project's params.yaml with one change, and the errors that they raise."""

import re
from pathlib import Path

import pytest

from clozeline.params.reading import read_params
from clozeline.system.errors import ParamsError

PROJECT = Path(__file__).parents[1]


def message(path: Path) -> str:
    with pytest.raises(ParamsError) as caught:
        read_params(path)
    return str(caught.value)


def with_values(folder: Path, **values: str) -> Path:
    """A copy of the project's params.yaml; the first key of each name gets this value."""
    text = (PROJECT / "params.yaml").read_text(encoding="utf-8")
    for key, value in values.items():
        text, num_edits = re.subn(rf"(?m)^( +{key}:) \S+", rf"\1 {value}", text, count=1)
        assert num_edits == 1, f"params.yaml has no {key}"
    path = folder / "params.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def with_task(folder: Path, *lines: str) -> Path:
    """A copy of the project's params.yaml with one more task."""
    text = (PROJECT / "params.yaml").read_text(encoding="utf-8")
    task = "\n".join(["  more:", *(f"    {line}" for line in lines)])
    path = folder / "params.yaml"
    path.write_text(text.replace("\nfinetune:\n", f"\nfinetune:\n{task}\n"), encoding="utf-8")
    return path


def without_tasks(path: Path) -> Path:
    """Take every task and every export out of a params.yaml."""
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"(?ms)^finetune:\n.*?(?=^\S)", "finetune: {}\n\n", text)
    text = re.sub(r"(?m)^  models:.*\n(    .*\n)+", "  models: {}\n", text)
    path.write_text(text, encoding="utf-8")
    return path
