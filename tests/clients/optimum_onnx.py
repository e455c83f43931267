"""`ORTModelFor…` of optimum-onnx open exported packages by the config.json that the export wrote.

Run by `make test-clients`, where transformers is one that optimum-onnx allows.
"""

import json
import os
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from optimum import onnxruntime as optimum
from tokenizers import Tokenizer

EXPORTED = Path(os.environ["CLOZELINE_EXPORTED"])


@pytest.mark.parametrize(
    ("name", "head"),
    [("classifier", "SequenceClassification"), ("tagger", "TokenClassification"), ("answerer", "QuestionAnswering")],
)
@pytest.mark.parametrize("file", ["model.onnx", "model.int8.onnx"])
def test_optimum_gives_the_logits_of_the_graph_and_its_labels(name: str, head: str, file: str) -> None:
    folder = EXPORTED / name
    model = getattr(optimum, f"ORTModelFor{head}").from_pretrained(folder, file_name=file, local_files_only=True)
    manifest = json.loads((folder / "manifest.json").read_text())
    encoding = Tokenizer.from_file(str(folder / "tokenizer.json")).encode("open the file")
    known = {"input_ids": encoding.ids, "attention_mask": encoding.attention_mask, "token_type_ids": encoding.type_ids}
    inputs = {given["name"]: torch.tensor([known[given["name"]]]) for given in manifest["inputs"]}
    answers = model(**inputs)

    session = onnxruntime.InferenceSession(str(folder / file))
    expected = session.run(None, {given: tensor.numpy() for given, tensor in inputs.items()})
    for output, values in zip(session.get_outputs(), expected, strict=True):
        np.testing.assert_allclose(answers[output.name].numpy(), values, rtol=1e-6)
    if manifest["labels"]:
        assert list(model.config.id2label.values()) == manifest["labels"]
