from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def embedding_package(
    small_encoder: Path, save_trained: Callable[[Any], Path], export_model: Callable[..., Path]
) -> Path:
    """Exported package of `small_encoder` without its head."""
    from transformers import AutoModel

    return export_model(save_trained(AutoModel.from_pretrained(small_encoder)))
