"""Clozeline: from a team's raw text to its own encoder, served as INT8 on ordinary CPUs.

The names in `__all__` are the Python API. Each is imported on first use, so `import clozeline` is fast.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clozeline.collator.masking_collator import MaskingCollator
    from clozeline.params import Params, read_params
    from clozeline.pretraining.job import Pretrained, pretrain
    from clozeline.training.callbacks import Callback

__all__ = ["Callback", "MaskingCollator", "Params", "Pretrained", "pretrain", "read_params"]

_PLACES = {
    "Callback": "clozeline.training.callbacks",
    "MaskingCollator": "clozeline.collator.masking_collator",
    "Params": "clozeline.params",
    "Pretrained": "clozeline.pretraining.job",
    "pretrain": "clozeline.pretraining.job",
    "read_params": "clozeline.params",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
