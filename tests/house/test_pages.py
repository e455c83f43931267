"""README.md and docs/ are true: tables match the code, CI runs the commands, links and paths lead somewhere."""

import re
from collections import Counter

import pytest
from ruamel.yaml import YAML

from clozeline.params.pretraining import laid_over
from clozeline.params.project import Params
from clozeline.params.reading import with_defaults
from clozeline.tasks.kinds import KINDS
from tests.house.test_rooms import FLOORS, PACKAGE, PROJECT, SOURCES, messages_in

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


def test_the_readme_is_short_and_its_lines_for_own_text_are_valid_params() -> None:
    assert len(README.splitlines()) <= MOST_LINES
    (lines,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    read = YAML(typ="safe").load
    changed = laid_over(read(page("params.yaml")), read(lines))
    assert "write `finetune: {}`, and leave only `encoder: encoder` under `export.models`" in " ".join(README.split())
    without_labels = {"finetune": {}, "export": changed["export"] | {"models": {"encoder": "encoder"}}}
    for tree in (changed, changed | without_labels):
        assert Params.model_validate(with_defaults(tree)).preprocess.source.kind == "files"


def test_the_knobs_in_the_table_of_formats_exist_in_params() -> None:
    params = YAML(typ="safe").load(page("params.yaml"))
    known = {*params["preprocess"], *params["preprocess"]["source"]}
    known |= {f"{section}.{key}" for section in ("tokenize", "pretrain") for key in params[section]}
    known |= {f"pretrain.model.{key}" for key in params["pretrain"]["model"]}
    table = README.partition("| Your text |")[2].partition("\n\n")[0]
    named = set(re.findall(r"`([a-z][a-z_.]*)[:`]", table))
    assert len(named) > 10
    assert named - {"line", "file", "corpus.lock"} - {"preprocess.source"} <= known


def test_every_command_of_the_pages_is_run_by_ci() -> None:
    """Each line of each `sh` block: `make` in the first file, others in the second."""
    run = {
        place: [line.split(" #")[0].partition("|")[0].replace("2>&1", "").strip() for line in page(place).splitlines()]
        for place in (".ci/run", ".ci/readme-commands")
    }
    blocks = [block for name in PAGES for block in re.findall(r"```sh\n(.*?)```", page(name), re.DOTALL)]
    commands = {line for block in blocks for line in block.splitlines() if line and not line.startswith("#")}
    missing = [
        f"add `{command}` to {place}"
        for command in sorted(commands)
        if (place := ".ci/run" if command.startswith("make ") else ".ci/readme-commands")
        if not any(
            command in (line, line.partition(" PYTEST_ARGS=")[0]) or line.endswith(f" {command}") for line in run[place]
        )
    ]
    assert missing == []


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", without_code(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def without_code(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def leads_somewhere(name: str, target: str) -> bool:
    path, _, anchor = target.partition("#")
    linked = (PROJECT / name).parent / path if path else PROJECT / name
    return linked.is_file() and (not anchor or anchor in anchors(linked.read_text(encoding="utf-8")))


def test_every_relative_link_leads_to_an_existing_page_and_heading() -> None:
    found = {
        (name, to) for name in LINKED for to in re.findall(r"\]\((?!https?:)([^)\s]+)\)", without_code(page(name)))
    }
    assert [link for link in sorted(found) if not leads_somewhere(*link)] == []


def test_every_page_of_docs_is_in_the_index() -> None:
    index = page("docs/README.md")
    assert [name for name in PAGES if f"({name.removeprefix('docs/')})" not in index and "README" not in name] == []


def test_every_image_is_small_and_used() -> None:
    images = [*(PROJECT / "docs" / "images").iterdir()]
    assert [image.name for image in images if image.stat().st_size > MOST_IMAGE_BYTES] == []
    assert [image.name for image in images if not any(f"images/{image.name})" in page(name) for name in PAGES)] == []


def test_the_messages_quoted_in_troubleshooting_exist_in_the_code() -> None:
    refusals = PACKAGE / "serving" / "refusals.yaml"
    code = "\n".join([*(text for file in SOURCES for text in messages_in(file)), refusals.read_text(encoding="utf-8")])
    quoted = re.findall("“(.+?)”", page("docs/troubleshooting.md"))
    assert len(quoted) > 40
    fragments = {part.strip() for message in quoted for part in message.split("…")}
    assert [part for part in sorted(fragments) if part not in code] == []


ARCHITECTURE = page("docs/architecture.md")
A_PATH = re.compile(r"`([\w/.]+/[\w/.]*|\w+\.(?:py|yaml))`")
# Files and folders that a row of "Where do I add …" names; tests/house/test_size.py limits the rows.
MOST_FILES = 4


def test_the_architecture_names_existing_paths_and_a_few_for_each_usual_change() -> None:
    named = {name for name in A_PATH.findall(ARCHITECTURE) if "<" not in name}
    assert [name for name in named if not any((folder / name).exists() for folder in (PROJECT, PACKAGE))] == []
    table = ARCHITECTURE.partition("## Where do I add …")[2].partition("\n## ")[0]
    _, *rows = (row for row in table.splitlines() if row.startswith("| "))
    assert rows
    assert [row for row in rows if not 1 <= len(set(A_PATH.findall(row))) <= MOST_FILES] == []


def test_the_architecture_lists_every_room_in_floor_order() -> None:
    table = ARCHITECTURE.partition("## The rooms, from the roof down")[2].partition("\n## ")[0]
    told = [re.findall(r"`(\w+)`", row.split("|")[1]) for row in table.splitlines() if row.startswith("| `")]
    floor_of = {room: place for place, floor in enumerate(FLOORS) for room in floor}
    assert {room for row in told for room in row} == set(floor_of) - {"errors", "progress", "workspace"}
    places = [floor_of[row[0]] for row in told]
    assert places == sorted(places)


def test_the_architecture_names_every_section_with_individually_listed_knobs() -> None:
    stages = YAML(typ="safe").load(page("dvc.yaml"))["stages"].values()
    files = [file for stage in stages for file in stage.get("do", stage).get("params", [])]
    listed = [name for file in files for knobs in file.values() for name in knobs]
    sections = [name.rpartition(".")[0] for name in listed if "." in name and "$" not in name]
    one_by_one = {section for section, num_knobs in Counter(sections).items() if num_knobs > 1}
    rule = ARCHITECTURE.partition("2. **`dvc.yaml`**")[2].partition(" one by one")[0]
    assert set(re.findall(r"`([\w.]+)`", rule)) - {"snapshot"} == one_by_one
