"""A folder like that of a sentence encoder on the hub, without weights that anything could compute with."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clozeline.records.published import Published
from tests.make.models import SENTENCES, word_pieces

BERT = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "vocab_size": 200,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
}
Written = Callable[..., Published]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """`written({file: JSON or None}, key=…)` writes a published model; None leaves a file out."""

    def write(files: dict[str, Any] | None = None, **config: Any) -> Published:
        from tokenizers import BertWordPieceTokenizer

        folder = tmp_path / "someone-model"
        folder.mkdir()
        BertWordPieceTokenizer(vocab=word_pieces(SENTENCES, vocab_size=200)).save(str(folder / "tokenizer.json"))
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
        for name, content in {"config.json": {**BERT, **config}, **(files or {})}.items():
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            if content is None:
                path.unlink(missing_ok=True)
            else:
                path.write_text(json.dumps(content))
        return Published(str(folder), None)

    return write


def sentence_files(pooling: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Files of sentence-transformers with this configuration of the pooling."""
    return {
        "modules.json": [
            {"type": "sentence_transformers.models.Transformer"},
            {"type": "sentence_transformers.models.Pooling"},
            {"type": "sentence_transformers.models.Normalize"},
        ],
        "1_Pooling/config.json": {"word_embedding_dimension": 32, **pooling},
        **more,
    }
