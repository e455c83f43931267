"""Packages that are made in milliseconds, for tests of exams and of ranges, and graphs of a few nodes."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from clozeline.exporting.exams import Answers, Exam, Sample, exam_of
from clozeline.exporting.fixed_scales import Seen
from clozeline.inference.open_model import OpenModel
from clozeline.inference.package import load
from clozeline.records.finetune.scored_items import HeldOut

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
