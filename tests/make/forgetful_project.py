"""A small project that was trained twice on a letter: real snapshots, clean text, DVC, and registered versions."""

import json
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
import pyarrow.parquet as pq

from clozeline.orchestration.import_items import items_file, write_items
from clozeline.records.finetune.scored_items import HeldOut
from clozeline.records.snapshot import FORGOTTEN_LOCK
from clozeline.registry.models import CHAMPION, Registered
from clozeline.registry.versions import Registry
from clozeline.system.workspace import Workspace
from clozeline.tracking.mlflow import experiment_id, prepare
from clozeline.versions import remote
from tests.make.params import with_values
from tests.make.processes import run_to_end
from tests.make.projects import PROJECT, graph_of, make_toy, stage

# A word of the letter, and of no other text.
MARK = "quuxbert"
LETTER = f"Dear Miss {MARK.title()}, please send the forty brown parcels to Elm Street before the end of the month."
SETTINGS: Mapping[str, str] = MappingProxyType(
    {"kind": "files", "path": "texts", "min_characters": "20", "validation_fraction": "0.1", "holdout_fraction": "0.1"}
)
_STAGE = "python -m clozeline stage"
_FORGOTTEN = "forgotten=forgotten.lock"


def _kept(*files: str) -> list[dict[str, dict[str, bool]]]:
    return [{file: {"cache": False}} for file in files]


DVC_YAML = graph_of(
    snapshot=stage(
        f"{_STAGE} snapshot source=texts {_FORGOTTEN} out=data/raw", ["texts", FORGOTTEN_LOCK], ["data/raw"]
    ),
    preprocess=stage(
        f"{_STAGE} preprocess raw=data/raw {_FORGOTTEN} out=data/clean metrics=metrics/preprocess.json"
        " work=work/preprocess",
        ["data/raw", FORGOTTEN_LOCK],
        ["data/clean"],
        metrics=_kept("metrics/preprocess.json"),
    ),
    tokenize=stage("python steps.py data/tokens", ["data/clean/train.parquet"], ["data/tokens"]),
    pretrain=stage(
        "python steps.py models/encoder",
        ["data/tokens"],
        ["models/encoder"],
        metrics=_kept("metrics/pretrain.json"),
        plots=_kept("plots/pretrain.json"),
    ),
    note=stage("mkdir -p reports && cp note.txt reports/note.txt", ["note.txt"], ["reports/note.txt"]),
    evaluate=stage("python steps.py reports/examples", ["data/clean/train.parquet"], ["reports/examples"]),
    export={"foreach": ["encoder"], "do": stage("python steps.py dist/${item}", ["models/${item}"], ["dist/${item}"])},
    **{
        "import": {
            "foreach": ["mini"],
            "do": stage(
                "mkdir -p dist/${item} && sha256sum imports/${item}.jsonl > dist/${item}/file.txt",
                ["imports/${item}.jsonl"],
                ["dist/${item}"],
            ),
        }
    },
)
# Among its outputs are JSON files that are no lists of folders: an object, a list, and one that looks like the list of
# a folder with `note.txt` in it.
STEPS = """
import hashlib, json, pathlib, sys
import pyarrow.parquet as pq
target = pathlib.Path(sys.argv[1])
text = "\\n".join(pq.read_table("data/clean/train.parquet")["text"].to_pylist())
target.mkdir(parents=True)
learnt = {"tokens": text[::-1], "examples": text[:100_000]}.get(target.name, hashlib.sha256(text.encode()).hexdigest())
(target / "file.txt").write_text(learnt)
if target.name == "encoder":
    note = hashlib.md5(pathlib.Path("note.txt").read_bytes()).hexdigest()
    for file, content in {"metrics": [3, "steps", {"loss": 0.5}], "plots": [{"relpath": "note", "md5": note}]}.items():
        pathlib.Path(file).mkdir(exist_ok=True)
        pathlib.Path(file, "pretrain.json").write_text(json.dumps(content))
"""


