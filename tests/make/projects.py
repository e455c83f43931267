"""Projects in a folder of their own: `toy` with four trivial stages in real DVC; the line, this project's own stages
that learn a toy language; and the release project, whose stages take no time and whose packages are real.
"""

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from clozeline.records.snapshot import FORGOTTEN_LOCK
from tests.make import params
from tests.make.texts import encoder_metrics

PROJECT = Path(__file__).parents[2]

DVC_YAML = """
stages:
  upper:
    desc: Writes the text in capitals
    cmd: python steps.py upper raw.txt upper.txt
    deps: [raw.txt]
    params: [seed]
    outs: [upper.txt]
  count:
    desc: Counts the words
    cmd: python steps.py count upper.txt metrics/count.json
    deps: [upper.txt]
    metrics:
      - metrics/count.json: {cache: false}
  sign:
    foreach: [ada, alan]
    do:
      desc: Signs the text
      cmd: python steps.py sign upper.txt signed/${item}.txt ${item}
      deps: [upper.txt]
      outs: ['signed/${item}.txt']
"""

STEPS = """
import json, os, pathlib, signal, subprocess, sys, time

def upper(text):
    return text.upper()

def count(text):
    return json.dumps({"words": len(text.split())})

def sign(text, name):
    return f"{text} {name}"

verb, source, target, *more = sys.argv[1:]
text = pathlib.Path(source).read_text()
print(f"{verb} reads {source}")
if "bad" in text:
    sys.stderr.write("error: raw.txt is bad\\n  given:    bad\\n  expected: good\\n  do:       write good\\n")
    sys.exit(3)
if "busy" in text:
    attempts = pathlib.Path("attempts")
    attempts.write_text(f"{attempts.read_text() if attempts.exists() else ''}x")
    sys.stderr.write("error: the store is busy\\n  given:    busy\\n  expected: calm\\n  do:       wait\\n")
    sys.exit(75)
if "long" in text:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    pathlib.Path("pids").write_text(f"{os.getpid()} {helper.pid}")
    time.sleep(600)
path = pathlib.Path(target)
path.parent.mkdir(exist_ok=True)
path.write_text(globals()[verb](text, *more))
"""


def make_toy(folder: Path) -> Path:
    root = folder / "toy"
    (root / ".dvc").mkdir(parents=True)
    (root / ".dvc" / "config").write_text(f"[core]\n    no_scm = true\n    site_cache_dir = {folder / 'site'}\n")
    (root / ".dvcignore").write_text("work\n")
    (root / "dvc.yaml").write_text(DVC_YAML)
    (root / "steps.py").write_text(STEPS)
    (root / "raw.txt").write_text("one two")
    shutil.copy(PROJECT / "params.yaml", root / "params.yaml")
    return root


