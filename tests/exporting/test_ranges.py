"""The ranges of activations are measured token by token, on texts prepared as for inference.

T tokens, K values of each, V vocabulary, H hidden.
"""

import math
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from clozeline.exporting.ranges import ActivationRange, Seen, measured, range_of
from clozeline.inference.package import load
from clozeline.records.package import FILES, read_manifest
from tests.exporting.conftest import TinyPackage
from tests.make.packages import write_encoder, write_tagger

TEXTS = ["open the list", "return of the file", "list the files"]
OUTLIER = "return"


def seen_in(values_TK: np.ndarray) -> Seen:
    """Return the range statistics of these tokens."""
    return Seen(
        values_TK.min(axis=1),
        values_TK.max(axis=1),
        values_TK.min(axis=0, initial=0.0),
        values_TK.max(axis=0, initial=0.0),
        np.square(values_TK).sum(axis=0) / max(len(values_TK), 1),
    )


def seen_of(folder: Path, name: str, change: Callable[[onnx.ModelProto], None] = lambda graph: None) -> Seen:
    graph = onnx.load(folder / FILES.fp32)
    change(graph)
    return measured(graph, [name], folder / FILES.int8, read_manifest(folder), TEXTS)[name]


def reach_of(
    folder: Path, name: str, change: Callable[[onnx.ModelProto], None] = lambda graph: None
) -> ActivationRange:
    return range_of(seen_of(folder, name, change))


@pytest.fixture
def tagger(tiny_package: TinyPackage) -> Path:
    """Tagger whose only product reads rows of a random table, so all tokens have similar ranges."""
    return tiny_package(write_tagger)


def plant_outlier(folder: Path) -> Callable[[onnx.ModelProto], None]:
    """Multiply the row of one word by 200."""
    (row,) = load(folder, precision="fp32").tokenize([OUTLIER])[0].ids_L[1:-1]

    def change(graph: onnx.ModelProto) -> None:
        table = next(tensor for tensor in graph.graph.initializer if tensor.name == "embeddings")
        rows_VH = numpy_helper.to_array(table).copy()
        rows_VH[row] *= 200
        table.CopyFrom(numpy_helper.from_array(rows_VH, "embeddings"))

    return change


def rows_of(tagger: Path) -> np.ndarray:
    """What its product reads [T, H]."""
    table = next(t for t in onnx.load(tagger / FILES.fp32).graph.initializer if t.name == "embeddings")
    ids_T = np.concatenate([text.ids_L for text in load(tagger, precision="fp32").tokenize(TEXTS)])
    rows_TH: np.ndarray = numpy_helper.to_array(table)[ids_T]
    return rows_TH


def test_token_and_channel_ranges_are_measured_over_all_texts(tagger: Path) -> None:
    seen, expected = seen_of(tagger, "embedded_BLH"), seen_in(rows_of(tagger))
    for figure in fields(Seen):
        np.testing.assert_allclose(getattr(seen, figure.name), getattr(expected, figure.name), rtol=1e-5)


def test_the_range_covers_every_token_with_some_headroom(tagger: Path) -> None:
    rows_TH = rows_of(tagger)
    reach = reach_of(tagger, "embedded_BLH")
    assert 1.05 <= reach.high / rows_TH.max() <= 1.12
    assert 1.05 <= reach.low / rows_TH.min() <= 1.12


def test_an_outlier_token_raises_the_ratio(tagger: Path) -> None:
    assert reach_of(tagger, "embedded_BLH").ratio < 2.5
    assert reach_of(tagger, "embedded_BLH", plant_outlier(tagger)).ratio > 50


def test_ranges_of_a_fill_mask_head_are_measured_on_texts_with_masks(tiny_package: TinyPackage) -> None:
    """Texts without a mask would show the head nothing."""
    assert 0 < reach_of(tiny_package(write_encoder), "hidden_MH").ratio < 10


def tokens(*values: tuple[float, float]) -> Seen:
    return seen_in(np.array(values, dtype=np.float32).reshape(-1, 2))


def test_the_ratio_is_the_fixed_step_over_the_step_of_a_typical_token() -> None:
    """A token's own scale is symmetric: values of one sign leave half of it unused, but use all of a fixed scale."""
    assert range_of(tokens((-1, 1), (-1, 1), (-1, 1))).ratio == 1
    assert range_of(tokens((0, 1), (0, 1), (0, 1))).ratio == 0.5
    assert range_of(tokens((-1, 1), (-1, 1), (-1, 9))).ratio == 5


def test_zero_is_in_every_range() -> None:
    reach = range_of(tokens((2, 4), (3, 5)))
    assert reach.low == 0
    assert range_of(tokens((-5, -4), (-3, -2))).high == 0


def test_the_last_bits_of_a_float_change_no_range() -> None:
    """Processors differ in the last bits."""
    values_TK = np.random.default_rng(0).normal(size=(100, 10)).astype(np.float32)
    one, other = (range_of(seen_in(values_TK * factor)) for factor in (1.0, 1.0 + 1e-6))
    assert (one.low, one.high) == (other.low, other.high)


@pytest.mark.parametrize("seen", [tokens(), tokens((0, 0))])
def test_an_unmeasured_activation_has_an_infinite_ratio(seen: Seen) -> None:
    assert range_of(seen) == ActivationRange(0, 0, math.inf)
