"""`clozeline init`, `clozeline params`: a project of one's own, and all of its params.

The project is created in a folder of its own, with the running Clozeline as its pinned one.
"""

import re
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal, get_args

import typer
from ruamel.yaml import YAML

from clozeline.params.reading import params_in, read_tree, write_complete, write_yaml
from clozeline.registry.wheel import write_wheel
from clozeline.stages.calling.calls import PIN, graph_elsewhere
from clozeline.system import errors, files
from clozeline.versions.adoption import StageCode, adopt

Template = Literal["mlm", "clm", "adapt", "published", "lines"]
TEMPLATES = get_args(Template)
WHEELS = "wheels"
_HERE = Path(__file__).parents[1] / "starter"
# File → texts of our own images, which install a checkout, and what replaces them.
_IN_IMAGES = {
    "infra/Dockerfile": (
        (
            "RUN pip install -r requirements.lock -r infra/ray.lock\nCOPY . ./\nRUN pip install --no-deps -e .\n",
            "COPY wheels ./wheels\n"
            'RUN pip install -c requirements.lock -r infra/ray.lock "$(ls wheels/clozeline-*.whl)[train,flows]"\n'
            "COPY . ./\n",
        ),
        (
            "COPY pyproject.toml README.md LICENSE ./\nCOPY src ./src\nRUN pip install -c requirements.lock .\n",
            "COPY wheels ./wheels\nRUN pip install -c requirements.lock wheels/clozeline-*.whl\n",
        ),
    ),
    "infra/Dockerfile.dockerignore": (("!src\n", "!wheels\n"),),
}
_LINK_TO_DOCS = re.compile(r"\[(?:docs/)?([\w-]+\.md)\]\(\.\./docs/[^)]*\)")
_PARAMS = Path("params.yaml")


def create_project(folder: Path, template: Template) -> None:
    """Write the files of a new project into `folder`, made if it is missing.

    Raises:
        ParamsError: a file of the project is already there; nothing was written.
        StorageError: the disk is full.
    """
    contents = {**dict(_files()), "params.yaml": template_file(template).read_text(encoding="utf-8")}
    if there := sorted(name for name in (*contents, "dvc.yaml", PIN) if (folder / name).exists()):
        raise errors.ParamsError(
            f"{folder} already has files of a project: {', '.join(there[:5])}",
            do=f"choose another folder, or run `clozeline init {folder} --upgrade` to pin the running Clozeline there",
        )
    for name, text in contents.items():
        _write(folder / name, text)
    (folder / "infra/postgres/create-databases.sh").chmod(0o755)
    pin(folder)


def upgrade_project(folder: Path) -> tuple[list[str], list[str]]:
    """Pin the running Clozeline in a project that `create` made, and write its dvc.yaml again; a checkout has no pin.

    Then adopt the outputs that the new code is proven to make. Return the stages that were adopted, and those that run
    again because their code differs.

    Raises:
        ParamsError: the folder is no such project.
    """
    if (folder / "src/clozeline").is_dir():
        return _adopted(folder, StageCode.of_lock(folder), StageCode.of_checkout)
    if not (folder / WHEELS).is_dir() or not (folder / "params.yaml").is_file():
        raise errors.ParamsError(
            f"{folder} is not a project that `clozeline init` made: it has no {WHEELS}/ or no params.yaml",
            do=f"create a project: `clozeline init {folder}`",
        )
    earlier = StageCode.of_project(folder)
    pin(folder)
    return _adopted(folder, earlier, StageCode.of_project)


def _adopted(
    folder: Path, earlier: StageCode | None, read: Callable[[Path], StageCode | None]
) -> tuple[list[str], list[str]]:
    now = read(folder)
    if not (folder / "dvc.lock").is_file() or find_spec("dvc") is None or earlier is None or now is None:
        return [], []
    return adopt(folder, earlier, now)


def template_file(template: Template) -> Path:
    """Return the params that a new project begins with: one of our configs/."""
    return _HERE / "configs" / f"{template}.yaml"


