"""Hand-made project as runs leave it, with every file that the report reads and with texts that try to harm it."""

import csv
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from clozeline.params.reading import complete_tree, read_params
from clozeline.records.package import ExportMetrics, read_manifest
from clozeline.registry.decisions import Decision, Gate, Released
from clozeline.registry.models import Registered
from clozeline.reporting.run import ReportedRun, RunFiles
from clozeline.tracking.past_runs import PastRuns, StageRun
from tests.make import packages
from tests.make.params import write_params
from tests.make.texts import corpus_metrics, encoder_metrics, token_metrics

PROJECT = Path(__file__).parents[2]
Rows = Sequence[Sequence[object]]
HARM = "<script>alert('x')</script>"
LABELS = [f"label {number}" for number in range(19)] + [f'{HARM}&"']
BUILT_AT = datetime(2026, 11, 21, 9, 30, tzinfo=UTC)


def export_metrics(**figures: float) -> dict[str, Any]:
    always = {"served": "int8", "parity_max_abs_difference": 1e-6, "last_layer": "every position"}
    made = ExportMetrics.model_validate({**always, "num_agreement_texts": 32, **figures})
    return made.model_dump(exclude_none=True)


# Figures of the encoder; those that the report does not know are shown as they are called.
OF_ENCODER = {"perplexity": 34.6, "perplexity_low": 32.5, "perplexity_high": 36.9, "target_tokens": 276681}
OF_TOP1 = {"top1": 0.392, "top1_low": 0.384, "top1_high": 0.401, "unigram_top1": 0.06}
OF_BASELINE = {"expected_calibration_error": 0.0057, "unigram_perplexity": 444.3}
ACCURACY = {"metric": "accuracy", "value": 0.796, "low": 0.78, "high": 0.812}
BASELINE = {"baseline": f"TF-IDF {HARM}", "baseline_value": 0.785, "trivial": "largest class", "trivial_value": 0.166}
HEADLINE: Mapping[str, Any] = {**ACCURACY, **BASELINE}
OF_CLASSES = {"macro_f1": 0.76, "baseline_tfidf_macro_f1": 0.77, "num_test": 2403}
METRICS: Mapping[str, Mapping[str, Any]] = {
    "metrics/preprocess.json": corpus_metrics(train=800, validation=100, too_short=80, near_duplicate=20).model_dump(),
    "metrics/tokenize.json": token_metrics(unknown_rate=0.0002).model_dump(),
    "metrics/pretrain.json": {"parameters": 1401600, "steps": 100},
    "metrics/evaluate.json": encoder_metrics(**OF_ENCODER, **OF_TOP1, **OF_BASELINE).model_dump(exclude_none=True),
    "metrics/finetune/library.json": {
        "headline": HEADLINE,
        "records": {"num_read": 11660, "duplicates": 0},
        **OF_CLASSES,
    },
    "metrics/export/encoder.json": export_metrics(
        fp32_size_bytes=5693414, int8_size_bytes=1622207, int8_agreement=0.963
    ),
    "metrics/export/library.json": export_metrics(fp32_size_bytes=5653850, int8_size_bytes=1578966, int8_agreement=1.0),
}
EXAMPLES = [
    {
        "original": f"the cat sat on {HARM}",
        "masked": f"the [MASK] sat [MASK] {HARM}",
        "mask_token": "[MASK]",
        "guesses": [
            {"original": "cat", "original_probability": 0.5, "candidates": [{"token": "cat", "probability": 0.5}]},
            {"original": "on", "original_probability": 0.1, "candidates": [{"token": HARM, "probability": 0.3}]},
        ],
    }
]
LATENCY_OF_A_TEXT = {"fp32_text_milliseconds": 2.0, "int8_text_milliseconds": 1.0, "num_threads": 1.0}
LATENCY_OF_A_BATCH = {"fp32_batch_milliseconds": 40.0, "int8_batch_milliseconds": 20.0, "batch_texts": 32.0}


def curve(name: str, num_points: int = 40) -> list[tuple[int, float]]:
    return [(25 * place, 3 + 6 / place + len(name) / 100) for place in range(1, num_points + 1)]


def training(name: str, num_points: int = 40) -> Rows:
    return [(step, loss, loss / 1000, loss / 2, 2048, 1 / loss) for step, loss in curve(name, num_points)]


