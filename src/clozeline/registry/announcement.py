"""The moment from which the servers of a fleet answer by a new champion. Importing this loads no MLflow."""

import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Self

from clozeline.system.errors import ParamsError

NOTICE_VARIABLE: Final = "CLOZELINE_SERVE_AFTER_SECONDS"
_NOTICE_SECONDS: Final = 60.0
"""Several polls of a server (10 s each) and the time to fetch and load a model."""
_BETWEEN: Final = ", announced "


@dataclass(frozen=True, slots=True)
class Announcement:
    """Two moments, in seconds since 1970: when a champion was announced, and from when on it answers."""

    announced_seconds: float
    serve_from_seconds: float

    @classmethod
    def now(cls, *, is_first: bool = False) -> Self:
        """Announce a champion now; the first one of a model replaces none, and answers at once.

        Raises:
            ParamsError: CLOZELINE_SERVE_AFTER_SECONDS is not a number from 0 up.
        """
        seconds = time.time()
        return cls(seconds, seconds if is_first else seconds + _notice_seconds())

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the announcement that `str` wrote; None if the tag was edited to something else."""
        serve_from, _, announced = text.partition(_BETWEEN)
        try:
            return cls(datetime.fromisoformat(announced).timestamp(), datetime.fromisoformat(serve_from).timestamp())
        except ValueError:
            return None

    def __str__(self) -> str:
        serve_from, announced = (
            datetime.fromtimestamp(seconds, UTC).isoformat()
            for seconds in (self.serve_from_seconds, self.announced_seconds)
        )
        return f"{serve_from}{_BETWEEN}{announced}"


def _notice_seconds() -> float:
    given = os.environ.get(NOTICE_VARIABLE, "")
    try:
        seconds = float(given or _NOTICE_SECONDS)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise ParamsError(
            "the time between a promotion and its first answer cannot be used",
            given=f"{NOTICE_VARIABLE}={given}",
            expected="a number of seconds from 0 up",
            do=f"correct or unset {NOTICE_VARIABLE}",
        )
    return seconds
