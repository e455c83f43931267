"""The frame of the benchmarks: two sides measured in turn, the machine, and the line that reports the comparison."""

import argparse
import inspect
import json
import logging
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

_LOG = logging.getLogger(__name__)

# Number of the round, from 0 → the value measured.
Measure = Callable[[int], float]


@dataclass(frozen=True)
class Rounds:
    """Values of each side, in the order of the rounds."""

    ours: tuple[float, ...]
    theirs: tuple[float, ...]

    def ratio(self, *, higher_is_better: bool) -> float | None:
        """Return how many times better our median is; above 1, we are ahead; None if nothing could be measured."""
        if not self.ours or not self.theirs:
            return None
        ours, theirs = median(self.ours), median(self.theirs)
        return ours / theirs if higher_is_better else theirs / ours

    def facts(self, name: str, *, higher_is_better: bool) -> dict[str, Any]:
        """Return the JSON fields of rounds that were measured in another way, called `name`."""
        return {
            f"ratio_{name}": _short(self.ratio(higher_is_better=higher_is_better)),
            f"ours_rounds_{name}": [_short(value) for value in self.ours],
            f"theirs_rounds_{name}": [_short(value) for value in self.theirs],
        }


class BestOf:
    """A side with several set-ups: each is measured in every round, and the best of a round counts."""

    def __init__(self, setups: Mapping[str, Measure], *, higher_is_better: bool) -> None:
        self._setups = setups
        self._best = max if higher_is_better else min
        # Values of each set-up, in the order of the rounds.
        self.rounds: dict[str, list[float]] = {name: [] for name in setups}

    def __call__(self, number: int) -> float:
        for name, measure in self._setups.items():
            self.rounds[name].append(measure(number))
        return self._best(values[-1] for values in self.rounds.values())

    def facts(self, ending: str = "") -> dict[str, list[float]]:
        """Return the JSON fields of each set-up."""
        return {f"theirs_{name}{ending}": values for name, values in self.rounds.items()}


@dataclass(frozen=True)
class Benchmark:
    """What a benchmark measures, and the ratio that the project aims at."""

    run: str  # its function, `module:name`, whose docstring describes it
    unit: str
    goal: float | None
    higher_is_better: bool = True


BENCHMARKS: Mapping[str, Benchmark] = {
    "corpus_growth": Benchmark("corpus:growth", "", 1.0, higher_is_better=False),
    "corpus_increment": Benchmark("corpus:increment", "s", None, higher_is_better=False),
    "finetune_classification": Benchmark("finetune:classification", "s", 2.0, higher_is_better=False),
    "finetune_few_labels": Benchmark("finetune:few_labels", "accuracy", 1.0),
    "finetune_qa": Benchmark("finetune:qa", "s", 2.0, higher_is_better=False),
    "finetune_table": Benchmark("finetune:table", "", None),
    "finetune_tagging": Benchmark("finetune:tagging", "s", 2.0, higher_is_better=False),
    "gpu_pretrain": Benchmark("pretrain:gpu", "real tokens/s", 3.0),
    "pretrain_throughput_grouped": Benchmark("pretrain:grouped", "real tokens/s", 2.5),
    "pretrain_throughput_padded": Benchmark("pretrain:padded", "real tokens/s", 5.0),
    "scale": Benchmark("scale:main", "s on paper", None, higher_is_better=False),
    "scale_out": Benchmark("corpus:scale_out", "s", 1 / 1.1, higher_is_better=False),
    "serve_embed_mixed": Benchmark("serving:embed_mixed", "texts/s", 2.0),
    "serve_embed_quality": Benchmark("serving:embed_quality", "of fp32's Spearman", None),
    "serve_embed_single": Benchmark("serving:embed_single", "ms", 1.3, higher_is_better=False),
    "serve_embed_torch": Benchmark("serving:embed_torch", "texts/s", 4.0),
    "serve_fill_mask": Benchmark("serving:fill_mask", "texts/s", 1.8),
    "serve_http_fastapi": Benchmark("serving:http_fastapi", "requests/s", 2.0),
    "serve_http_mlflow": Benchmark("serving:http_mlflow", "requests/s", 5.0),
    "time_to_quality": Benchmark(
        "pretrain:as_large", "s to the validation loss of theirs", 10.0, higher_is_better=False
    ),
    "time_to_quality_same_architecture": Benchmark(
        "pretrain:same_architecture", "s to the validation loss of theirs", 3.0, higher_is_better=False
    ),
    "tokenize_throughput": Benchmark("corpus:tokenize_throughput", "MB of raw text/s", 3.0),
    "worth": Benchmark("worth:main", "mean of F1, accuracy and recall@10", 1.0),
}


