"""The ONNX graph of a package, open in ONNX Runtime.

B texts of a batch, L tokens of the longest.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime

from clozeline.inference.batching import Batch

MASKS_ONLY = "masks_only"
"""Input of a masked language model [1]: whether nothing is asked of it but what stands at masks."""
_ERRORS = 3


class GraphSession:
    """One open graph. Safe to run from many threads: ONNX Runtime keeps no state between runs."""

    def __init__(self, path: Path, *, input_names: tuple[str, ...], num_threads: int, wide_sums: bool = False) -> None:
        """Open the graph in the file `path`.

        Args:
            path: the file.
            input_names: what the graph takes.
            num_threads: cores that one run may use.
            wide_sums: compute products of INT8 so that no sum can saturate, on any processor; slower.
        """
        onnxruntime.disable_telemetry_events()  # from 1.32 on it calls home, where the environment does not say no
        options = _options(num_threads)
        options.add_session_config_entry("session.x64quantprecision", str(int(wide_sums)))
        if MASKS_ONLY in input_names:
            # It has a default, of which ONNX Runtime warns whenever such a graph is opened.
            options.log_severity_level = _ERRORS
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._input_names = input_names

    def run(self, batch: Batch, *outputs: str) -> list[npt.NDArray[np.float32]]:
        """Run the graph on `batch` and return the outputs of these names."""
        types_BL = batch.token_type_ids_BL
        known = {
            "input_ids": batch.input_ids_BL,
            "attention_mask": batch.attention_mask_BL,
            "token_type_ids": np.zeros_like(batch.input_ids_BL) if types_BL is None else types_BL,
            # What ONNX Runtime is not asked for it computes all the same: the embeddings, after the whole last layer.
            MASKS_ONLY: np.array(["sentence_embedding" not in outputs]),
        }
        values: list[npt.NDArray[np.float32]]
        values = self._session.run(list(outputs), {name: known[name] for name in self._input_names})
        return values


def _options(num_threads: int) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    # Left at 0, ONNX Runtime takes every core of the host, whatever the container may use (onnxruntime #29510).
    options.intra_op_num_threads = num_threads
    options.inter_op_num_threads = 1
    # A pattern is kept for each shape seen, and texts come in all lengths: memory would grow without end.
    options.enable_mem_pattern = False
    # Between the steps of a run a sleeping thread is woken later than its share is done; between runs it is to sleep.
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(num_threads > 1)))
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return options
