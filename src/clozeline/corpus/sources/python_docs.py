"""The built-in corpus: docstrings of the standard library and of the locked packages, read with `ast`.

No module is imported, so no code runs. The lock file fixes the version of the text; the label of a text is its library.
A snapshot holds the docstrings of the installed environment.
"""

import ast
import gc
import inspect
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from itertools import chain
from pathlib import Path, PurePosixPath

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import Version

from clozeline.corpus.sources.store import SnapshotStore, keep_records, line_of
from clozeline.records.snapshot import SnapshotFile
from clozeline.system import errors, progress
from clozeline.system.workers import Workers

STANDARD_LIBRARY = "python"
# Folders without documentation of their library: tests, or other libraries.
_NOT_THE_LIBRARY = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
_DEFINITIONS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# Nodes of which some hold definitions; expressions hold none.
_STATEMENTS = (ast.stmt, ast.ExceptHandler, ast.match_case)

_BATCH_BYTES = 1_000_000


@dataclass(frozen=True, slots=True)
class PythonModule:
    """A source file with its dotted name."""

    path: Path
    name: str
    library: str
    size_bytes: int

    def records(self) -> Iterator[dict[str, str | bool]]:
        """Yield every docstring, in the order of the file, titled with its qualified name."""
        tree = _parsed(self.path)
        if tree is None:
            yield {"text": "", "source": self.library, "title": self.name, "unreadable": True}
            return
        for title, docstring in _docstrings(tree, self.name):
            yield {"text": inspect.cleandoc(docstring), "source": self.library, "title": title}


def documented_modules(lock: Path) -> list[PythonModule]:
    """Return the modules of the standard library and of every package that `lock` pins, in the order of their names.

    Raises:
        DataError: the lock cannot be read, or the environment is not the one it pins.
    """
    root = Path(sysconfig.get_path("stdlib"))
    pinned = _installed_as_pinned(lock)
    files = ((PurePosixPath(path.relative_to(root)), path) for path in root.rglob("*.py"))
    modules = _modules_in(files, STANDARD_LIBRARY)
    for distribution in pinned:
        # Two distributions may ship the same file (mlflow, mlflow-skinny): it is read once.
        modules |= _modules_in((file, Path(str(distribution.locate_file(file)))) for file in distribution.files or ())
    return [modules[name] for name in sorted(modules)]


def _installed_as_pinned(lock: Path) -> list[metadata.Distribution]:
    """Return the distributions that the lock pins for this platform. All must be installed in the pinned version.

    Raises:
        DataError: a package is missing or has another version.
    """
    pinned, faults = [], []
    for requirement in _requirements(lock):
        if requirement.marker and not requirement.marker.evaluate():
            continue
        try:
            distribution = metadata.distribution(requirement.name)
        except metadata.PackageNotFoundError:
            faults.append(f"{requirement} is not installed")
            continue
        if requirement.specifier.contains(Version(distribution.version).public, prereleases=True):
            pinned.append(distribution)
        else:
            faults.append(f"{requirement} is installed as {distribution.version}")
    if faults:
        raise errors.DataError(
            f"{lock} pins other packages than are installed, whose docstrings are the text ({len(faults)} differences)",
            given="; ".join(faults[:5]),
            do=f"run `python -m pip install -r {lock}`",
        )
    return pinned


def _requirements(lock: Path) -> list[Requirement]:
    """Return the pins of a requirements file, without options, hashes and comments."""
    requirements = []
    for number, line in enumerate(lock.read_text(encoding="utf-8").splitlines(), start=1):
        pin = line.split(" #")[0].split(" --hash")[0].rstrip("\\ ").strip()
        if not pin or pin.startswith(("#", "-")):
            continue
        try:
            requirements.append(Requirement(pin))
        except InvalidRequirement as error:
            raise errors.DataError(
                f"{lock}, line {number}: not a pinned package (name==version): {line}",
                do="write the lock with `pip freeze` or `uv pip compile`, or choose another `source.kind`",
            ) from error
    return requirements


def _modules_in(files: Iterable[tuple[PurePosixPath, Path]], library: str | None = None) -> dict[str, PythonModule]:
    """Return the modules among files, each with its path within the library; by default the first name is the label."""
    modules = {}
    for file, path in files:
        name = _module_name(file)
        if name and path.exists():
            label = library or name.split(".")[0].lstrip("_")
            modules[name] = PythonModule(path, name, label, path.stat().st_size)
    return modules


def _module_name(file: PurePosixPath) -> str | None:
    """Return the dotted name (`torch/nn/__init__.py` is torch.nn); None if the file is not a module of the library."""
    if file.suffix != ".py" or _NOT_THE_LIBRARY.intersection(file.parts):
        return None
    parts = file.with_suffix("").parts
    if parts[-1] == "__init__":
        parts = parts[:-1]
    return ".".join(parts) if parts and all(part.isidentifier() for part in parts) else None


def _parsed(path: Path) -> ast.Module | None:
    """Return the syntax tree; None if this Python cannot parse the file (templates, syntax of other versions)."""
    # The tree has no reference cycles, yet the collector would walk its nodes again and again: 1.5 times the time.
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    finally:
        gc.enable()


def _docstrings(tree: ast.Module, module: str) -> Iterator[tuple[str, str]]:
    """Yield the qualified name and raw docstring of the module, its classes and its functions, nested ones included."""
    waiting: list[tuple[ast.AST, str]] = [(tree, module)]
    while waiting:
        node, scope = waiting.pop()
        if isinstance(node, _DEFINITIONS):
            scope = scope if isinstance(node, ast.Module) else f"{scope}.{node.name}"
            docstring = ast.get_docstring(node, clean=False)
            if docstring is not None:
                yield scope, docstring
        inner = [child for child in ast.iter_child_nodes(node) if isinstance(child, _STATEMENTS)]
        waiting.extend((child, scope) for child in reversed(inner))


def keep_docstrings(lock: Path, store: SnapshotStore, workers: Workers) -> tuple[tuple[SnapshotFile, ...], int]:
    """Keep every docstring of the environment that `lock` pins; return the shards and the bytes of source code read.

    Raises:
        DataError: the lock cannot be read, or the environment is not the one it pins.
    """
    modules = documented_modules(lock)
    batches = list(_batches(modules))
    lines = progress.track(workers.map(_lines_of, batches), "Reading docstrings", len(batches))
    return keep_records(chain.from_iterable(lines), store), sum(module.size_bytes for module in modules)


def _batches(modules: list[PythonModule]) -> Iterator[list[PythonModule]]:
    waiting: list[PythonModule] = []
    for module in modules:
        waiting.append(module)
        if sum(one.size_bytes for one in waiting) >= _BATCH_BYTES:
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def _lines_of(modules: list[PythonModule]) -> list[bytes]:
    return [line_of(record) for module in modules for record in module.records()]