def with_own_stages(root: Path) -> Path:
    """The toy's folder with this project's own stages; nothing has run."""
    for name in ("dvc.yaml", "requirements.lock", "corpus.lock", "start.lock", FORGOTTEN_LOCK):
        shutil.copy(PROJECT / name, root / name)
    shutil.copytree(PROJECT / "src", root / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    return root


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """The project's folder; `raw.txt` may say `bad`, `busy` or `long` to make the first stage fail or stay."""
    return make_toy(tmp_path)


@pytest.fixture(scope="module")
def lasting_toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Same as `toy`, shared by several tests."""
    return make_toy(tmp_path_factory.mktemp("lasting"))


SENTENCES = Path("texts/sentences.jsonl")
SYLLABLES = ("ba", "de", "fi", "go", "lu", "ma", "ne", "pi", "ro", "su", "ta", "ve", "wi", "zo", "ka", "le")
TOPICS = ("baking", "mining", "sailing")
TINY_MODEL: Mapping[str, Any] = {
    "size": None,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
}
TINY_EVALUATION: Mapping[str, Any] = {"max_length": 32, "num_pseudo_documents": 4}
_FILES = ("dvc.yaml", ".dvc/config", ".dvc/.gitignore", ".dvcignore", ".gitignore", "requirements.lock", "corpus.lock",
          "start.lock", "forgotten.lock")  # fmt: skip


def copy_project(root: Path) -> Path:
    """Copy the stages and their code to the new folder `root`; params.yaml and the text are still missing."""
    for name in _FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(PROJECT / name, root / name)
    shutil.copytree(PROJECT / "src", root / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    (root / ".dvc" / "config.local").write_text(f"[core]\n    site_cache_dir = {root.parent / 'site'}\n")
    return root


def write_params(
    root: Path, changes: Mapping[str, Any], *, tasks: Sequence[str] = (), source: Path | None = None
) -> None:
    """Write params.yaml in `root`: the one of `source`, by default of this project, with only these tasks and with
    `changes`.
    """
    yaml = YAML()
    params = yaml.load(source or PROJECT / "params.yaml")
    params["finetune"] = {name: params["finetune"][name] for name in tasks}
    params["export"]["models"] = {"encoder": "encoder"} | {name: f"finetuned/{name}" for name in tasks}
    merge(params, changes)
    yaml.dump(params, root / "params.yaml")


def merge(tree: Any, changes: Mapping[str, Any]) -> None:
    """Lay `changes` over `tree`; a key that no section has is refused when the params are read."""
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(tree.get(key), Mapping):
            merge(tree[key], value)
        else:
            tree[key] = value


def write_sentences(root: Path, records: Sequence[Mapping[str, str]]) -> None:
    (root / SENTENCES).parent.mkdir(parents=True, exist_ok=True)
    (root / SENTENCES).write_text("".join(json.dumps(record) + "\n" for record in records))


def toy_language(num_texts: int, syllables: Sequence[str] = SYLLABLES) -> list[dict[str, str]]:
    """Return texts of three subject-verb-object clauses; each topic has its own nouns, and all share the verbs."""
    draw = random.Random(5)
    words = [first + second + third for first in syllables for second in syllables for third in ("n", "sh", "r")]
    draw.shuffle(words)
    nouns = {topic: words[60 * place : 60 * place + 60] for place, topic in enumerate(TOPICS)}
    verbs = words[-40:]
    records = []
    for number in range(num_texts):
        topic = TOPICS[number % len(TOPICS)]
        clauses = [
            f"the {draw.choice(nouns[topic])} {draw.choice(verbs)} a {draw.choice(nouns[topic])}" for _ in range(3)
        ]
        records.append({"text": f"{' and '.join(clauses)}.", "topic": topic})
    return records


def stage(cmd: str, deps: Sequence[str], outs: Sequence[str], **more: object) -> dict[str, Any]:
    """Return a stage of dvc.yaml."""
    return {"cmd": cmd, "deps": [*deps], "outs": [*outs], **more}


def graph_of(**stages: object) -> str:
    """Return the text of a dvc.yaml."""
    return json.dumps({"stages": stages}, indent=2)


_TEXT = "data/clean/validation.parquet"
_RELEASE_GRAPH = graph_of(
    snapshot=stage("python steps.py raw.txt data/raw", ["raw.txt", "validation.parquet"], ["data/raw"]),
    clean=stage("python steps.py data/raw data/clean", ["data/raw"], ["data/clean"]),
    pretrain=stage("python steps.py data/clean models/encoder", ["data/clean"], ["models/encoder"]),
    evaluate=stage(
        f"python steps.py validation_text={_TEXT} examples=reports/examples",
        [_TEXT],
        ["reports/examples"],
        params=["evaluate"],
    ),
    finetune={
        "foreach": ["library"],
        "do": stage(
            "python steps.py models/encoder models/finetuned/${item}",
            ["models/encoder", "data/clean/holdout.parquet"],
            ["models/finetuned/${item}"],
            params=["seed", "finetune.${item}"],
        ),
    },
    export={
        "foreach": {"encoder": "encoder", "library": "finetuned/library"},
        "do": stage(
            "python steps.py packages/${key} dist/${key}", ["models/${item}", "packages/${key}"], ["dist/${key}"]
        ),
    },
)
_RELEASE_STEPS = """
import pathlib, shutil, sys
source, target = (pathlib.Path(argument.rpartition("=")[2]) for argument in sys.argv[1:])
if source.is_dir():
    shutil.copytree(source, target, dirs_exist_ok=True)
else:
    target.mkdir(parents=True, exist_ok=True)
    (target / source.name).write_text(source.read_text() + " cleaned")
if source.name == "raw.txt":
    shutil.copy("validation.parquet", target)
    shutil.copy("validation.parquet", target / "holdout.parquet")
"""

ENCODER = encoder_metrics(contaminated_fraction=0.01).model_dump(exclude_none=True)
TASK = {
    "headline": {
        **{"metric": "accuracy", "value": 0.8, "low": 0.78, "high": 0.82},
        **{"baseline": "TF-IDF + logistic regression", "baseline_value": 0.7},
        **{"trivial": "largest class", "trivial_value": 0.1},
    },
    "macro_f1": 0.71,
}
EXPORT = {
    "served": "int8",
    "fp32_size_bytes": 4,
    "int8_size_bytes": 1,
    "int8_agreement": 0.99,
    "parity_max_abs_difference": 1e-6,
    "last_layer": "every position",
    "num_agreement_texts": 512,
    "ladder": [],
}


def make_release_project(root: Path, packages: dict[str, Path]) -> Path:
    """`packages` by their names under `dist/`; `dvc.lock` and the metric files are there."""
    (root / ".dvc").mkdir(parents=True)
    config = f"[core]\n    no_scm = true\n    site_cache_dir = {root.parent / 'site'}\n"
    (root / ".dvc" / "config").write_text(config)
    (root / ".dvcignore").write_text("work\n")
    (root / "dvc.yaml").write_text(_RELEASE_GRAPH)
    (root / "steps.py").write_text(_RELEASE_STEPS)
    (root / "raw.txt").write_text("one two")
    (root / "validation.parquet").write_text("three")
    params.write_params(root / "params.yaml", *(name for name in packages if name != "encoder"))
    for name, package in packages.items():
        shutil.copytree(package, root / "packages" / name)
    reproduce(root)
    write_metrics(root)
    return root


def reproduce(root: Path) -> None:
    subprocess.run([sys.executable, "-m", "dvc", "repro", "-q"], cwd=root, check=True)


def write_metrics(root: Path, **changes: float) -> None:
    """Write every metric file. A value in `changes` replaces the figure of its name in each file that has that figure;
    `accuracy` sets the headline of the task.
    """
    accuracy = changes.get("accuracy", TASK["headline"]["value"])
    headline = TASK["headline"] | {"value": accuracy, "low": accuracy - 0.02, "high": accuracy + 0.02}
    task = TASK | {"headline": headline}
    files = {"evaluate": ENCODER, "finetune/library": task, "export/encoder": EXPORT, "export/library": EXPORT}
    for name, figures in files.items():
        file = root / "metrics" / f"{name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(figures | {key: changes[key] for key in changes.keys() & figures.keys()}))


def retrain(root: Path, text: str, validation: str = "three", **changes: float) -> None:
    """Another training text, and with it another encoder and library package, with the figures of `changes`."""
    (root / "raw.txt").write_text(text)
    (root / "validation.parquet").write_text(validation)
    for file in (root / "packages").glob("*/manifest.json"):
        manifest = json.loads(file.read_text())
        manifest["versions"]["corpus"] = text
        file.write_text(json.dumps(manifest))
    reproduce(root)
    write_metrics(root, **changes)
