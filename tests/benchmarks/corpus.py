"""The costs of text: as it grows, with a percent more of it, spread over processes and nodes, beside `datasets`."""

import hashlib
import os
import resource
import shutil
import subprocess
import sys
from collections import defaultdict
from dataclasses import asdict
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from comparison import stages
from comparison.frame import Rounds, alternate, available_cores, options, report
from comparison.stages import Setting, paths_of, run_stage

GROWTH = 10
MOST = {"time": 11.0, "memory": 1.1}
STAGES = ("snapshot", "preprocess", "tokenize", "pretrain")
PERCENT = 100
BEFORE = "5ddaf0cf"


def growth() -> None:
    """Cost of a corpus ten times as large: seconds and peak memory of preprocess, tokenize and pretrain.

    There is no other side. `ours` is the growth of the most expensive stage, `theirs` its limit: 11 times the time, and
    the same memory plus a tenth for measurement noise. The ratio is limit / growth, in time or in memory, whichever is
    smaller. The text is the built-in corpus (or what CLOZELINE_BENCHMARK_TEXT names) as JSON Lines: every tenth text,
    compared with all of them, so that nothing grows by repetition. Each stage runs in its own process, and its worker
    processes are counted. Pre-training takes the same number of steps on both. The smallest of several rounds counts:
    the peak memory of one stage differs by a tenth between runs, because allocators return memory at different times.
    Memory is what the processes own (anonymous and shared); mapped files are reported separately.
    """
    parser = options(growth.__doc__, rounds=3)
    parser.add_argument("--steps", type=int, default=100, help="of pre-training, at both sizes")
    chosen = parser.parse_args()
    source = stages.news(else_built_in=True)
    sizes = {"tenth": stages.raw_texts(source, every=GROWTH), "whole": stages.raw_texts(source)}
    measured: dict[str, list[dict[str, stages.Usage]]] = {name: [] for name in sizes}

    def seconds_of(size: str, _: int) -> float:
        measured[size].append(_costs(sizes[size], chosen.steps))
        return sum(usage.seconds for usage in measured[size][-1].values())

    def factor(stage: str, kind: str) -> float:
        tenth, whole = (min(getattr(costs[stage], kind) for costs in measured[size]) for size in sizes)
        return round(whole / tenth, 3)

    alternate(partial(seconds_of, "tenth"), partial(seconds_of, "whole"), chosen.rounds, "s")
    kinds = {"time": "seconds", "memory": "peak_own_bytes", "resident": "peak_rss_bytes"}
    grown = {stage: {name: factor(stage, kind) for name, kind in kinds.items()} for stage in STAGES}
    worst = {kind: max(grown[stage][kind] for stage in STAGES) for kind in MOST}
    binding = min(MOST, key=lambda kind: MOST[kind] / worst[kind])
    facts = {
        "unit": f"times the {'seconds' if binding == 'time' else binding}",
        "text": source.name,
        "raw_bytes": {name: path.stat().st_size for name, path in sizes.items()},
        "growth": grown,
        "costs": {name: {stage: asdict(usage) for stage, usage in runs[0].items()} for name, runs in measured.items()},
    }
    report("corpus_growth", Rounds((worst[binding],), (MOST[binding],)), available_cores(), facts)


def _costs(raw: Path, steps: int) -> dict[str, stages.Usage]:
    """Run all stages, starting from raw text; return the time and the memory of each."""
    length = {"steps": steps, "tokens": None, "epochs": None}
    quick = {"schedule": {"warmup_fraction": 0.0}, "validation": {"every_steps": None}}
    changes: dict[str, Any] = {**stages.Source("", raw).changes, "pretrain": length | quick}
    with TemporaryDirectory() as name:
        folder = Path(name)
        paths = {stage: paths_of(stage, folder, folder / "kept") for stage in STAGES}
        paths["snapshot"]["source"] = raw
        return {stage: run_stage(stage, folder, changes, **paths[stage]) for stage in STAGES}


