"""torch.compile, if the machine has a compiler for it."""

import shutil
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from clozeline.errors import ParamsError

_COMPILERS = ("c++", "g++", "clang++")


def compiled(module: nn.Module, wanted: bool, backend: str | Callable[..., Any] = "inductor") -> nn.Module:
    """Compile `module` to one graph for all shapes of batches: lengths and numbers of targets are symbols in it.

    Raises:
        ParamsError: `wanted`, but the machine has neither a GPU nor a C++ compiler.
    """
    if not wanted:
        return module
    if backend == "inductor" and not torch.cuda.is_available() and not any(map(shutil.which, _COMPILERS)):
        raise ParamsError(
            f"`compile` needs a C++ compiler on a CPU, and none of {', '.join(_COMPILERS)} is installed",
            do="install one (Debian's package is called g++), or set `compile` to false",
        )
    module.compile(dynamic=True, backend=backend)
    return module
