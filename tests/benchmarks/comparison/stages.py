"""Stages run as processes of their own, with the project's params changed where a benchmark says so; and the texts that
both sides learn from, which they clean and tokenize once.
"""

import hashlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from ruamel.yaml import YAML

from clozeline.corpus.cleaning.documents import Document
from clozeline.corpus.cleaning.portions import open_snapshot, opened
from clozeline.params.pretraining import laid_over
from clozeline.params.project import Params
from clozeline.params.reading import read_tree
from clozeline.system.files import fingerprint

_LOG = logging.getLogger(__name__)
_POLL_SECONDS = 0.05
# Stages that may continue from the champion, which no benchmark does.
_CONTINUING = ("tokenize", "pretrain")
_FORGETTING = ("snapshot", "preprocess")

PROJECT = Path(__file__).parents[3]
# Folder of files that benchmarks make once and use again; may be removed at any time.
KEPT = PROJECT / "work" / "benchmarks"
# A file or folder with a field `text`: used instead of wikinews.
TEXT_VARIABLE = "CLOZELINE_BENCHMARK_TEXT"
WIKINEWS = PROJECT.parent / "shared" / "data" / "wikinews-en"


@dataclass(frozen=True)
class Usage:
    """Time and peak memory of a stage, including its worker processes."""

    seconds: float
    peak_rss_bytes: int  # peak resident memory, including mapped files, which the kernel may drop at any time
    peak_own_bytes: int  # peak anonymous and shared memory: the memory that the machine must really have


@dataclass(frozen=True)
class Setting:
    """Whose code runs a stage, and where."""

    project: Path = PROJECT  # checkout with the code and params.yaml
    cores: frozenset[int] | None = None  # cores that the processes may use; None: all
    environment: Mapping[str, str] = field(default_factory=dict)


EVERYWHERE = Setting()


def params_tree(changes: Mapping[str, Any], project: Path = PROJECT) -> dict[str, Any]:
    """params.yaml with its defaults, and `changes` laid over both; the code of another commit has its own defaults."""
    path = project / "params.yaml"
    return laid_over(read_tree(path) if project == PROJECT else YAML(typ="safe").load(path), changes)


def run_stage(
    name: str, folder: Path, changes: Mapping[str, Any], setting: Setting = EVERYWHERE, **paths: Path
) -> Usage:
    """Run stage `name` in `folder`, as dvc.yaml calls it.

    Raises:
        CalledProcessError: the stage failed; the cause is on stderr.
    """
    folder.mkdir(parents=True, exist_ok=True)
    YAML(typ="safe").dump(params_tree(changes, setting.project), folder / "params.yaml")
    command = [sys.executable, "-m", "clozeline", "stage", name]
    command += [f"{key}={path.resolve()}" for key, path in paths.items()]
    command += ["start=start.lock"] if name in _CONTINUING else []
    command += ["forgotten=forgotten.lock"] if name in _FORGETTING else []
    _LOG.info("stage %s", name)
    started = time.perf_counter()
    environment = {**os.environ, **setting.environment, "PYTHONPATH": str(setting.project / "src")}
    with subprocess.Popen(command, cwd=folder, env=environment, stdout=sys.stderr) as process:
        if setting.cores is not None:
            os.sched_setaffinity(process.pid, setting.cores)  # its processes inherit it
        peak_rss, peak_own = 0, 0
        while process.poll() is None:
            rss, own = _memory_of_tree(process.pid)
            peak_rss, peak_own = max(peak_rss, rss), max(peak_own, own)
            time.sleep(_POLL_SECONDS)
        seconds = time.perf_counter() - started
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Usage(seconds, peak_rss, peak_own)


def _memory_of_tree(pid: int) -> tuple[int, int]:
    """Return resident and own bytes of a process and its descendants; a process that has just ended counts as 0."""
    resident = own = 0
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with suppress(FileNotFoundError, ProcessLookupError):
                lines = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8").splitlines()
                sizes = {line.partition(":")[0]: int(line.split()[1]) for line in lines if line.endswith(" kB")}
                resident += sizes.get("VmRSS", 0) * 1024
                own += (sizes.get("RssAnon", 0) + sizes.get("RssShmem", 0)) * 1024
    return resident, own


