"""Table of the tasks of GLUE: files, columns, labels, metrics. How each is trained is a preset of params.yaml."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from ruamel.yaml import YAML

from clozeline.artifacts.record import Record
from clozeline.errors import ParamsError


class GlueTask(Record):
    """One task; `tasks.yaml` says what the fields mean."""

    name: str
    """Name of its dataset on the hub."""
    title: str
    columns: Mapping[str, str | int]
    label_column: str | int
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    parts: Mapping[str, str] = {"dev": "validation"}
    in_average: bool = True

    @property
    def preset(self) -> str:
        """Name of its preset in params.yaml."""
        return self.name if self.labels else f"{self.name}_together"

    @property
    def has_header(self) -> bool:
        """Whether the official .tsv has one."""
        return isinstance(self.label_column, str)


@cache
def glue_tasks() -> Mapping[str, GlueTask]:
    """Return the tasks by name, in the order of the leaderboard."""
    table = YAML(typ="safe").load(Path(__file__).with_name("tasks.yaml").read_text(encoding="utf-8"))
    return MappingProxyType({name: GlueTask(name=name, **fields) for name, fields in table.items()})


def chosen(names: str | None) -> list[GlueTask]:
    """Return the tasks named in a list with commas; all of them if there is none.

    Raises:
        ParamsError: a name is unknown.
    """
    tasks = glue_tasks()
    if names is None:
        return list(tasks.values())
    wanted = [plain(name) for name in names.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in tasks]
    if unknown or not wanted:
        raise ParamsError(
            "GLUE has no such task",
            given=", ".join(unknown) or "no name",
            expected=f"names with commas between them, of: {', '.join(tasks)}",
            do="write for example `--tasks cola,rte`, or leave --tasks out for all",
        )
    return [tasks[name] for name in tasks if name in wanted]


def plain(name: str) -> str:
    """Return the name of a task or its folder in small letters without signs: `sst2` for `SST-2`."""
    return "".join(sign for sign in name.lower() if sign.isalnum())
