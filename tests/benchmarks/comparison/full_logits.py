"""Fill-mask with a graph that gives the logits of every token, as stock exports do.

B texts of a batch, L tokens of the longest, V vocabulary.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

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
