"""Adopts the outputs of an earlier Clozeline: a stage whose code only moved need not run again.

Proven is a stage whose code has the same definitions as before, and imports the same from libraries, in whatever files:
imports of Clozeline's own files, comments and docstrings do not count. Its command, params, other inputs and outputs
have to be those in dvc.lock, which then gets the hashes of the new code. All other stages run again.
"""

import ast
import io
import json
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ruamel.yaml import YAML

from clozeline.records.record import CODE_FOLDER, Lock
from clozeline.system.files import md5_of
from clozeline.versions.project import git, open_project

# Code of every stage in a project that has no checkout: it names the wheel by its hash.
PIN = "requirements.lock"


@dataclass(frozen=True)
class StageCode:
    """The code of all stages in one version of Clozeline."""

    files: Mapping[str, bytes]  # content by path, as in a checkout: `src/clozeline/…`
    graph: Mapping[str, Any]  # content of dvc.yaml, which says which of the files a stage reads
    # Content of the project's requirements.lock; None: a checkout, whose dvc.lock has the hashes of the files.
    pin: bytes | None = None

    @classmethod
    def of_project(cls, root: Path) -> Self | None:
        """Return the code that the project in `root` pins by its wheel; None if there is no wheel."""
        wheel, pin = next((root / "wheels").glob("clozeline-*.whl"), None), root / PIN
        if wheel is None or not pin.is_file():
            return None
        files = {f"{CODE_FOLDER}{path}": content for path, content in _files_in(wheel.read_bytes())}
        return cls(files, _yaml(files[f"{CODE_FOLDER}clozeline/starter/stages.yaml"]), pin.read_bytes())

    @classmethod
    def of_lock(cls, root: Path) -> Self | None:
        """Return the code in the commit that wrote the dvc.lock of a checkout; None outside git."""
        commit = (git(root, "log", "-1", "--format=%H", "--", "dvc.lock") or b"").decode().strip()
        archive = commit and git(root, "archive", "--format=zip", commit, "dvc.yaml", CODE_FOLDER)
        files = dict(_files_in(archive)) if archive else {}
        return cls(files, _yaml(files["dvc.yaml"])) if files else None

    @classmethod
    def of_checkout(cls, root: Path) -> Self:
        """Return the code in the working tree of a checkout."""
        known = (git(root, "ls-files", CODE_FOLDER) or b"").decode().splitlines()
        files = {path: (root / path).read_bytes() for path in known if (root / path).is_file()}
        return cls(files, _yaml((root / "dvc.yaml").read_bytes()))

    @property
    def libraries(self) -> list[str]:
        """What the pin says besides the version of Clozeline, and its wheel."""
        lines = (self.pin or b"").decode().splitlines()
        return [line for line in lines if not line.startswith(("#", "clozeline=="))]

    def deps_of(self, stage: str) -> list[str]:
        """Return what a stage reads in a checkout."""
        entry = self.graph["stages"].get(stage.partition("@")[0], {})
        return [str(dep) for dep in entry.get("do", entry).get("deps", [])]

    def is_code(self, path: str, stage: str) -> bool:
        """Return whether a dependency of a stage is its code alone."""
        is_pin = self.pin is not None and path == PIN and PIN not in self.deps_of(stage)
        return is_pin or path.startswith(CODE_FOLDER)

    def read_by(self, stage: str) -> dict[str, dict[str, bytes]]:
        """Return the files of each code dependency of a stage, by their paths in it; "" for a single file."""
        found: dict[str, dict[str, bytes]] = {dep: {} for dep in self.deps_of(stage) if dep.startswith(CODE_FOLDER)}
        for path, content in self.files.items():
            for dep in found:
                if path == dep or path.startswith(f"{dep}/"):
                    found[dep][path.removeprefix(dep).lstrip("/")] = content
        return found

    def made(self, stage: str, lock: Lock) -> bool:
        """Return whether dvc.lock says that this code made the outputs of a stage."""
        locked = {dep.path: dep.md5 for dep in lock.stages[stage].deps}
        if self.pin is not None:
            return locked.get(PIN) == md5_of(self.pin)
        return {path: md5 for path, md5 in locked.items() if path.startswith(CODE_FOLDER)} == {
            dep: _md5_of(files) for dep, files in self.read_by(stage).items()
        }


def adopt(root: Path, earlier: StageCode, now: StageCode) -> tuple[list[str], list[str]]:
    """Let dvc.lock name the code `now` for the stages that it is proven for; return them, and those that run again.

    Call it after dvc.yaml and the new code are in place.
    """
    from dvc.repo import lock_repo
    from dvc.stage import PipelineStage

    lock, adopted, others = Lock.read(root / "dvc.lock"), [], []
    with open_project(root, waits_for_lock=True) as repo, lock_repo(repo):
        for stage in (one for one in repo.index.stages if isinstance(one, PipelineStage) and one.name in lock.stages):
            changed = [dep for dep in stage.deps if dep.status()]
            if not changed and not stage.changed_stage():
                continue
            paths = [Path(dep.fs_path).relative_to(Path(repo.root_dir)).as_posix() for dep in changed]
            is_only_code = all(now.is_code(path, stage.name) for path in paths)
            is_as_locked = is_only_code and not stage.changed_stage() and not any(out.status() for out in stage.outs)
            if is_as_locked and earlier.made(stage.name, lock) and _means_the_same(stage.name, earlier, now):
                for dep in changed:
                    dep.save()
                stage.dump(update_pipeline=False)
                adopted.append(stage.name)
            else:
                others.append(stage.name)
    return sorted(adopted), sorted(others)


def _means_the_same(stage: str, earlier: StageCode, now: StageCode) -> bool:
    before, after = (code.read_by(stage) for code in (earlier, now))
    return bool(before) and _definitions(before) == _definitions(after) and earlier.libraries == now.libraries


def _definitions(code: Mapping[str, Mapping[str, bytes]]) -> Counter[str]:
    """Return the definitions of all modules, and the content of all other files, as often as they occur."""
    files = [(path or dep, content) for dep, files in code.items() for path, content in files.items()]
    found: Counter[str] = Counter()
    for path, content in files:
        if path.endswith(".py"):
            found |= Counter(_libraries_of(ast.parse(content)))
            found.update(ast.dump(node) for node in _Meaning().visit(ast.parse(content)).body)
        else:
            found[content.decode("utf-8", "replace")] += 1
    return found


def _libraries_of(module: ast.Module) -> set[str]:
    """Return what a module imports from elsewhere, under which name."""
    imports = [node for node in ast.walk(module) if isinstance(node, ast.Import | ast.ImportFrom)]
    named = {(getattr(node, "module", None), one.name, one.asname) for node in imports for one in node.names}
    return {f"{source} {name} {alias}" for source, name, alias in named if not (source or name).startswith("clozeline")}


class _Meaning(ast.NodeTransformer):
    """Leaves out imports and strings that stand alone, such as docstrings."""

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        return None

    visit_ImportFrom = visit_Import

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        is_text = isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        return None if is_text else self.generic_visit(node)


def _files_in(archive: bytes) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(archive)) as files:
        yield from ((name, files.read(name)) for name in files.namelist() if not name.endswith("/"))


def _yaml(content: bytes) -> Any:
    return YAML(typ="safe").load(content)


def _md5_of(files: Mapping[str, bytes]) -> str:
    """Return DVC's hash of a file, or of the list of a folder's files."""
    if set(files) == {""}:
        return md5_of(files[""])
    listed = [{"md5": md5_of(content), "relpath": path} for path, content in sorted(files.items())]
    return f"{md5_of(json.dumps(listed).encode())}.dir"
