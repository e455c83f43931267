"""The ONNX graph of a package, opened in ONNX Runtime.

Shapes: B texts of a batch, L tokens of the longest.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime

from clozeline.inference.batching import Batch

MASKS_ONLY = "masks_only"
"""Input [1] of a masked language model: whether only outputs at masks are requested."""
_OF_EVERY_POSITION = frozenset({"sentence_embedding", "last_hidden_state"})
"""Outputs that need the last layer at every position."""


class GraphSession:
    """One open graph. It is thread-safe, because ONNX Runtime keeps no state between runs."""

    def __init__(self, path: Path, *, input_names: tuple[str, ...], num_threads: int, wide_sums: bool = False) -> None:
        """Open the graph in the file `path`.

        Args:
            path: file of the graph.
            input_names: names of the inputs to feed.
            num_threads: cores that one run may use.
            wide_sums: compute INT8 products so that no sum saturates on any processor; slower.
        """
        onnxruntime.disable_telemetry_events()  # from 1.32 on it sends telemetry unless the environment forbids it
        options = _options(num_threads)
        options.add_session_config_entry("session.x64quantprecision", str(int(wide_sums)))
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self._input_names = input_names

    @property
    def takes(self) -> set[str]:
        """Names of the graph's inputs."""
        return {value.name for value in (*self._session.get_inputs(), *self._session.get_overridable_initializers())}

    @property
    def gives(self) -> set[str]:
        """Names of the graph's outputs."""
        return {value.name for value in self._session.get_outputs()}

    def run(self, batch: Batch, *outputs: str) -> list[npt.NDArray[np.float32]]:
        """Run the graph on `batch` and return the outputs of these names."""
        types_BL = batch.token_type_ids_BL
        known = {
            "input_ids": batch.input_ids_BL,
            "attention_mask": batch.attention_mask_BL,
            "token_type_ids": np.zeros_like(batch.input_ids_BL) if types_BL is None else types_BL,
            # ONNX Runtime computes outputs that are not requested too: embeddings, which need the whole last layer.
            MASKS_ONLY: np.array([_OF_EVERY_POSITION.isdisjoint(outputs)]),
        }
        values: list[npt.NDArray[np.float32]]
        values = self._session.run(list(outputs), {name: known[name] for name in self._input_names})
        return values


def _options(num_threads: int) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    # At 0, ONNX Runtime uses every core of the host, ignoring the limit of the container (onnxruntime #29510).
    options.intra_op_num_threads = num_threads
    options.inter_op_num_threads = 1
    # A pattern is kept for each shape, and texts have all lengths: memory would grow without bound.
    options.enable_mem_pattern = False
    # Within a run, waking a sleeping thread takes longer than its share of a step. Between runs threads have to sleep.
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(num_threads > 1)))
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return options