class _Runs:
    """preprocess and tokenize over texts, each stage in a process of its own; keeps what they cost and wrote."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        source = {**stages.Source("", folder).settings, "path": "texts"}
        self._changes: dict[str, Any] = {"preprocess": {"source": source}}
        self.digests: set[tuple[str, str]] = set()  # what ran, and the hash of what it wrote
        self.seconds: dict[str, list[float]] = defaultdict(list)
        # Seconds of all cores together, which other work on the machine changes little; not those of raylets.
        self.processor_seconds: dict[str, list[float]] = defaultdict(list)
        # Largest memory, all processes together; of raylets the waiting process alone.
        self.peak_megabytes: dict[str, int] = defaultdict(int)

    def take(self, name: str, texts: bytes, setting: Setting = stages.EVERYWHERE) -> Path:
        """Return the snapshot of these JSON Lines."""
        path = self._folder / name / "texts.jsonl"  # the name is the label of the texts
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(texts)
        raw = self._folder / f"{name}-raw"
        shutil.rmtree(raw, ignore_errors=True)
        run_stage("snapshot", self._folder, self._changes, setting, source=path, out=raw)
        return raw

    def learn_tokenizer(self, raw: Path, kept: Path) -> None:
        """Let later runs take the tokenizer that a run over this text learns."""
        self.run("learned", raw, kept)
        shutil.copytree(self._folder / "made" / "tokenizer", self._folder / "tokenizer")
        self._changes["tokenize"] = {"algorithm": "existing", "existing": str(self._folder / "tokenizer")}

    def run(self, label: str, raw: Path, kept: Path, setting: Setting = stages.EVERYWHERE) -> float:
        """Run both stages; return the seconds of both."""
        made, total = self._folder / "made", 0.0
        shutil.rmtree(made, ignore_errors=True)
        for stage in ("preprocess", "tokenize"):
            name, spent = f"{label}, {stage}", _spent()
            paths = paths_of(stage, made, kept) | ({"raw": raw} if stage == "preprocess" else {})
            usage = run_stage(stage, self._folder, self._changes, setting, **paths)
            self.processor_seconds[name].append(round(_spent() - spent, 2))
            self.seconds[name].append(round(usage.seconds, 2))
            self.peak_megabytes[name] = max(self.peak_megabytes[name], usage.peak_own_bytes // 10**6)
            total += usage.seconds
        digest = hashlib.sha256()
        for path in sorted(path for path in made.rglob("*") if path.is_file()):
            digest.update(path.relative_to(made).as_posix().encode() + path.read_bytes())
        self.digests.add((label, digest.hexdigest()))
        return total


def _spent() -> float:
    """Return the processor time of all processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def increment() -> None:
    """Cost of one percent more text: seconds of preprocess and tokenize with what the last run kept, and from scratch.

    Theirs is our own run from scratch over the grown corpus. The tokenizer stays, as in a night that continues from the
    champion. Both sides have to write the same bytes. The text is the built-in corpus (or what CLOZELINE_BENCHMARK_TEXT
    names) as raw JSON Lines; the last hundredth of its lines is the new text. Each stage is a process of its own.
    """
    parser = options(increment.__doc__, rounds=3)
    parser.add_argument("--every", type=int, default=1, help="take every n-th text of the corpus")
    chosen = parser.parse_args()
    source = stages.news()
    lines = stages.raw_texts(source, chosen.every).read_bytes().splitlines(keepends=True)
    with TemporaryDirectory() as name:
        folder, runs = Path(name), _Runs(Path(name))
        before = runs.take("before", b"".join(lines[: -(len(lines) // PERCENT)]))
        grown = runs.take("grown", b"".join(lines))
        runs.learn_tokenizer(before, folder / "kept")
        runs.run("before", before, folder / "kept")
        runs.digests, runs.seconds = set(), defaultdict(list)

        def with_kept(_: int) -> float:
            shutil.rmtree(folder / "kept-copy", ignore_errors=True)
            shutil.copytree(folder / "kept", folder / "kept-copy")
            return runs.run("with kept", grown, folder / "kept-copy")

        def from_scratch(_: int) -> float:
            shutil.rmtree(folder / "none", ignore_errors=True)
            return runs.run("from scratch", grown, folder / "none")

        rounds = alternate(with_kept, from_scratch, chosen.rounds, "s")
    bytes_equal = len({digest for _, digest in runs.digests}) == 1
    facts = {"text": source.name, "raw_bytes": sum(map(len, lines)), "bytes_equal": bytes_equal}
    report("corpus_increment", rounds, available_cores(), facts | {"seconds": runs.seconds})


def scale_out() -> None:
    """Preprocess and tokenize spread over processes and nodes, compared with the code before they were spread.

    Theirs is our own code at a commit, `--before`, on as many cores as ours: the ratio is its seconds over ours, each
    with two cores of this machine. The same is measured with one core (`ratio_one_core`) and, where Ray is installed,
    with two raylets on loopback. The text is wikinews (or what CLOZELINE_BENCHMARK_TEXT names) as raw JSON Lines; each
    stage is a process of its own and starts without anything kept. `bytes_equal` says whether all of ours wrote the
    same clean text, tokenizer and shards; `bytes_equal_before` whether they are those of the code before.
    """
    parser = options(scale_out.__doc__, rounds=3)
    parser.add_argument("--every", type=int, default=1, help="take every n-th text of the corpus")
    parser.add_argument("--before", default=BEFORE, help="commit of the code before")
    chosen = parser.parse_args()
    source = stages.news()
    texts = stages.raw_texts(source, chosen.every).read_bytes()
    before = _checkout(chosen.before)
    two = frozenset(sorted(os.sched_getaffinity(0))[:2])
    with TemporaryDirectory() as name:
        folder, runs = Path(name), _Runs(Path(name))

        def seconds_of(label: str, setting: Setting, _: int = 0) -> float:
            shutil.rmtree(folder / "kept", ignore_errors=True)
            return runs.run(label, runs.take("raw", texts, setting), folder / "kept", setting)

        measured = []
        for label, cores in (("2 processes", two), ("1 process", frozenset(list(two)[:1]))):
            today = partial(seconds_of, label, Setting(cores=cores))
            earlier = partial(seconds_of, f"{label}, before", Setting(before, cores))
            measured.append(alternate(today, earlier, chosen.rounds, "s"))
        if find_spec("ray") is None:
            sys.stderr.write("Ray is not installed: `pip install -r infra/ray.lock` adds two raylets\n")
        else:
            sys.path.append(str(stages.PROJECT))
            with import_module("tests.cluster.raylets").cluster_of_two(folder / "raylets.log") as cluster:
                for _ in range(chosen.rounds):
                    seconds_of("2 raylets", Setting(environment=cluster.environment))
    on_two, on_one = measured
    facts = {
        **on_one.facts("one_core", higher_is_better=False),
        "text": source.name,
        "raw_bytes": len(texts),
        "before": chosen.before,
        "bytes_equal": len({digest for label, digest in runs.digests if "before" not in label}) == 1,
        "bytes_equal_before": len({digest for _, digest in runs.digests}) == 1,
        "seconds": runs.seconds,
        "processor_seconds": runs.processor_seconds,
        "peak_own_megabytes": runs.peak_megabytes,
    }
    report("scale_out", on_two, len(two), facts)


def _checkout(commit: str) -> Path:
    """Return a folder with the code and params.yaml of a commit."""
    folder = stages.KEPT / f"commit-{commit}"
    if not folder.is_dir():
        beside = folder.with_suffix(".part")
        beside.mkdir(parents=True, exist_ok=True)
        command = ["git", "archive", commit, "src", "params.yaml"]
        packed = subprocess.run(command, cwd=stages.PROJECT, check=True, stdout=subprocess.PIPE)
        subprocess.run(["tar", "--extract", "--directory", beside], input=packed.stdout, check=True)
        beside.rename(folder)
    return folder


def tokenize_throughput() -> None:
    """From raw text to trainable tokens, in MB of raw text per second, compared with `datasets` as in run_mlm.py.

    Both sides read one file of JSON Lines (the built-in corpus, or what CLOZELINE_BENCHMARK_TEXT names) with the same
    existing tokenizer and number of processes; each run has a fresh process and an empty cache, and imports are not
    timed. Ours is preprocess and tokenize: it reads, repairs and normalizes text, drops exact and near duplicates,
    splits by document, tokenizes the training and validation splits, and writes shards. Theirs is
    `load_dataset("json")`, `map` to tokens and `map` to full rows, without cleaning or dropping. So ours does more per
    byte, but tokenizes less text (no duplicates, no holdout split); the ratio does not compare tokenization alone.
    """
    parser = options(tokenize_throughput.__doc__, rounds=3)
    parser.add_argument("--every", type=int, default=1, help="take every n-th text of the corpus")
    chosen = parser.parse_args()
    source = stages.news(else_built_in=True)
    tokenizer, raw = stages.prepared(source).tokenizer, stages.raw_texts(source, chosen.every)
    megabytes = raw.stat().st_size / 1e6

    def speed(side: str, _: int) -> float:
        command = [sys.executable, "-m", "comparison.raw_to_tokens", side, str(raw), str(tokenizer)]
        ran = subprocess.run(command, cwd=Path(__file__).parent, check=True, stdout=subprocess.PIPE, text=True)
        return megabytes / float(ran.stdout.splitlines()[-1])

    rounds = alternate(partial(speed, "ours"), partial(speed, "theirs"), chosen.rounds, "MB/s")
    facts = {"text": source.name, "raw_megabytes": round(megabytes, 1), "processes": available_cores()}
    report("tokenize_throughput", rounds, available_cores(), facts)
