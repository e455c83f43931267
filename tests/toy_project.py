"""A small project of four stages in a folder of its own: real DVC, trivial work."""

import shutil
from pathlib import Path

import pytest

from clozeline.records.snapshot import FORGOTTEN_LOCK

PROJECT = Path(__file__).parents[1]

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
