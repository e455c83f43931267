"""Clozeline: from a team's raw text to its own encoder, served as INT8 on ordinary CPUs.

The names in `__all__` are the Python API. Each is imported on first use, so `import clozeline` is fast.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clozeline.lab.collator import MaskingCollator
    from clozeline.params.editing import Config
    from clozeline.params.project import Params
    from clozeline.params.reading import read_params
    from clozeline.registry.sources import Model, load
    from clozeline.stages.calling.api import Run, evaluate, export, finetune, pretrain, show
    from clozeline.system.errors import ClozelineError, ParamsError
    from clozeline.training.state import Callback

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
    **dict.fromkeys(("Run", "evaluate", "export", "finetune", "pretrain", "show"), "clozeline.stages.calling.api"),
    **dict.fromkeys(("Model", "load"), "clozeline.registry.sources"),
    **dict.fromkeys(("ClozelineError", "ParamsError"), "clozeline.system.errors"),
    "Callback": "clozeline.training.state",
    "Config": "clozeline.params.editing",
    "MaskingCollator": "clozeline.lab.collator",
    "Params": "clozeline.params.project",
    "read_params": "clozeline.params.reading",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
