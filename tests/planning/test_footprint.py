"""The memory and time that a graph takes, measured in a process of its own."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from clozeline.planning.timing import BATCH_TEXTS, TEXT_TOKENS, GraphFeed, footprint, resident_bytes

FEED = GraphFeed(("input_ids",), vocab_size=50, mask_id=4, outputs=("y",))
MIB = 2**20


def graph(path: Path, num_columns: int) -> Path:
    """Write a graph that looks up rows of a table of 50 rows."""
    table = numpy_helper.from_array(np.ones((50, num_columns), dtype=np.float32), "E")
    made = helper.make_graph(
        [helper.make_node("Gather", ["E", "input_ids"], ["rows"]), helper.make_node("ReduceMean", ["rows"], ["y"])],
        "test",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [table],
    )
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_a_larger_graph_takes_more_memory_and_more_time(tmp_path: Path) -> None:
    small, large = (footprint(graph(tmp_path / f"{size}.onnx", size), FEED) for size in (8, 2**18))
    assert small.memory_bytes is not None
    assert large.memory_bytes is not None
    assert large.memory_bytes - small.memory_bytes > 50 * MIB  # a table of 50 MiB
    assert large.text_milliseconds > 2 * small.text_milliseconds
    assert large.batch_milliseconds > 2 * large.text_milliseconds


def test_every_sample_text_has_one_mask_and_valid_ids() -> None:
    ids_BL = FEED.batch(BATCH_TEXTS).input_ids_BL
    assert ids_BL.shape == (BATCH_TEXTS, TEXT_TOKENS)
    assert ((ids_BL == FEED.mask_id).sum(axis=1) == 1).all()
    assert 0 <= ids_BL.min() < ids_BL.max() < 50


def test_resident_memory_is_none_if_the_system_does_not_report_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clozeline.planning.timing._STATUS", tmp_path / "status")
    assert resident_bytes() is None
