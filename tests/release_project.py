"""A project whose stages take no time and whose packages are real."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from tests.chosen_tasks import write_params
from tests.text_metrics import encoder_metrics

DVC_YAML = """
stages:
  snapshot:
    cmd: python steps.py raw.txt data/raw
    deps: [raw.txt, validation.parquet]
    outs: [data/raw]
  clean:
    cmd: python steps.py data/raw data/clean
    deps: [data/raw]
    outs: [data/clean]
  pretrain:
    cmd: python steps.py data/clean models/encoder
    deps: [data/clean]
    outs: [models/encoder]
  evaluate:
    cmd: python steps.py validation_text=data/clean/validation.parquet examples=reports/examples
    deps: [data/clean/validation.parquet]
    params: [evaluate]
    outs: [reports/examples]
  finetune:
    foreach: [library]
    do:
      cmd: python steps.py models/encoder models/finetuned/${item}
      deps: [models/encoder, data/clean/holdout.parquet]
      params: [seed, 'finetune.${item}']
      outs: ['models/finetuned/${item}']
  export:
    foreach: {encoder: encoder, library: finetuned/library}
    do:
      cmd: python steps.py packages/${key} dist/${key}
      deps: ['models/${item}', 'packages/${key}']
      outs: ['dist/${key}']
"""

STEPS = """
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
        "metric": "accuracy",
        "value": 0.8,
        "low": 0.78,
        "high": 0.82,
        "baseline": "TF-IDF + logistic regression",
        "baseline_value": 0.7,
        "trivial": "largest class",
        "trivial_value": 0.1,
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
    (root / "dvc.yaml").write_text(DVC_YAML)
    (root / "steps.py").write_text(STEPS)
    (root / "raw.txt").write_text("one two")
    (root / "validation.parquet").write_text("three")
    write_params(root / "params.yaml", *(name for name in packages if name != "encoder"))
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
