"""What is tracked is worth less than what it is about."""

import logging
from collections.abc import Callable
from typing import TypeVar

_LOG = logging.getLogger(__name__)
Result = TypeVar("Result")


def forgiving(call: Callable[[], Result]) -> Result | None:
    """What `call` gives; None if it raises anything at all, which is said.

    Not only MLflow's own errors: a store of files raises those of its package (boto3's are no `OSError`).
    """
    try:
        return call()
    except Exception as error:  # noqa: BLE001  # see above
        _LOG.warning("MLflow did not take what was to be tracked: %s", " ".join(str(error).split())[:300])
        return None
