"""Claim: a stage gives the same bytes on a cluster, also if a node is killed meanwhile."""

import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from clozeline.params.text import PreprocessParams, TokenizeParams
from clozeline.stages import preprocess, tokenize
from tests.cluster.raylets import cluster_of_two, kill_raylet
from tests.conftest import PROJECT
from tests.corpus.conftest import params_of
from tests.make.stores import BUCKET, KEYS, ObjectStore
from tests.make.texts import take_snapshot, write_clean_text
from tests.records.words.conftest import words

pytestmark = pytest.mark.slow
__all__ = ["params_of", "words"]
RUN = """
import logging, sys
from pathlib import Path
from clozeline.cluster.ledger import open_workers
from clozeline.system.errors import ClusterError
from clozeline.params.text import PreprocessParams, TokenizeParams
from clozeline.stages import preprocess, tokenize
from clozeline.corpus.cleaning import portions
from clozeline.tokenizing import shards
from tests.cluster.raylets import full_at_two

logging.basicConfig(level=logging.WARNING)
portions._PORTION_BYTES = 200_000
try:
    with open_workers(Path("work-of-cluster")) as workers:
        for number in workers.map(full_at_two, range(9)):
            print(number)
except ClusterError as error:
    print(error, flush=True)
preprocess.run(
    PreprocessParams.model_validate_json(sys.argv[1]), seed=1, raw=Path("raw"), forgotten=Path("forgotten.lock"),
    out=Path("on-cluster"), metrics=Path("on-cluster.json"), work=Path("work-of-cluster"),
)
shards._PARTITION_BYTES = 100_000
tokenize.run(
    TokenizeParams.model_validate_json(sys.argv[2]), clean=Path("groups"), work=Path("tokens-of-cluster"),
    tokenizer=Path("tokenizer-on-cluster"), out=Path("tokens-on-cluster"), metrics=Path("tokens-on-cluster.json"),
)
"""
BY_STORE = """
import json
from pathlib import Path
from clozeline.cluster.ledger import open_workers
from clozeline.cluster.ledger import Ledger
from tests.cluster.test_store import doubled

with open_workers(Path("work")) as workers:
    ledger = Ledger(Path("work/numbers"), "code", workers)
    (six,) = ledger.run([doubled(Path("three.txt"))], read=())
    (twelve,) = ledger.run([doubled(six.folder / "number.txt")])
print(json.dumps([six.facts, twelve.facts, (twelve.folder / "number.txt").read_text()]))
"""
TOKENIZE = TokenizeParams(
    algorithm="wordpiece",
    existing=None,
    vocab_size=500,
    min_frequency=2,
    lowercase=True,
    shard_tokens=50_000,
)


def digests(out: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(out.iterdir())}


def records(folder: Path) -> int:
    return len(list(folder.glob("*/*/record.json")))


def until(condition: Callable[[], bool], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture
def project(tmp_path: Path, params_of, words, monkeypatch: pytest.MonkeyPatch) -> PreprocessParams:
    """A folder with a snapshot of 1 MB of text, and the clean text and tokens that one process makes of it."""
    monkeypatch.chdir(tmp_path)
    texts = [words(seed, 60) for seed in range(2_000)]
    texts += [f"{text} and an end" for text in texts[:200]]
    lines = (json.dumps({"text": text}) for text in texts)
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    params: PreprocessParams = params_of(path="texts.jsonl")
    take_snapshot(params.source, tmp_path / "texts.jsonl", tmp_path / "raw")
    (tmp_path / "forgotten.lock").write_bytes((PROJECT / "forgotten.lock").read_bytes())
    monkeypatch.setattr("clozeline.cluster.ledger.available_cores", lambda: 1)
    places = {name: tmp_path / name for name in ("raw", "out", "work")}
    preprocess.run(params, seed=1, forgotten=tmp_path / "forgotten.lock", metrics=tmp_path / "alone.json", **places)
    (tmp_path / "groups").mkdir()
    for split, some in {"train": texts[100:], "validation": texts[:100]}.items():
        write_clean_text(tmp_path / "groups" / f"{split}.parquet", some, row_group=100)
    made = {"tokenizer": tmp_path / "tokenizer", "out": tmp_path / "tokens", "metrics": tmp_path / "tokens.json"}
    tokenize.run(TOKENIZE, clean=tmp_path / "groups", work=tmp_path / "tokens-work", **made)
    return params


def test_two_raylets_one_of_them_killed_give_the_bytes_of_one_process(
    project: PreprocessParams, tmp_path: Path
) -> None:
    with cluster_of_two(tmp_path / "raylets.log") as cluster:
        told = {**os.environ, **cluster.environment}
        command = [sys.executable, "-c", RUN, project.model_dump_json(), TOKENIZE.model_dump_json()]
        with subprocess.Popen(
            command, cwd=tmp_path, env=told, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as stage:
            until(lambda: records(tmp_path / "work-of-cluster") >= 10 or stage.poll() is not None)
            kill_raylet(cluster.nodes[1])
            told_of, warned = stage.communicate()
        assert stage.returncode == 0, warned
    assert digests(tmp_path / "on-cluster") == digests(tmp_path / "out")
    assert (tmp_path / "on-cluster.json").read_bytes() == (tmp_path / "alone.json").read_bytes()
    for name in ("tokenizer", "tokens"):
        assert digests(tmp_path / f"{name}-on-cluster") == digests(tmp_path / name)
    assert (tmp_path / "tokens-on-cluster.json").read_bytes() == (tmp_path / "tokens.json").read_bytes()
    assert records(tmp_path / "tokens-of-cluster") > 5, "several partitions, each encoded by a task"
    numbers, _, message = told_of.partition("full_at_two of item 2 failed 4 times")
    assert numbers.split() == ["0", "1"]
    assert "No space left on device" in message
    assert len(set(re.findall(r"on node (\S+ \(\w+\)):", message))) == 2, "both nodes were tried"


def test_nodes_with_a_store_work_outside_the_folder_of_the_project(tmp_path: Path) -> None:
    project, temporary = tmp_path / "project", tmp_path / "temporary"
    for folder in (project, temporary):
        folder.mkdir()
    (project / "three.txt").write_text("3")
    with ObjectStore().serving() as store:
        reached = {**KEYS, "AWS_ENDPOINT_URL": store.url, "TMPDIR": str(temporary)}
        with cluster_of_two(tmp_path / "raylets.log", variables=reached) as cluster:
            told = {**os.environ, **cluster.environment, "CLOZELINE_CLUSTER_STORE": f"s3://{BUCKET}/project"}
            command = [sys.executable, "-c", BY_STORE]
            ended = subprocess.run(command, cwd=project, env=told, capture_output=True, text=True, check=False)
        stored = {name.rpartition("/")[2] for name in store.names()}
    assert ended.returncode == 0, ended.stderr
    six, twelve, content = json.loads(ended.stdout.splitlines()[-1])
    assert (six["number"], twelve["number"], content) == (6, 12, "12")
    assert six["ran in"].startswith("clozeline-store-")
    assert not list(temporary.glob("clozeline-store-*")), "fetched files are removed at the end"
    assert {file.name for file in project.rglob("*") if file.is_file()} == {"three.txt", "number.txt", "record.json"}
    assert {"number.txt", "record.json"} <= stored
