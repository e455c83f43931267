"""Clozeline: from a team's raw text to its own encoder, served as INT8 on ordinary CPUs.

The names in `__all__` are the Python API. Each is imported on first use, so `import clozeline` is fast.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clozeline.api.config import Config
    from clozeline.api.model import Model, load
    from clozeline.api.run import Run
    from clozeline.api.showing import show
    from clozeline.api.steps import evaluate, export, finetune, pretrain
    from clozeline.collator.masking_collator import MaskingCollator
    from clozeline.errors import ClozelineError, ParamsError
    from clozeline.params import Params, read_params
    from clozeline.training.callbacks import Callback

__all__ = [
    "Callback",
    "ClozelineError",
    "Config",
    "MaskingCollator",
    "Model",
    "Params",
    "ParamsError",
    "Run",
    "evaluate",
    "export",
    "finetune",
    "load",
    "pretrain",
    "read_params",
    "show",
]

_PLACES = {
    "Callback": "clozeline.training.callbacks",
    "ClozelineError": "clozeline.errors",
    "Config": "clozeline.api.config",
    "MaskingCollator": "clozeline.collator.masking_collator",
    "Model": "clozeline.api.model",
    "Params": "clozeline.params",
    "ParamsError": "clozeline.errors",
    "Run": "clozeline.api.run",
    "evaluate": "clozeline.api.steps",
    "export": "clozeline.api.steps",
    "finetune": "clozeline.api.steps",
    "load": "clozeline.api.model",
    "pretrain": "clozeline.api.steps",
    "read_params": "clozeline.params",
    "show": "clozeline.api.showing",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
