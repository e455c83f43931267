"""Cost of a corpus ten times as large: seconds and peak memory of preprocess, tokenize and pretrain.

There is no other side. `ours` is the growth of the most expensive stage, `theirs` its limit: 11 times the time, and the
same memory plus a tenth for measurement noise. The ratio is limit / growth, in time or in memory, whichever is smaller.
The text is the built-in corpus (or what CLOZELINE_BENCHMARK_TEXT names) as JSON Lines: every tenth text, compared with
all of them, so that nothing grows by repetition. Each stage runs in its own process, and its worker processes are
counted. Pre-training takes the same number of steps on both. The smallest of several rounds counts: the peak memory of
one stage differs by a tenth between runs, because allocators return memory at different times. Memory is what the
processes own (anonymous and shared); mapped files are reported separately.
"""

import logging
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from comparison.frame import Rounds, available_cores, options, report
from comparison.stages import Usage, paths_of, run_stage
from comparison.texts import TEXT_VARIABLE, built_in, news, raw_texts

_LOG = logging.getLogger(__name__)

GROWTH = 10
MOST_TIME = 11.0
MOST_MEMORY = 1.1
STAGES = ("snapshot", "preprocess", "tokenize", "pretrain")


def main() -> None:
    parser = options(__doc__, rounds=3)
    parser.add_argument("--steps", type=int, default=100, help="of pre-training, at both sizes")
    chosen = parser.parse_args()
    source = news() if os.environ.get(TEXT_VARIABLE) else built_in()
    sizes = {"tenth": raw_texts(source, every=GROWTH), "whole": raw_texts(source, every=1)}
    measured: dict[str, list[dict[str, Usage]]] = {name: [] for name in sizes}
    for number in range(chosen.rounds):
        for name in list(sizes)[:: 1 if number % 2 == 0 else -1]:
            _LOG.info("round %d of %d: %s of the corpus", number + 1, chosen.rounds, name)
            measured[name].append(costs(sizes[name], chosen.steps))
    growth = {stage: _growth(stage, measured) for stage in STAGES}
    worst = [max(growth[stage][kind] for stage in STAGES) for kind in ("time", "memory")]
    margins = (MOST_TIME / worst[0], MOST_MEMORY / worst[1])
    binding = margins.index(min(margins))
    facts = {
        "unit": ("times the seconds", "times the memory")[binding],
        "text": source.name,
        "raw_bytes": {name: path.stat().st_size for name, path in sizes.items()},
        "growth": growth,
        "costs": {name: {stage: asdict(usage) for stage, usage in runs[0].items()} for name, runs in measured.items()},
    }
    report("corpus_growth", Rounds((worst[binding],), ((MOST_TIME, MOST_MEMORY)[binding],)), available_cores(), facts)


def _growth(stage: str, measured: Mapping[str, list[dict[str, Usage]]]) -> dict[str, float]:
    def least(size: str, kind: str) -> float:
        return min(getattr(costs[stage], kind) for costs in measured[size])

    kinds = {"time": "seconds", "memory": "peak_own_bytes", "resident": "peak_rss_bytes"}
    return {name: round(least("whole", kind) / least("tenth", kind), 3) for name, kind in kinds.items()}


def costs(raw: Path, steps: int) -> dict[str, Usage]:
    """Run all stages, starting from raw text; return the time and the memory of each."""
    changes: dict[str, Any] = {
        "preprocess": {"source": {"kind": "files", "text_field": "text"}},
        "pretrain": {
            "steps": steps,
            "tokens": None,
            "epochs": None,
            "schedule": {"warmup_fraction": 0.0},
            "validation": {"every_steps": None},
        },
    }
    with TemporaryDirectory() as name:
        folder = Path(name)
        paths = {stage: paths_of(stage, folder, folder / "kept") for stage in STAGES}
        paths["snapshot"]["source"] = raw
        return {stage: run_stage(stage, folder, changes, **paths[stage]) for stage in STAGES}
