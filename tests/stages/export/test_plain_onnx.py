"""A package works without Clozeline: the lines of docs/clients.md run unchanged."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from clozeline.inference.language import OpenEncoder
from clozeline.inference.package import load
from clozeline.inference.tokenization import TextTooLongError
from clozeline.records.package import FILES, read_manifest

PROJECT = Path(__file__).parents[3]
TEXTS = ["Sort a list in place.", "Open a file."]


def lines() -> str:
    """Return the code block of docs/clients.md; it has to stay short enough to be copied."""
    docs = (PROJECT / "docs" / "clients.md").read_text(encoding="utf-8")
    found = re.search(r"<!-- plain: .*?```python\n(.*?)```", docs, re.DOTALL)
    assert found
    _, _, code = found[1].partition("\n\n")
    assert len(code.splitlines()) <= 10
    return found[1]


@pytest.fixture
def project(encoder_package: Path, tmp_path: Path) -> Path:
    shutil.copytree(encoder_package, tmp_path / "dist" / "encoder")
    return tmp_path


def test_the_documented_onnxruntime_lines_give_our_embeddings_without_warnings(project: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-c", f"{lines()}\nprint(vectors_BH.tolist())"],
        cwd=project,
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stderr == ""
    model = load(project / "dist" / "encoder", precision="fp32")
    assert isinstance(model, OpenEncoder)
    np.testing.assert_allclose(json.loads(told.stdout), model.embed(TEXTS), atol=1e-5)


def test_the_tokenizer_of_a_package_truncates_long_texts_and_pads_short_ones(encoder_package: Path) -> None:
    manifest = read_manifest(encoder_package)
    tokenizer = Tokenizer.from_file(str(encoder_package / FILES.tokenizer))
    long, short = tokenizer.encode_batch(["the model " * manifest.max_length, "the model"])
    assert len(long) == len(short) == manifest.max_length
    assert set(short.ids[sum(short.attention_mask) :]) == {manifest.special_tokens.pad_id}
    assert sum(short.attention_mask) < manifest.max_length


def test_our_inference_still_counts_every_token_of_a_long_text(encoder_package: Path) -> None:
    model = load(encoder_package)
    too_long = "the model " * model.manifest.max_length
    (alone,), (beside, short) = model.tokenizer.count([too_long]), model.tokenizer.count([too_long, "the model"])
    assert alone == beside > model.manifest.max_length > short
    with pytest.raises(TextTooLongError) as refused:
        model.tokenize([too_long])
    assert f"{alone:,} tokens" in str(refused.value)
    assert len(model.tokenize([too_long], truncate=True)[0]) == model.manifest.max_length