def paths_of(stage: str, made: Path, kept: Path) -> dict[str, Path]:
    """Return the paths of a stage: its outputs are in `made`; the snapshot, its metrics and tables in `kept`."""
    tokens = {"tokenizer": made / "tokenizer", "tokens": made / "tokens"}
    tables = {name: kept / f"{name}.csv" for name in ("curve", "validation", "timing")}
    own: dict[str, dict[str, Path]] = {
        "snapshot": {"out": kept / "raw"},
        "preprocess": {"raw": kept / "raw", "out": made / "clean"},
        "tokenize": {"clean": made / "clean", "tokenizer": tokens["tokenizer"], "out": tokens["tokens"]},
        "pretrain": {**tokens, "out": made / "encoder", **tables},
    }
    told = {} if stage == "snapshot" else {"metrics": kept / f"{stage}.json", "work": kept / stage}
    return own[stage] | told


@dataclass(frozen=True)
class Source:
    """Raw text: its path, and the source that `preprocess` needs for it."""

    name: str
    path: Path
    settings: Mapping[str, Any] = field(default_factory=lambda: {"kind": "files", "text_field": "text"})
    others: Mapping[str, Any] = field(default_factory=dict)  # other changes to section `preprocess`

    @property
    def changes(self) -> dict[str, Any]:
        return {"preprocess": {"source": self.settings, **self.others}}

    @property
    def folder(self) -> Path:
        """Where its snapshot and its clean text are kept."""
        return KEPT / f"{self.name}-{fingerprint(params_tree(self.changes)['preprocess'], [])}"

    def taken(self) -> Path:
        """Return its snapshot; made on first use."""
        if not (self.folder / "raw").is_dir():
            run_stage("snapshot", self.folder, self.changes, source=self.path, out=self.folder / "raw")
        return self.folder / "raw"


@dataclass(frozen=True)
class Corpus:
    """Folders as the stages write them."""

    name: str
    clean: Path
    tokenizer: Path
    tokens: Path

    def texts(self, split: str) -> list[str]:
        texts: list[str] = pq.read_table(self.clean / f"{split}.parquet", columns=["text"]).column("text").to_pylist()
        return texts


def built_in() -> Source:
    """The docstrings of the installed environment."""
    return Source("python-docs", PROJECT / "corpus.lock", {"kind": "python-docs"})


def news(*, else_built_in: bool = False) -> Source:
    """Return the text that `CLOZELINE_BENCHMARK_TEXT` names, else wikinews next to the project, else `built_in`."""
    given = os.environ.get(TEXT_VARIABLE)
    path = Path(given) if given else WIKINEWS
    return Source(path.name, path) if path.exists() and (given or not else_built_in) else built_in()


def prepared(source: Source, tokenize: Mapping[str, Any] | None = None) -> Corpus:
    """Clean text, tokenizer and shards of a source; made on first use.

    Args:
        source: raw text.
        tokenize: changes to section `tokenize` of params.yaml.

    Raises:
        CalledProcessError: a stage failed.
    """
    folder, clean = source.folder, source.folder / "clean"
    if not clean.is_dir():
        source.taken()
        run_stage("preprocess", folder, source.changes, **paths_of("preprocess", folder, folder))
    changes = {"tokenize": dict(tokenize or {})}
    folder /= f"tokens-{fingerprint(params_tree(changes)['tokenize'], [])}"
    corpus = Corpus(source.name, clean, folder / "tokenizer", folder / "tokens")
    if not (corpus.tokens / "tokens.json").is_file():
        run_stage("tokenize", folder, changes, **paths_of("tokenize", folder, folder) | {"clean": clean})
    return corpus


def raw_texts(source: Source, every: int = 1) -> Path:
    """One file of JSON Lines with every `every`-th text of `source`, as it was before any cleaning."""
    path = KEPT / f"{source.name}-every-{every}.jsonl"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(".part")
        with beside.open("wb") as file:
            for number, document in enumerate(_raw_documents(source)):
                if number % every == 0:
                    file.write(orjson.dumps({"text": document.text}) + b"\n")
        beside.replace(path)
    return path


def _raw_documents(source: Source) -> Iterator[Document]:
    settings = Params.model_validate(params_tree(source.changes)).preprocess.source
    text = open_snapshot(source.taken(), settings)
    for unit in opened(text.files, text.reading):
        yield from (document for document in unit.documents() if document.dropped is None)


def write_clean(folder: Path, splits: Mapping[str, list[str]]) -> Path:
    """Write a folder like that of `preprocess` with the given texts, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, texts in splits.items():
        columns = {
            "doc_id": [hashlib.sha256(text.encode()).hexdigest()[:16] for text in texts],
            "text": texts,
            "source": ["benchmark"] * len(texts),
            "title": [""] * len(texts),
        }
        pq.write_table(pa.table(columns), folder / f"{split}.parquet", compression="zstd")
    return folder
