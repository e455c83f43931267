"""Files of a package beside its graphs.

config.json opens them in optimum's classes for ONNX graphs (`ORTModelFor…`), tokenizer.json truncates and pads texts as
the graphs need them.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from tokenizers import Tokenizer

from clozeline.artifacts.export.manifest import CONFIG, FILES, SpecialTokens
from clozeline.exporting.trained import TrainedModel

_OF_WEIGHTS = frozenset({"auto_map", "dtype", "quantization_config", "torch_dtype", "transformers_version"})
"""Keys about the original weight file or about the code that opens it; the package leaves them out."""


def write_client_config(trained: TrainedModel, folder: Path) -> None:
    """Write `folder`/config.json with labels, `model_type`, `architectures` and the shape, if optimum can use it."""
    kind = trained.kind
    # Other graphs answer at masks alone or with one vector, which optimum's classes do not expect.
    if kind.labels != "none" or kind.is_per_token:
        (folder / CONFIG).write_text(json.dumps(_facts(trained), indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _facts(trained: TrainedModel) -> Mapping[str, object]:
    config: Mapping[str, object] = json.loads((trained.folder / CONFIG).read_text(encoding="utf-8"))
    return {name: fact for name, fact in config.items() if not name.startswith("_") and name not in _OF_WEIGHTS}


def write_tokenizer(model: Path, folder: Path, *, max_length: int, special_tokens: SpecialTokens) -> None:
    """Write `folder`/tokenizer.json, made from the tokenizer of the trained model in `model`.

    It truncates texts to `max_length` tokens, including special tokens, and pads them to the longest of the batch.
    Otherwise code that uses tokenizers alone would feed the graph more positions than the model was trained with.
    """
    tokenizer = Tokenizer.from_file(str(model / FILES.tokenizer))
    tokenizer.enable_truncation(max_length)
    pad_id = special_tokens.pad_id
    tokenizer.enable_padding(pad_id=pad_id, pad_token=tokenizer.id_to_token(pad_id))
    tokenizer.save(str(folder / FILES.tokenizer))