def report(name: str, rounds: Rounds, num_threads: int, facts: Mapping[str, Any]) -> None:
    """Write the line of a benchmark, the last of its output; `facts` are further fields, or replace one of these."""
    of = BENCHMARKS[name]
    line = {
        "name": name,
        "ratio": _short(rounds.ratio(higher_is_better=of.higher_is_better)),
        "goal": of.goal,
        "ours": _short(median(rounds.ours)) if rounds.ours else None,
        "theirs": _short(median(rounds.theirs)) if rounds.theirs else None,
        "unit": of.unit,
        "rounds": len(rounds.ours),
        "ours_rounds": [_short(value) for value in rounds.ours],
        "theirs_rounds": [_short(value) for value in rounds.theirs],
    }
    write_line({**line, **facts}, num_threads)


def write_line(line: Mapping[str, Any], num_threads: int) -> None:
    """Write a line with the processor, the cores of this process, the threads of a side, and the machine's load."""
    machine = {
        "cpu": cpu_model(),
        "cores": available_cores(),
        "threads": num_threads,
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "python": platform.python_version(),
    }
    sys.stdout.write(json.dumps({**line, "machine": machine}, allow_nan=False) + "\n")


def alternate(ours: Measure, theirs: Measure, num_rounds: int, unit: str) -> Rounds:
    """Measure both sides in every round, each first in turn, so that a drift of the machine affects both equally."""
    sides = {"ours": ours, "theirs": theirs}
    measured: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(num_rounds):
        for name in list(sides)[:: 1 if number % 2 == 0 else -1]:
            measured[name].append(sides[name](number))
            _LOG.info("round %d of %d, %s: %.6g %s", number + 1, num_rounds, name, measured[name][-1], unit)
    return Rounds(tuple(measured["ours"]), tuple(measured["theirs"]))


def options(description: str | None, names: Sequence[str] = (), **numbers: int) -> argparse.ArgumentParser:
    """Report progress from now on; return the parser of a benchmark, with an option for each of `numbers`.

    The arguments, if there may be any, are some of `names`; by default all.
    """
    report_progress()
    text = inspect.cleandoc(description or "")
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in numbers.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)

    def known(name: str) -> str:
        if name not in names:
            raise argparse.ArgumentTypeError(f"there is no {name!r}; there are: {', '.join(names)}")
        return name

    if names:
        parser.add_argument("names", nargs="*", type=known, default=list(names), help=f"of: {', '.join(names)}")
    return parser


def report_progress() -> None:
    """Send the log of a benchmark to stderr, because stdout is for the result line."""
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    for noisy in ("httpx", "filelock", "fsspec", "datasets"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def paired_difference(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float | None]:
    """Return the JSON fields of the mean difference over rounds, and of its standard error if there are several."""
    differences = [one - other for one, other in zip(ours, theirs, strict=True)]
    error = round(stdev(differences) / len(differences) ** 0.5, 4) if len(differences) > 1 else None
    return {"difference": round(fmean(differences), 4), "standard_error": error}


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def available_cores() -> int:
    return len(os.sched_getaffinity(0))


def cpu_model(facts: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's name, its widest vector instructions and those for INT8, as the kernel reports them."""
    lines = facts.read_text(encoding="utf-8").splitlines() if facts.is_file() else []
    told = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = set(told.get("flags", "").split())
    sets = (("avx512_bf16", "avx512f", "avx2"), ("avx512_vnni", "avx_vnni"))
    widest = [next((flag for flag in one if flag in flags), "") for one in sets]
    return " ".join(filter(None, [told.get("model name", platform.processor() or platform.machine()), *widest]))
