"""Create a project in a folder of its own, with the running Clozeline as its pinned one."""

import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Final, Literal, get_args

from ruamel.yaml import YAML

from clozeline.errors import ParamsError
from clozeline.registry.wheel import write_wheel
from clozeline.starter.stage_graph import PIN, graph_elsewhere
from clozeline.storage.atomic import replacing_file
from clozeline.storage.fingerprints import sha256_of

Template = Literal["mlm", "clm", "adapt", "published", "lines"]
TEMPLATES: Final = get_args(Template)
WHEELS: Final = "wheels"
_HERE: Final = Path(__file__).parent
_IN_IMAGES: Final = {
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
"""File → texts of our own images, which install a checkout, and what replaces them."""
_LINK_TO_DOCS: Final = re.compile(r"\[(?:docs/)?([\w-]+\.md)\]\(\.\./docs/[^)]*\)")


def create(folder: Path, template: Template) -> None:
    """Write the files of a new project into `folder`, made if it is missing.

    Raises:
        ParamsError: a file of the project is already there; nothing was written.
        StorageError: the disk is full.
    """
    contents = {**dict(_files()), "params.yaml": template_file(template).read_text(encoding="utf-8")}
    if there := sorted(name for name in (*contents, "dvc.yaml", PIN) if (folder / name).exists()):
        raise ParamsError(
            f"{folder} already has files of a project",
            given=", ".join(there[:5]),
            expected="a new or empty folder, or a folder with your text alone",
            do=f"choose another folder, or run `clozeline init {folder} --upgrade` to pin the running Clozeline there",
        )
    for name, text in contents.items():
        _write(folder / name, text)
    (folder / "infra/postgres/create-databases.sh").chmod(0o755)
    pin(folder)


def upgrade(folder: Path) -> None:
    """Pin the running Clozeline in a project that `create` made, and write its dvc.yaml again.

    Raises:
        ParamsError: the folder is no such project.
    """
    if not (folder / WHEELS).is_dir() or not (folder / "params.yaml").is_file():
        raise ParamsError(
            f"{folder} is not a project that `clozeline init` made",
            given=f"no {WHEELS}/ or no params.yaml there",
            expected="params.yaml, dvc.yaml and wheels/",
            do=f"create a project: `clozeline init {folder}`",
        )
    pin(folder)


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
    own = f"# The next line is {WHEELS}/{wheel.name}, sha256 {sha256_of(wheel)}.\nclozeline=={version('clozeline')}\n"
    _write(folder / PIN, own + "\n".join(pins) + "\n")
    yaml = YAML()
    yaml.width = 1 << 20
    with replacing_file(folder / "dvc.yaml") as beside, beside.open("w", encoding="utf-8") as stream:
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
    with replacing_file(path) as beside:
        beside.write_text(text, encoding="utf-8")
