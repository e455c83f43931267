"""Packages that are made in milliseconds, for tests of exams and of ranges, and graphs of a few nodes."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from transformers import ModernBertForMaskedLM

from clozeline.exporting import ladder
from clozeline.exporting.exams import Answers, Exam, Sample, exam_of
from clozeline.exporting.fixed_scales import Seen
from clozeline.inference.open_model import OpenModel
from clozeline.inference.package import load
from clozeline.records.finetune.scored_items import HeldOut
from tests.make import models

Writing = Callable[[Path], None]
TinyPackage = Callable[[Writing], Path]
Opened = Callable[[Writing], OpenModel]
TEXTS = ["the list of files", "return a b c", "open the file é", "of the opened lists"]
# Two texts have the tokens of an earlier one: they differ in case and spaces, or only behind the cut.
REPEATED = ["the list of files", "THE  list of files", "a " * 80, f"{'a ' * 90}b", "open the file é"]


@pytest.fixture(scope="session")
def tiny_package(tmp_path_factory: pytest.TempPathFactory) -> TinyPackage:
    """`tiny_package(write_tagger)`: a folder with what that function of tests/make/packages.py writes, and no other."""

    def make(writing: Callable[[Path], None]) -> Path:
        folder = tmp_path_factory.mktemp("tiny") / "package"
        writing(folder)
        return folder

    return make


@pytest.fixture(scope="session")
def opened(tiny_package: TinyPackage) -> Opened:
    """`opened(write_tagger)` writes the package of that function and opens it."""
    return lambda writing: load(tiny_package(writing))


def sample_of(texts: Sequence[str], held_out: Sequence[HeldOut] = ()) -> Sample:
    """Return a sample of texts without labels."""
    return Sample(texts, [None] * len(texts), held_out)


def asked(model: OpenModel, sample: Sample) -> tuple[Exam, Answers]:
    """Return the exam of a model, and its answers."""
    exam = exam_of(model, sample)
    return exam, exam.answers(model, model.batches(exam.texts))


def said(answers: np.ndarray) -> Answers:
    return Answers(answers.astype(np.int64), None)


ExportModel = Callable[..., Path]
GATES = models.OPEN.but(
    min_agreement=0.9,
    min_agreement_texts=3,
    min_embedding_cosine=0.9,
    min_token_cosine=0.9,
    max_batch_flips=0.005,
    min_batch_cosine=0.999,
)
MASK_ID = 4
OUTLIER_CHANNELS, OUTLIER_SIZE = 6, 1024.0
OPEN = GATES.but(min_agreement=0.5)


@pytest.fixture(scope="session")
def outlier_encoder(small_encoder: Path, save_trained: Callable[[Any], Path]) -> Path:
    """Channels before the last product of a layer are 1,024 times as large, and its weights for them as much smaller:
    fp32 answers the same to the bit, but a token's scale leaves the other channels no digits.
    """
    model = ModernBertForMaskedLM.from_pretrained(small_encoder)
    mlp = model.model.layers[1].mlp
    with torch.no_grad():
        # Random layers change the vectors so little that each mask gets the same answer, that of the vector of [MASK].
        model.get_input_embeddings().weight[MASK_ID] = 0
        for weight in (*model.model.layers.parameters(), model.head.dense.weight):
            weight *= 8 if weight.ndim == 2 else 1
        gate = slice(mlp.Wi.out_features // 2, mlp.Wi.out_features // 2 + OUTLIER_CHANNELS)
        mlp.Wi.weight[gate] *= OUTLIER_SIZE
        mlp.Wo.weight[:, :OUTLIER_CHANNELS] /= OUTLIER_SIZE
    return save_trained(model)


@pytest.fixture(scope="session")
def outspoken_encoder(outlier_encoder: Path, save_trained: Callable[[Any], Path]) -> Path:
    """Encoder without outlier channels: its tokens have similar ranges in every layer."""
    model = ModernBertForMaskedLM.from_pretrained(outlier_encoder)
    mlp = model.model.layers[1].mlp
    with torch.no_grad():
        gate = slice(mlp.Wi.out_features // 2, mlp.Wi.out_features // 2 + OUTLIER_CHANNELS)
        mlp.Wi.weight[gate] /= OUTLIER_SIZE
        mlp.Wo.weight[:, :OUTLIER_CHANNELS] *= OUTLIER_SIZE
    return save_trained(model)


@pytest.fixture(scope="session")
def export_openly(export_model: ExportModel) -> ExportModel:
    """`export_model` with `OPEN` gates, which do not compare fixed scales with run-time scales: with random
    weights, single answers depend on the processor's rounding.
    """

    def export(model: Path, **changes: object) -> Path:
        with pytest.MonkeyPatch.context() as opened:
            opened.setattr(ladder, "no_worse_than", lambda rung, gates: gates)
            return export_model(model, limits=OPEN, **changes)

    return export


def node(op_type: str, inputs: str, output: str, **attributes: object) -> NodeProto:
    return helper.make_node(op_type, inputs.split(), [output], **{"name": output, **attributes})


def graph_of(nodes: Sequence[NodeProto], feeds: Mapping[str, np.ndarray], **constants: np.ndarray) -> ModelProto:
    """A graph from `feeds` (rows of any number) to its tensor `y`."""
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), [None, *value.shape[1:]])
        for name, value in feeds.items()
    ]
    weights = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", "columns"])]
    graph = helper.make_graph(nodes, "test", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)


def answer(
    model: ModelProto, feeds: Mapping[str, np.ndarray], output: str = "y", *, wide_sums: bool = False, **options: object
) -> np.ndarray:
    """The tensor `output`; `wide_sums` has onnxruntime avoid 16-bit sums, so that nothing can saturate."""
    how = onnxruntime.SessionOptions()
    for name, value in options.items():
        setattr(how, name, value)
    how.add_session_config_entry("session.x64quantprecision", str(int(wide_sums)))
    session = onnxruntime.InferenceSession(model.SerializeToString(), how, providers=["CPUExecutionProvider"])
    given: np.ndarray = session.run([output], dict(feeds))[0]
    return given


def seen_in(values_TK: np.ndarray) -> Seen:
    """Return the range statistics of these tokens."""
    return Seen(
        values_TK.min(axis=1),
        values_TK.max(axis=1),
        values_TK.min(axis=0, initial=0.0),
        values_TK.max(axis=0, initial=0.0),
        np.square(values_TK).sum(axis=0) / max(len(values_TK), 1),
    )
