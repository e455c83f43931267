"""Writing models in the form that stock transformers reads."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor


@contextmanager
def failed_writes_as_os_errors() -> Iterator[None]:
    """Turn safetensors' own error for a failed write into an OSError.

    Raises:
        OSError: the write failed.
    """
    try:
        yield
    except SafetensorError as error:
        code = re.search(r"os error (\d+)", str(error))
        if code is None:
            raise
        raise OSError(int(code.group(1)), str(error)) from error


def write_model(config: Any, class_name: str, weights: Mapping[str, Tensor], out: Path) -> None:
    """Write config.json, which names `class_name`, and model.safetensors.

    Raises:
        OSError: the write failed.
    """
    config.architectures = [class_name]
    config.dtype = str(next(iter(weights.values())).dtype).removeprefix("torch.")
    config.save_pretrained(out)
    whole = {name: weight.detach().contiguous() for name, weight in weights.items()}
    with failed_writes_as_os_errors():
        save_file(whole, out / "model.safetensors", metadata={"format": "pt"})
