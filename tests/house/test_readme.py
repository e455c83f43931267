"""What the README says is true: its table is dvc.yaml's, and each of its commands is run somewhere."""

import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from clozeline.params import Params
from clozeline.tasks.kinds import KINDS

PROJECT = Path(__file__).parents[2]
README = (PROJECT / "README.md").read_text(encoding="utf-8")
BEGIN, END = "<!-- stages: generated from `desc:` in dvc.yaml -->", "<!-- /stages -->"
TASKS = ("<!-- tasks: generated from KINDS in clozeline/tasks/kinds.py -->", "<!-- /tasks -->")


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


def place_of(command: str) -> str:
    """The file that runs it."""
    return ".ci/run" if command.startswith("make ") else ".ci/readme-commands"


def test_the_stage_table_is_that_of_the_stage_graph() -> None:
    table = README.partition(BEGIN)[2].partition(END)[0].strip()
    assert table == stage_table(), f"put this between the two markers:\n{stage_table()}"


def task_table() -> str:
    columns = ("answers", "data", "metric", "reference", "baseline")
    lines = ["| kind | answers | data | metrics | as computed by | beside it |", "|---|---|---|---|---|---|"]
    for kind, row in KINDS.items():
        lines.append(f"| `{kind}` | {' | '.join(getattr(row, column) for column in columns)} |")
    return "\n".join(lines)


def test_the_table_of_tasks_is_that_of_the_kinds() -> None:
    table = README.partition(TASKS[0])[2].partition(TASKS[1])[0].strip()
    assert table == task_table(), f"put this between the two markers:\n{task_table()}"


def laid_over(tree: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`tree` with the lines of `changes`; a key that is not there already is a fault of the README."""
    assert set(changes) <= set(tree)
    changed = {
        key: laid_over(tree[key], value) if isinstance(value, dict) and value else value
        for key, value in changes.items()
    }
    return tree | changed


@pytest.mark.parametrize("without_labels", [False, True])
def test_the_lines_for_own_text_are_those_of_params(without_labels: bool) -> None:
    (lines,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    read = YAML(typ="safe").load
    changed = laid_over(read((PROJECT / "params.yaml").read_text(encoding="utf-8")), read(lines))
    if without_labels:
        assert "write `finetune: {}`, and leave only `encoder: encoder` under\n`export.models`" in README
        changed |= {"finetune": {}, "export": changed["export"] | {"models": {"encoder": "encoder"}}}
    assert Params.model_validate(changed).preprocess.source.kind == "files"


@pytest.mark.parametrize("command", commands())
def test_every_command_in_the_readme_is_run_by_a_test_or_by_ci(command: str) -> None:
    script = (PROJECT / place_of(command)).read_text(encoding="utf-8")
    run = [line.split(" #")[0].partition("|")[0].replace("2>&1", "").strip() for line in script.splitlines()]
    said = [command in (line, line.partition(" PYTEST_ARGS=")[0]) or line.endswith(f" {command}") for line in run]
    assert any(said), f"add it to {place_of(command)}"


def test_the_five_lines_of_python_are_those_that_a_test_runs() -> None:
    """tests/test_api.py runs those of the docstring."""
    told = (PROJECT / "src/clozeline/pretraining/job.py").read_text(encoding="utf-8")
    block = next(block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "read_params" in block)
    assert all(f"    {line}\n" in told for line in block.splitlines() if line)
    assert block in (PROJECT / "docs/pretraining.md").read_text(encoding="utf-8")


def test_the_collator_and_several_machines_are_shown_as_the_docs_show_them() -> None:
    """tests/collator and tests/cli/test_torchrun.py run what is behind them."""
    docs = (PROJECT / "docs/pretraining.md").read_text(encoding="utf-8")
    collator = next(block for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL) if "Collator" in block)
    assert collator in docs
    several = re.findall(r"^CLOZELINE_TORCHRUN=.*$", README, re.MULTILINE)
    assert ["--nnodes" in line for line in several] == [False, True]
    assert all(f"{line}\n" in docs for line in several)


def test_what_the_readme_links_to_is_there() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (PROJECT / target).is_file(), target
