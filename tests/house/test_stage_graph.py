"""dvc.yaml is the only list of stages and paths, and the code agrees with it."""

import ast
import importlib
import inspect
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from clozeline.params.delivery import ExportParams
from clozeline.params.pretraining import PretrainParams
from clozeline.params.project import Params
from clozeline.params.text import SourceParams
from clozeline.pretraining import job
from clozeline.tasks import training as task_training
from tests.house.test_rooms import PACKAGE, PROJECT, imported_by, nodes_of

SOURCE = PROJECT / "src"
# Modules that stages import without having them as deps, because as deps they would re-run everything. The record of a
# stage's own outs is a dep of that stage.
NO_DEPS = {
    "clozeline": "names the Python API, and holds nothing of it",
    "clozeline.params": "every stage reads it; what it reads is a dep by value",
    "clozeline.system": "changes messages, seconds, and where bytes are kept, never outputs: what follows the cores, "
    "follows the machine; the bytes of a table stand in tests/system/test_files.py",
    "clozeline.cluster": "changes which machine computes what; the keys of its ledger are of the code that asks",
    "clozeline.records.clean_text": "its readers depend on data/clean itself; what they read of it stands in "
    "tests/records/test_clean_text.py",
    "clozeline.records.record": "how any record is written, and a figure compared with its limit, stands in "
    "tests/records/test_record.py",
    "clozeline.records.published": "changes what is refused and what is told of a download, never what is opened",
    "clozeline.versions": "finds the last snapshot in DVC's cache; which it is, dvc.lock says",
    "clozeline.tracking": "a side channel that cannot change an output",
}
# Stage → the record of its own outs, if that is a module of NO_DEPS.
OWN_RECORDS = {"preprocess": "clozeline.records.clean_text"}
# Most code deps of one stage, for readers; a stage that needs more shows that the rooms are divided wrongly.
MOST_CODE_DEPS = 8


@cache
def stages() -> dict[str, dict[str, Any]]:
    """Return stage name → body, for a group the body of its `do`; without stage `params`, a command of its own."""
    graph = YAML(typ="safe").load((PROJECT / "dvc.yaml").read_text(encoding="utf-8"))
    return {name: stage.get("do", stage) for name, stage in graph["stages"].items() if name != "params"}


def knobs_of(name: str) -> list[str]:
    """Return the keys of the complete params that a stage depends on."""
    (entry,) = stages()[name]["params"]
    knobs: list[str] = entry["data/params.yaml"]
    return knobs


def file_of(module: str) -> Path | None:
    path = SOURCE / module.replace(".", "/")
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


