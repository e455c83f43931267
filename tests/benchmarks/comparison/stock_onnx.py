"""sentence-transformers and optimum with ONNX Runtime. Runs with their packages, and imports nothing of the project."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

PRESETS = {"avx2": "model_quint8_avx2.onnx", "avx512_vnni": "model_qint8_avx512_vnni.onnx"}
"""INT8 presets of sentence-transformers for x86; the machine decides which of them is faster."""


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
