"""What a stage imports before its first line: each import is time that every run of the stage waits."""

import subprocess
import sys

import pytest

IMPORT = """
import importlib, sys
importlib.import_module(f"clozeline.stages.{sys.argv[1]}")
late = {"accelerate", "mlflow", "prefect", "scipy", "sklearn"}
late |= {"transformers.modeling_utils", "torch.distributed.tensor"}
print(sorted(late & set(sys.modules)))
"""


@pytest.mark.parametrize("stage", ["snapshot", "preprocess", "tokenize", "pretrain", "evaluate", "finetune"])
def test_a_stage_imports_rarely_used_packages_only_when_needed(stage: str) -> None:
    imported = subprocess.run([sys.executable, "-c", IMPORT, stage], capture_output=True, text=True, check=True)
    assert imported.stdout.strip() == "[]"
