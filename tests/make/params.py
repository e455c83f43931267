"""Copies of params.yaml with a change or with some tasks only, their errors, and the keys that messages name."""

import io
import re
from functools import cache
from pathlib import Path

import pytest
from pydantic import BaseModel
from ruamel.yaml import YAML

from clozeline.params.reading import read_params
from clozeline.params.schema import section_in
from clozeline.system.errors import ParamsError

PROJECT = Path(__file__).parents[2]


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


def write_params(file: Path, *tasks: str) -> Path:
    """Write `file` with only these tasks, their packages and the encoder's package."""
    file.write_text(_params_with(*tasks), encoding="utf-8")
    return file


@cache
def _params_with(*tasks: str) -> str:
    """Text of the file, which takes 0.08 s of processor time because it keeps the comments: made once in a process."""
    yaml = YAML()
    tree = yaml.load((PROJECT / "params.yaml").read_text(encoding="utf-8"))
    packages = tree["export"]["models"]
    tree["finetune"] = {task: tree["finetune"][task] for task in tasks}
    tree["export"]["models"] = {name: packages[name] for name in ("encoder", *tasks)}
    text = io.StringIO()
    yaml.dump(tree, text)
    return text.getvalue()


_NAMED = re.compile(r"`([a-z0-9_.]+)(?:: [^`]+)?`")


def named_in(text: str) -> list[str]:
    """Return each key that stands between backticks as `key` or `key: value`."""
    return _NAMED.findall(text)


def is_knob_of(section: type[BaseModel] | None, key: str) -> bool:
    """Return whether `key`, dotted and relative to `section`, is one of its fields."""
    first, _, rest = key.partition(".")
    if section is None or first not in section.model_fields:
        return False
    return not rest or is_knob_of(section_in(section.model_fields[first].annotation), rest)