def pin(folder: Path) -> None:
    """Write the wheel of the running Clozeline, requirements.lock and dvc.yaml."""
    wheels = folder / WHEELS
    wheels.mkdir(parents=True, exist_ok=True)
    for old in wheels.glob("clozeline-*.whl"):
        old.unlink()
    wheel = write_wheel(wheels)
    pins = [line for line in (_HERE / PIN).read_text(encoding="utf-8").splitlines() if line]
    origin = f"# The next line is {WHEELS}/{wheel.name}, sha256 {files.sha256_of(wheel)}.\n"
    own = f"{origin}clozeline=={version('clozeline')}\n"
    _write(folder / PIN, own + "\n".join(pins) + "\n")
    yaml = YAML()
    yaml.width = 1 << 20
    with files.replacing_file(folder / "dvc.yaml") as beside, beside.open("w", encoding="utf-8") as stream:
        stream.write("# Written by `clozeline init`; `clozeline init . --upgrade` writes it again.\n")
        yaml.dump(graph_elsewhere(), stream)


def _files() -> Iterator[tuple[str, str]]:
    """Yield path and content of each file. In our package a leading dot is `dot.`, and no file ends in `.py`."""
    root = _HERE / "files"
    for file in sorted(path for path in root.rglob("*") if path.is_file()):
        parts = [f".{part.removeprefix('dot.')}" if part.startswith("dot.") else part
                 for part in file.relative_to(root).parts]  # fmt: skip
        name = "/".join(parts).removesuffix("_")
        text = file.read_text(encoding="utf-8")
        for ours, theirs in _IN_IMAGES.get(name, ()):
            assert ours in text, f"{name} is written otherwise"
            text = text.replace(ours, theirs)
        yield name, _LINK_TO_DOCS.sub(r"docs/\1 of Clozeline", text)  # a project has no such pages


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.replacing_file(path) as beside:
        beside.write_text(text, encoding="utf-8")


def init(folder: Path, template: Template = "mlm", upgrade: Annotated[bool, typer.Option("--upgrade")] = False) -> None:
    """Create a project: params, stages, flows, infra, Makefile, a test, and the pinned Clozeline.

    Examples:

    `clozeline init my-encoder`                     a masked encoder of the files in my-encoder/my-texts

    `clozeline init my-encoder --template lines`    of my-encoder/sentences.txt

    `clozeline init . --upgrade`                    after `pip install` of another wheel of Clozeline

    Args:
        folder: Folder of the project, made if it is missing.
        template: mlm: fills blanks; clm: continues text; adapt: trains a published encoder further; published:
            takes it as it is; lines: a sentence in each line of one file.
        upgrade: Pin the running Clozeline in a project that is there already, and keep the outputs of stages whose
            code only moved; in a checkout, the latter alone.
    """

    if upgrade:
        adopted, others = upgrade_project(folder)
        if not (folder / "src/clozeline").is_dir():
            typer.echo(f"{folder / 'requirements.lock'} pins the running Clozeline. Next: `clozeline run`")
        for stages, fate in ((adopted, "keep their outputs: their code says the same"), (others, "run again")):
            if stages:
                typer.echo(f"{', '.join(stages)} {fate}")
        return
    create_project(folder, template)
    source = read_tree(folder / _PARAMS)["preprocess"]["source"]["path"]
    into = "" if folder.resolve() == Path.cwd() else f"cd {folder} && "
    typer.echo(f"{folder} is a project. Put your text at {folder / source}, then: `{into}clozeline run`")
    if template == "published":
        typer.echo(f"Or take a model as it is, without text: `{into}clozeline import NAME-OR-FOLDER`")


def params(out: Path | None = None) -> None:
    """Print every knob of the project: params.yaml, completed with the defaults.

    A file gets the values as the stages take them: the recipe is laid over `pretrain`, and each task is complete.

    Example: `clozeline params`

    Args:
        out: File to write; the default is standard output.
    """

    tree = read_tree(_PARAMS)
    found = params_in(tree, _PARAMS)
    if out is None:
        write_yaml(tree, sys.stdout)
    else:
        write_complete(found, out)