@cache
def imports_of(file: Path) -> list[str]:
    """Return our modules that `file` imports, lazily or not. `from a import b` also gives a.b if that is a module; the
    string `a.b:name` gives a.b.
    """
    texts = (node.value for node in nodes_of(file) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    names = [*imported_by(file), *(text.partition(":")[0] for text in texts if ":" in text)]
    return [name for name in names if name.split(".")[0] == "clozeline" and file_of(name)]


def all_imports_of(module: str) -> set[str]:
    """Return the modules that `module` imports, directly or not; modules of NO_DEPS are not followed, except for the
    record of a stage's own outs."""
    own = OWN_RECORDS.get(module.rpartition(".")[2])
    found, waiting = set(), [module]
    while waiting:
        name = waiting.pop()
        if name not in found and (name == own or not is_no_dep(name)):
            found.add(name)
            waiting += imports_of(file_of(name))
    return found


def is_no_dep(module: str) -> bool:
    return module == "clozeline" or any(
        module == free or module.startswith(f"{free}.") for free in NO_DEPS if free != "clozeline"
    )


def code_deps_of(name: str) -> list[str]:
    return [dep for dep in stages()[name]["deps"] if dep.startswith("src/")]


def files_of(dep: str) -> list[Path]:
    path = PROJECT / dep
    return [path] if path.is_file() else sorted(path.rglob("[!_]*.py"))


def covers(dep: str, file: Path) -> bool:
    path = PROJECT / dep
    return file == path or path in file.parents


@pytest.mark.parametrize("name", list(stages()))
def test_a_stage_has_all_the_code_that_it_imports_as_deps_few_and_none_idle(name: str) -> None:
    used = {file_of(module) for module in all_imports_of(f"clozeline.stages.{name}")}
    missing = [
        str(file.relative_to(PROJECT))
        for file in used
        if file.name != "__init__.py" and not any(covers(dep, file) for dep in stages()[name]["deps"])
    ]
    assert missing == [], f"add to the deps of {name} in dvc.yaml, or a change there would leave a stale result"
    assert len(code_deps_of(name)) <= MOST_CODE_DEPS
    idle = {str(file.relative_to(PROJECT)) for dep in code_deps_of(name) for file in files_of(dep) if file not in used}
    assert idle == set(), f"{name} would re-run for nothing"


def test_every_module_outside_all_code_deps_is_imported_by_a_stage() -> None:
    modules = {module for name in stages() for module in all_imports_of(f"clozeline.stages.{name}")}
    imported = {f"{other}." for module in modules for other in imports_of(file_of(module))}
    assert [free for free in NO_DEPS if not any(module.startswith(f"{free}.") for module in imported)] == []


def test_editing_a_task_does_not_rerun_pre_training() -> None:
    """Nor does an edit of a room above the tasks: in a real project, pre-training again would cost days."""
    modules = all_imports_of("clozeline.stages.pretrain")
    above = {"tasks", "exporting", "evaluation", "inference", "corpus"}
    assert not {module.split(".")[1] for module in modules} & above
    assert {module for module in modules if module.startswith("clozeline.records.")} == {
        "clozeline.records.reading.tokens",
        "clozeline.records.words.numbers",
    }


OF_EXPORTS = {f"export.{knob}" for knob in ExportParams.model_fields.keys() - {"models"}}
# Stage → the knobs that change its result.
KNOBS = {
    "snapshot": {f"preprocess.source.{knob}" for knob in SourceParams.model_fields.keys() - {"one_document_per"}},
    "preprocess": {"seed", "preprocess"},
    "tokenize": {"tokenize"},
    "pretrain": {"seed", *(f"pretrain.{knob}" for knob in PretrainParams.model_fields.keys() - job.NOT_OF_THE_RESULT)},
    "evaluate": {"seed", "evaluate"},
    "finetune": {"seed", "finetune.${key}"},
    "export": OF_EXPORTS,
    "import": {"imports.${key}", *OF_EXPORTS} - {"export.label_field"},
}


@pytest.mark.parametrize("name", list(stages()))
def test_a_stage_depends_on_the_knobs_that_change_its_result(name: str) -> None:
    assert set(knobs_of(name)) == KNOBS[name]
    run = importlib.import_module(f"clozeline.stages.{name}").run
    assert ("seed" in KNOBS[name]) == ("seed" in inspect.signature(run).parameters)


@pytest.mark.parametrize(("name", "code"), [("pretrain", job.CODE), ("finetune", task_training.CODE)])
def test_checkpoints_are_named_by_the_code_that_their_stage_depends_on(name: str, code: tuple[str, ...]) -> None:
    """With more code, a harmless edit would orphan checkpoints; with less, training would resume from other code's."""
    deps = {dep.removeprefix("src/clozeline/") for dep in code_deps_of(name)}
    assert set(code) == deps - {f"stages/{name}.py"}


def test_each_stage_has_a_file_and_a_section_of_the_params() -> None:
    """Stage `snapshot` takes `preprocess.source`; `import`, a word that no field can have, takes `imports`."""
    assert {file.stem for file in (PACKAGE / "stages").glob("[!_]*.py")} == set(stages())
    others = {"seed", "contract", "recipes", "finetune_defaults", "presets", "imports", "release"}
    assert set(Params.model_fields) == {*stages(), *others} - {"snapshot", "import"}


@pytest.mark.parametrize("name", list(stages()))
def test_a_stage_uses_the_run_cache_and_names_only_declared_paths(name: str) -> None:
    stage = stages()[name]
    assert stage["desc"]
    outs = [*stage.get("outs", []), *stage.get("metrics", []), *stage.get("plots", [])]
    flags = [flag for out in outs if isinstance(out, dict) for options in out.values() for flag in options]
    assert "persist" not in flags
    assert not stage.get("always_changed")
    uncached = [out for out in stage.get("outs", []) if isinstance(out, dict) and {"cache": False} in out.values()]
    assert uncached == [], "only a metric or a plot may stay out of the cache and still be restored: declare it as one"
    declared = [*stage["deps"], *(next(iter(out)) if isinstance(out, dict) else out for out in outs)]
    given = (argument.partition("=")[::2] for argument in stage["cmd"].split()[5:])
    paths = [path for key, path in given if key not in {"task", "work", "timing"}]
    assert [path for path in paths if not any(f"{entry}/".startswith(f"{path}/") for entry in declared)] == []
