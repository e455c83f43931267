"""What the README says is true: its table is dvc.yaml's, and each of its commands is run somewhere."""

import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML

PROJECT = Path(__file__).parents[2]
README = (PROJECT / "README.md").read_text(encoding="utf-8")
BEGIN, END = "<!-- stages: generated from `desc:` in dvc.yaml -->", "<!-- /stages -->"


def stage_table() -> str:
    graph = YAML(typ="safe").load((PROJECT / "dvc.yaml").read_text(encoding="utf-8"))
    lines = ["| stage | what it does |", "|---|---|"]
    for name, stage in graph["stages"].items():
        shown = f"{name}@…" if "foreach" in stage or "matrix" in stage else name
        lines.append(f"| `{shown}` | {stage.get('do', stage)['desc']} |")
    return "\n".join(lines)


def commands() -> list[str]:
    """Every line of every `sh` block."""
    blocks = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line and not line.startswith("#")]


WHERE_RUN = {
    "make run": (".ci/run", "make run"),
    "make test": (".ci/run", "make test"),
}
"""Command → the file that runs it, and the text by which one finds it there."""


def test_the_stage_table_is_that_of_the_stage_graph() -> None:
    table = README.partition(BEGIN)[2].partition(END)[0].strip()
    assert table == stage_table(), f"put this between the two markers:\n{stage_table()}"


@pytest.mark.parametrize("command", commands())
def test_every_command_in_the_readme_is_run_by_a_test_or_by_ci(command: str) -> None:
    assert command in WHERE_RUN, f"add `{command}` to .ci/run or to a test, and name the place here"
    place, text = WHERE_RUN[command]
    assert text in (PROJECT / place).read_text(encoding="utf-8")
