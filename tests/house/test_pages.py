"""README.md and docs/ are true: tables match the code, CI or a test runs the commands, links resolve."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from clozeline.params.project import Params
from clozeline.params.reading import with_defaults
from clozeline.tasks.kinds import KINDS
from tests.house.test_rooms import PACKAGE, PROJECT, SOURCES, messages_in

README = (PROJECT / "README.md").read_text(encoding="utf-8")
PAGES = ("README.md", *sorted(f"docs/{path.name}" for path in (PROJECT / "docs").glob("*.md")))
LINKED = (*PAGES, "CHANGELOG.md", "CONTRIBUTING.md", "infra/README.md", "tests/pitfalls.md", "tests/reliability.md")
STAGES = ("<!-- stages: generated from `desc:` in dvc.yaml -->", "<!-- /stages -->")
TASKS = ("<!-- tasks: generated from KINDS in clozeline/tasks/kinds.py -->", "<!-- /tasks -->")
MOST_LINES = 160
MOST_IMAGE_BYTES = 150_000


def page(name: str) -> str:
    return (PROJECT / name).read_text(encoding="utf-8")


def stage_table() -> str:
    lines = ["| stage | what it does |", "|---|---|"]
    for name, stage in YAML(typ="safe").load(page("dvc.yaml"))["stages"].items():
        shown = f"{name}@…" if "do" in stage else name
        lines.append(f"| `{shown}` | {stage.get('do', stage)['desc']} |")
    return "\n".join(lines)


def task_table() -> str:
    columns = ("answers", "data", "metric", "reference", "baseline")
    lines = ["| kind | answers | data | metrics | as computed by | beside it |", "|---|---|---|---|---|---|"]
    lines += [f"| `{kind}` | {' | '.join(getattr(row, name) for name in columns)} |" for kind, row in KINDS.items()]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("name", "markers", "table"),
    [("docs/pipeline.md", STAGES, stage_table()), ("docs/tasks.md", TASKS, task_table())],
)
def test_the_table_of_a_page_matches_the_code(name: str, markers: tuple[str, str], table: str) -> None:
    between = page(name).partition(markers[0])[2].partition(markers[1])[0].strip()
    assert between == table, f"put this between the markers:\n{table}"


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= MOST_LINES


def laid_over(tree: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return `tree` with the values of `changes`; a new key is an error in the README."""
    assert set(changes) <= set(tree)
    changed = {
        key: laid_over(tree[key], value) if isinstance(value, dict) and value else value
        for key, value in changes.items()
    }
    return tree | changed


@pytest.mark.parametrize("without_labels", [False, True])
def test_the_readme_lines_for_own_text_are_valid_params(without_labels: bool) -> None:
    (lines,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    read = YAML(typ="safe").load
    changed = laid_over(read(page("params.yaml")), read(lines))
    if without_labels:
        stated = "write `finetune: {}`, and leave only `encoder: encoder` under `export.models`"
        assert stated in " ".join(README.split())
        changed |= {"finetune": {}, "export": changed["export"] | {"models": {"encoder": "encoder"}}}
    assert Params.model_validate(with_defaults(changed)).preprocess.source.kind == "files"


def test_the_knobs_in_the_table_of_formats_exist_in_params() -> None:
    params = YAML(typ="safe").load(page("params.yaml"))
    known = {*params["preprocess"], *params["preprocess"]["source"]}
    known |= {f"{section}.{key}" for section in ("tokenize", "pretrain") for key in params[section]}
    known |= {f"pretrain.model.{key}" for key in params["pretrain"]["model"]}
    table = README.partition("| Your text |")[2].partition("\n\n")[0]
    named = set(re.findall(r"`([a-z][a-z_.]*)[:`]", table))
    assert len(named) > 10
    assert named - {"line", "file", "corpus.lock"} - {"preprocess.source"} <= known


def commands() -> Iterator[tuple[str, str]]:
    """Yield each line of each `sh` block, with its page."""
    for name in PAGES:
        for block in re.findall(r"```sh\n(.*?)```", page(name), re.DOTALL):
            yield from ((name, line) for line in block.splitlines() if line and not line.startswith("#"))


def place_of(command: str) -> str:
    """Return the name of the CI file that runs the command."""
    return ".ci/run" if command.startswith("make ") else ".ci/readme-commands"


@pytest.mark.parametrize(("name", "command"), sorted(set(commands())))
def test_every_command_of_the_pages_is_run_by_ci(name: str, command: str) -> None:
    script = page(place_of(command))
    run = [line.split(" #")[0].partition("|")[0].replace("2>&1", "").strip() for line in script.splitlines()]
    said = [command in (line, line.partition(" PYTEST_ARGS=")[0]) or line.endswith(f" {command}") for line in run]
    assert any(said), f"{name}: add it to {place_of(command)}"


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    without_code = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", without_code, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def links() -> Iterator[tuple[str, str]]:
    for name in LINKED:
        for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", re.sub(r"```.*?```", "", page(name), flags=re.DOTALL)):
            yield name, target


def leads_somewhere(name: str, target: str) -> bool:
    path, _, anchor = target.partition("#")
    linked = (PROJECT / name).parent / path if path else PROJECT / name
    return linked.is_file() and (not anchor or anchor in anchors(linked.read_text(encoding="utf-8")))


def test_every_relative_link_leads_to_an_existing_page_and_heading() -> None:
    assert [link for link in sorted(set(links())) if not leads_somewhere(*link)] == []


def test_every_page_of_docs_is_in_the_index() -> None:
    index = page("docs/README.md")
    assert [name for name in PAGES if f"({name.removeprefix('docs/')})" not in index and "README" not in name] == []


@pytest.mark.parametrize("image", sorted((PROJECT / "docs" / "images").iterdir()), ids=lambda image: image.name)
def test_every_image_is_small_and_used(image: Path) -> None:
    assert image.stat().st_size <= MOST_IMAGE_BYTES
    assert any(f"images/{image.name})" in page(name) for name in PAGES)


def test_the_messages_quoted_in_troubleshooting_exist_in_the_code() -> None:
    refusals = PACKAGE / "serving" / "refusals.yaml"
    code = "\n".join([*(text for file in SOURCES for text in messages_in(file)), refusals.read_text(encoding="utf-8")])
    quoted = re.findall("“(.+?)”", page("docs/troubleshooting.md"))
    assert len(quoted) > 40
    fragments = {part.strip() for message in quoted for part in message.split("…")}
    assert [part for part in sorted(fragments) if part not in code] == []
