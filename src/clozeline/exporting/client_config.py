"""The config.json of a package, with which optimum's classes for ONNX graphs (`ORTModelFor…`) open it."""

import json
from collections.abc import Mapping
from pathlib import Path

from clozeline.artifacts.export.manifest import CONFIG
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
