"""Points of curves as events for TensorBoard, beside what MLflow gets."""

import logging
import os
from collections.abc import Mapping
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from clozeline.system.errors import ClozelineError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


_LOG = logging.getLogger(__name__)
TENSORBOARD: Final = "CLOZELINE_TENSORBOARD"
"""Environment variable with the folder of the events."""
_ON_HELD_OUT_TEXT: Final = "validation_"


def require_tensorboard() -> None:
    """Check that events can be written, if the environment asks for them.

    Raises:
        ClozelineError: TensorBoard is not installed.
    """
    folder = os.environ.get(TENSORBOARD)
    if folder and find_spec("tensorboard") is None:
        raise ClozelineError(
            "TensorBoard is not installed",
            given=f"{TENSORBOARD}={folder}, and no package tensorboard",
            expected="the extra `tensorboard`, which writes the events",
            do=f"run `pip install 'clozeline[tensorboard]'`, or `unset {TENSORBOARD}`",
        )


class TensorBoardRunLogger:
    """Writes one training as two runs, `training` and `validation`: TensorBoard draws both on one chart."""

    def __init__(self, folder: Path, name: str) -> None:
        """`folder` gets a folder named by `name` and the time, so that no training continues another one's events."""
        require_tensorboard()
        self._folder = folder / f"{name} {datetime.now():%Y-%m-%d %H.%M.%S}"
        self._writers: dict[str, SummaryWriter] = {}
        self._has_failed = False

    def metrics(self, values: Mapping[str, float], step: int) -> None:
        try:
            for key, value in values.items() if not self._has_failed else ():
                part = "validation" if _ON_HELD_OUT_TEXT in key else "training"
                self._writer(part).add_scalar(key.replace(_ON_HELD_OUT_TEXT, ""), value, step)
        except Exception as error:  # noqa: BLE001  # its thread raises any error later; none may stop a training
            self._has_failed = True
            _LOG.warning("TensorBoard gets no more points of this training: %s", error)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def _writer(self, part: str) -> "SummaryWriter":
        from torch.utils.tensorboard import SummaryWriter

        if part not in self._writers:
            self._writers[part] = SummaryWriter(str(self._folder / part))
        return self._writers[part]