def other_texts(seed: int, number: int) -> list[str]:
    """Return texts that do not resemble each other."""
    return [
        " ".join(f"word{(seed + 7919 * line * (place + 1)) % 104729}" for place in range(12))
        for line in range(1, number)
    ]


def make_project(folder: Path) -> Path:
    """Return a project after two nights, whose second one added a text with the letter inside; both were registered."""
    root = make_toy(folder)
    (root / "dvc.yaml").write_text(DVC_YAML)
    (root / "steps.py").write_text(STEPS)
    (root / "note.txt").write_text("nothing that comes from a letter")
    with_values(root, **SETTINGS)
    shutil.copy(PROJECT / FORGOTTEN_LOCK, root)
    (root / "texts").mkdir()
    records = [{"text": text} for text in (*other_texts(1, 60), LETTER)]
    (root / "texts/mail.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    items = [HeldOut(text=text) for text in (*other_texts(9, 20), f"It begins so: {LETTER}")]
    items.append(HeldOut(text="Who sends them?", second=LETTER, right=("Miss Quuxbert",)))
    write_items(root / items_file("mini"), items)
    night(root)
    register(root, None)
    (root / "texts/more.txt").write_text("\n\n".join([f"A long story. {LETTER} And so it ends.", *other_texts(5, 40)]))
    night(root)
    register(root, CHAMPION)
    register(root, CHAMPION, "mini")
    return root


def night(root: Path) -> str:
    return run_to_end([sys.executable, "-m", "dvc", "repro"], root)


def register(root: Path, alias: str | None, package: str = "encoder") -> Registered:
    """Register what a package holds, with its evidence, by a run that also stored a log and the examples."""
    uri = Workspace(root).defaults()["MLFLOW_TRACKING_URI"]
    client = prepare(uri)
    stage = client.create_run(experiment_id(client, uri), run_name="evaluate")
    client.log_artifact(stage.info.run_id, str(root / "reports/examples/file.txt"))
    run = client.create_run(experiment_id(client, uri), run_name="release")
    client.log_artifact(run.info.run_id, str(root / "dvc.lock"), "evidence")
    sha256 = (root / f"dist/{package}/file.txt").read_text().split()[0]
    source = f"{run.info.artifact_uri}/model"
    version = Registry(client, uri).register(
        f"clozeline-{package}", source=source, run_id=run.info.run_id, package_sha256=sha256, description=""
    )
    if alias:
        client.set_registered_model_alias(version.name, alias, version.version)
    return version


def settled(template: Path, root: Path) -> Workspace:
    """Return a copy of the project with a remote, logs and a search index that quote the letter."""
    shutil.copytree(template, root, symlinks=True)
    remote.add(root, str(root.parent / "store"))
    remote.push(root)
    workspace = Workspace(root)
    (workspace.logs / "one").mkdir(parents=True)
    (workspace.logs / "one/evaluate.log").write_text(f"step 1\nexample: {LETTER.upper()}\n")
    (workspace.logs / "one/pretrain.log").write_text("step 1\n")
    (workspace.work / "search/encoder").mkdir(parents=True)
    pq.write_table(pa.table({"summary": [LETTER]}), workspace.work / "search/encoder/entries.parquet")
    return workspace


def quoting(folder: Path) -> list[str]:
    """Return the files below `folder` in whose bytes the mark is, forwards or backwards, decompressed if needed."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and _quotes(path))


def _quotes(path: Path) -> bool:
    return any(mark in form.lower() for form in _forms(path) for mark in (MARK.encode(), MARK[::-1].encode()))


def _forms(path: Path) -> Iterator[bytes]:
    content = path.read_bytes()
    yield content
    if content[:4] == b"PAR1":
        yield str(pq.read_table(path).to_pydict()).encode()
    if content[:4] == b"\x28\xb5\x2f\xfd":
        with pa.CompressedInputStream(pa.BufferReader(content), "zstd") as stream:
            yield stream.read()
    if content[16:20] == b"\xff\xff\xff\xff":  # Arrow's stream after the digest of a kept result
        with pa.ipc.open_stream(content[16:]) as batches:
            yield str(batches.read_all().to_pydict()).encode()