OF_TOKENS = "targets,loss_nats_per_token,top1,top5"
OF_BINS = "confidence_above,confidence_to,targets,mean_confidence,accuracy"
OF_STEPS = "step,loss,learning_rate,gradient_norm,num_tokens,accuracy"
ANSWERED = [(LABELS[place % 20], LABELS[(place if place % 7 else place * 3) % 20]) for place in range(400)]
VALIDATION = [(step, loss, 1 / loss) for step, loss in curve("held out")[9::10]]
# Path in `plots` → the columns of the table, and its rows.
TABLES: Mapping[str, tuple[str, Rows]] = {
    "pretrain": (OF_STEPS, training("training")),
    "pretrain_validation": ("step,loss,accuracy", VALIDATION),
    "timing/pretrain": ("step,tokens_per_second", [(step, 9000 * y) for step, y in curve("speed")]),
    "evaluate/calibration": (OF_BINS, [(0.0, 0.3, 9, 0.1, 0.12), (0.3, 0.7, 9, 0.5, 0.46), (0.7, 1.0, 9, 0.9, 0.88)]),
    "evaluate/place": (f"place_from,place_to,{OF_TOKENS}", [(1, 4, 9, 4.1, 0.3, 0.5), (5, 8, 9, 3.5, 0.4, 0.6)]),
    "evaluate/frequency": (f"times_in_training,kinds_of_token,{OF_TOKENS}", [("1-9", 20, 38, 12.9, 0.01, 0.02)]),
    "evaluate/word_class": (f"word_class,{OF_TOKENS}", [("whole word", 250365, 3.2, 0.43, 0.6)]),
    "finetune/library_training": (OF_STEPS, [(*row[:-1], "") for row in training("fine-tuning", 8)]),
    "finetune/library_validation": (
        "step,epoch,validation_score",
        [(0, 0.0, "nan"), (100, 1.0, 0.71), (200, 2.0, 0.78)],
    ),
    "finetune/library": ("actual,predicted", ANSWERED),
    "finetune/library_classes": (
        "class,precision,recall,f1,num_texts",
        [(label, 0.8, 0.7, 0.5 + place / 50, 20) for place, label in enumerate(LABELS)],
    ),
}


def write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def write_lock(root: Path) -> None:
    """Write dvc.lock as DVC would, with the hash of every figure and the params of two stages."""
    params = complete_tree(read_params(root / "params.yaml"))
    shown = [path.relative_to(root).as_posix() for path in sorted(root.glob("[mp][el]*s/**/*.*"))]
    outs = [
        {"path": path, "md5": hashlib.md5((root / path).read_bytes(), usedforsecurity=False).hexdigest()}
        for path in shown
        if "timing" not in path
    ]
    clean = {"path": "data/clean", "md5": "c" * 32 + ".dir"}
    package = {"path": "dist/encoder", "md5": "d" * 32 + ".dir"}
    stages = {
        name: {
            "cmd": "python",
            "deps": [dep],
            "params": {"params.yaml": {key: params[key] for key in keys}},
            "outs": made,
        }
        for name, dep, keys, made in (
            ("preprocess", {"path": "raw.txt", "md5": "a" * 32}, ["seed", "preprocess"], [clean]),
            ("evaluate", clean, [], outs),
            ("export@encoder", clean, ["export"], [package]),
        )
    }
    with (root / "dvc.lock").open("w", encoding="utf-8") as file:
        YAML().dump({"schema": "2.0", "stages": stages}, file)


@dataclass(frozen=True)
class Ran:
    """Project with the run that its report describes."""

    root: Path

    @property
    def run(self) -> ReportedRun:
        params = read_params(self.root / "params.yaml")
        return ReportedRun(
            files=RunFiles(self.root),
            tasks=tuple(params.finetune),
            packages=params.export.models,
            released=released,
            past=lambda: PastRuns(
                run_id="f" * 32,
                commit="e" * 40,
                is_dirty=True,
                stages={"preprocess": StageRun("b" * 32, BUILT_AT, 33.0)},
            ),
            machine={"processor": "a processor, avx2"},
            built_at=BUILT_AT,
        )

    def with_run(self, **changes: Any) -> ReportedRun:
        return replace(self.run, **changes)


def released(package: str) -> Released | None:
    gates = (Gate("int8_agreement", 0.963, "at least", 0.96), Gate("unigram_ratio", 1.5, "at least", 2.0))
    return Released(
        version=Registered(f"clozeline-{package}", "3", "r" * 32, "p" * 64, was_rolled_back=False),
        aliases=("candidate",),
        decision=Decision(outcome="refused", reason=HARM, champion_before="2", gates=gates),
        latency=LATENCY_OF_A_TEXT | LATENCY_OF_A_BATCH,
    )


@pytest.fixture
def ran(tmp_path: Path, manifest_text: str) -> Ran:
    root = tmp_path / "project"
    for path, figures in METRICS.items():
        write_json(root / path, figures)
    for name, (columns, rows) in TABLES.items():
        path = root / "plots" / f"{name}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([columns.split(","), *rows])
    write_json(root / "reports/examples/examples.json", EXAMPLES)
    items = [{"given": {"text": HARM}, "actual": LABELS[19], "predicted": "numpy", "is_right": False}]
    write_json(root / "reports/finetune/library/examples.json", items)
    for package in ("encoder", "library"):
        (root / "dist" / package).mkdir(parents=True)
        (root / "dist" / package / "manifest.json").write_text(manifest_text, encoding="utf-8")
    write_params(root / "params.yaml", "library")
    write_lock(root)
    return Ran(root)


@pytest.fixture(scope="session")
def manifest_text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Text of the manifest of a package in INT8, made with a tool that has a harmful version."""
    folder = tmp_path_factory.mktemp("tiny") / "package"
    packages.write_encoder(folder)
    counts = {"quantized_matmuls": 9, "quantized_activations": 9, "quantized_embeddings": 1}
    scheme = packages.SCHEME.model_copy(update={"embeddings": "int8 per row, symmetric", **counts})
    facts = {"quantization": scheme, "versions": {"torch": HARM}}
    return read_manifest(folder).model_copy(update=facts).model_dump_json()
