"""sentence-transformers and optimum with ONNX Runtime. Runs with their packages, and imports nothing of the project.

B texts of a batch, L tokens of the longest, V vocabulary.
"""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

# INT8 presets of sentence-transformers for x86; the machine decides which of them is faster.
PRESETS = {"avx2": "model_quint8_avx2.onnx", "avx512_vnni": "model_qint8_avx512_vnni.onnx"}


@dataclass(frozen=True)
class OnnxEmbedder:
    """`SentenceTransformer.encode` with `backend="onnx"`: its own sorting, batches of 32, one session."""

    folder: Path
    file: str
    num_threads: int

    def __call__(self, texts: Sequence[str]) -> Any:
        """The vectors, [T, H]."""
        return _opened(self).encode(list(texts), normalize_embeddings=True, show_progress_bar=False)


@cache
def _opened(embedder: OnnxEmbedder) -> Any:
    import onnxruntime
    import torch

    torch.set_num_threads(embedder.num_threads)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = embedder.num_threads
    settings = {"file_name": f"onnx/{embedder.file}", "provider": "CPUExecutionProvider", "session_options": options}
    theirs = importlib.import_module("sentence_transformers")
    return theirs.SentenceTransformer(str(embedder.folder), backend="onnx", model_kwargs=settings)


def export_embedder(trained: Path, out: Path) -> None:
    """Export the model in the folder `trained` in fp32 and in both INT8 presets."""
    theirs = importlib.import_module("sentence_transformers")
    options = {"export": True, "provider": "CPUExecutionProvider"}
    model = theirs.SentenceTransformer(str(trained), backend="onnx", model_kwargs=options)
    model.save_pretrained(str(out))
    for preset in PRESETS:
        theirs.export_dynamic_quantized_onnx_model(model, preset, str(out))


def export_full_logits(masked: Path, out: Path) -> None:
    """Export the model in the folder `masked`, with the logits of every token, in fp32 and in both INT8 presets."""
    from optimum.onnxruntime import ORTModelForMaskedLM, ORTQuantizer
    from optimum.onnxruntime.configuration import AutoQuantizationConfig
    from transformers import AutoTokenizer

    model = ORTModelForMaskedLM.from_pretrained(masked, export=True)
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(masked).save_pretrained(out)
    for preset, file in PRESETS.items():
        config = getattr(AutoQuantizationConfig, preset)(is_static=False)
        suffix = file.removeprefix("model_").removesuffix(".onnx")
        ORTQuantizer.from_pretrained(model).quantize(config, out, file_suffix=suffix)


_BATCH_TEXTS = 32


class FullLogits:
    """The stock graph, asked with more care than `transformers.pipeline` takes: texts sorted by length, in batches of
    32, no torch on the way, and only the logits of the masks are sorted.
    """

    def __init__(self, folder: Path, file: str, num_threads: int) -> None:
        import onnxruntime
        from transformers import AutoTokenizer

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = num_threads
        path = str(folder / file)
        self._session: Any = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self._inputs = [one.name for one in self._session.get_inputs()]
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)

    def fill(self, texts: Sequence[str], top_k: int) -> list[list[int]]:
        """Return for each text the likeliest tokens for its one mask, best first."""
        order = sorted(range(len(texts)), key=lambda number: len(texts[number]))
        found: dict[int, list[int]] = {}
        for at in range(0, len(order), _BATCH_TEXTS):
            numbers = order[at : at + _BATCH_TEXTS]
            found |= dict(zip(numbers, self._batch([texts[number] for number in numbers], top_k), strict=True))
        return [found[number] for number in range(len(texts))]

    def _batch(self, texts: list[str], top_k: int) -> list[list[int]]:
        inputs = self._tokenizer(texts, padding=True, truncation=True, return_tensors="np")
        (logits_BLV,) = self._session.run(["logits"], {name: inputs[name].astype(np.int64) for name in self._inputs})
        logits_BV = logits_BLV[inputs["input_ids"] == self._tokenizer.mask_token_id]
        best_BK = np.argpartition(logits_BV, -top_k, axis=1)[:, -top_k:]
        order_BK = np.argsort(-np.take_along_axis(logits_BV, best_BK, 1), axis=1)
        tokens: list[list[int]] = np.take_along_axis(best_BK, order_BK, 1).tolist()
        return tokens
