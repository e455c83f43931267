"""Preprocess and tokenize spread over processes and nodes, compared with the code before they were spread.

Theirs is our own code at a commit, `--before`, on as many cores as ours: the ratio is its seconds over ours, each with
two cores of this machine. The same is measured with one core (`ratio_one_core`) and, where Ray is installed, with two
raylets on loopback. The text is wikinews (or what CLOZELINE_BENCHMARK_TEXT names) as raw JSON Lines; each stage is a
process of its own and starts without anything kept. `bytes_equal` says whether all of ours wrote the same clean text,
tokenizer and shards; `bytes_equal_before` whether they are those of the code before.
"""

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from comparison.frame import alternate, options, report
from comparison.stages import KEPT, PROJECT, Setting, digest_of, paths_of, run_stage
from comparison.texts import news, raw_texts

BEFORE = "5ddaf0cf"
STAGES = ("preprocess", "tokenize")
CHANGES = {"preprocess": {"source": {"kind": "files", "path": "texts", "text_field": "text"}}}


def main() -> None:
    parser = options(__doc__, rounds=3)
    parser.add_argument("--every", type=int, default=1, help="take every n-th text of the corpus")
    parser.add_argument("--before", default=BEFORE, help="commit of the code before")
    chosen = parser.parse_args()
    source = news()
    raw = raw_texts(source, chosen.every)
    before = _checkout(chosen.before)
    two = frozenset(sorted(os.sched_getaffinity(0))[:2])
    one = frozenset(list(two)[:1])
    with TemporaryDirectory() as name:
        runs = _Runs(Path(name), raw)
        measured = {
            cores: alternate(
                lambda _, label=label, allowed=allowed: runs.seconds_of(label, Setting(cores=allowed)),
                lambda _, label=label, allowed=allowed: runs.seconds_of(f"{label}, before", Setting(before, allowed)),
                chosen.rounds,
                "s",
            )
            for cores, label, allowed in (("two", "2 processes", two), ("one_core", "1 process", one))
        }
        if find_spec("ray") is None:
            sys.stderr.write("Ray is not installed: `pip install -r infra/ray.lock` adds two raylets\n")
        else:
            with _raylets(Path(name)) as environment:
                for _ in range(chosen.rounds):
                    runs.seconds_of("2 raylets", Setting(environment=environment))
    ours = {digest for label, digest in runs.digests if "before" not in label}
    facts = {
        **measured["one_core"].facts("one_core", higher_is_better=False),
        "text": source.name,
        "raw_bytes": raw.stat().st_size,
        "before": chosen.before,
        "bytes_equal": len(ours) == 1,
        "bytes_equal_before": len({digest for _, digest in runs.digests}) == 1,
        "seconds": runs.seconds,
        "processor_seconds": runs.processor_seconds,
        "peak_own_megabytes": runs.peak_megabytes,
    }
    report("scale_out", measured["two"], len(two), facts)


class _Runs:
    """The stages over one text, each time from scratch."""

    def __init__(self, folder: Path, raw: Path) -> None:
        self._folder = folder
        self._text = folder / "raw" / "texts.jsonl"  # the name is the label of the texts
        self._text.parent.mkdir()
        shutil.copyfile(raw, self._text)
        self.digests: set[tuple[str, str]] = set()
        self.seconds: dict[str, list[float]] = {}
        """Seconds of each set-up and stage."""
        self.processor_seconds: dict[str, list[float]] = {}
        """Seconds of all cores together, which other work on the machine changes little; not those of raylets."""
        self.peak_megabytes: dict[str, int] = {}
        """Largest memory of each set-up and stage, all processes together; of raylets the waiting process alone."""

    def seconds_of(self, label: str, setting: Setting) -> float:
        """Run the stages; return the seconds of both."""
        made, kept = self._folder / "made", self._folder / "kept"
        for folder in (made, kept):
            shutil.rmtree(folder, ignore_errors=True)
        run_stage("snapshot", kept, CHANGES, setting, source=self._text, **paths_of("snapshot", made, kept))
        total = 0.0
        for stage in STAGES:
            name, spent = f"{label}, {stage}", _spent()
            usage = run_stage(stage, kept, CHANGES, setting, **paths_of(stage, made, kept))
            self.processor_seconds.setdefault(name, []).append(round(_spent() - spent, 2))
            self.seconds.setdefault(name, []).append(round(usage.seconds, 2))
            self.peak_megabytes[name] = max(self.peak_megabytes.get(name, 0), usage.peak_own_bytes // 10**6)
            total += usage.seconds
        self.digests.add((label, digest_of(made)))
        return total


def _checkout(commit: str) -> Path:
    """Return a folder with the code and params.yaml of a commit."""
    folder = KEPT / f"commit-{commit}"
    if not folder.is_dir():
        beside = folder.with_suffix(".part")
        beside.mkdir(parents=True, exist_ok=True)
        packed = subprocess.run(
            ["git", "archive", commit, "src", "params.yaml"], cwd=PROJECT, check=True, stdout=subprocess.PIPE
        )
        subprocess.run(["tar", "--extract", "--directory", beside], input=packed.stdout, check=True)
        beside.rename(folder)
    return folder


@contextmanager
def _raylets(folder: Path) -> Iterator[Mapping[str, str]]:
    """Start two nodes with a core each; yield the environment of the stages that use them."""
    sys.path.append(str(PROJECT))
    nodes = import_module("tests.cluster.raylets")
    with nodes.cluster_of_two(folder / "raylets.log") as cluster:
        yield cluster.environment


def _spent() -> float:
    """Return the processor time of all processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
