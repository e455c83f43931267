"""Calls to MLflow whose failure must not stop the work that is tracked."""

import logging
from collections.abc import Callable
from typing import TypeVar

_LOG = logging.getLogger(__name__)
Result = TypeVar("Result")


def forgiving(call: Callable[[], Result]) -> Result | None:
    """Return the result of `call`; log any exception and return None.

    MLflow's own errors are not enough: an artifact store raises those of its package (boto3's are no `OSError`).
    """
    try:
        return call()
    except Exception as error:  # noqa: BLE001  # no error of MLflow may stop a training
        _LOG.warning("MLflow did not record a part of this run: %s", " ".join(str(error).split())[:300])
        return None
