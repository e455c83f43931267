"""A problem that a person can act on is told in Prefect's logs by its message, once, and not by a traceback."""

import logging

from clozeline.errors import ClozelineError

# Prefect repeats in these what the record before said, and says for each stage that did not start that it did not.
_REPEATED = ("Finished in state Failed(", "Finished in state NotReady(")


class WithoutTraceback(logging.Filter):
    """Takes the traceback of a `ClozelineError` out of what Prefect logs of it, and what Prefect repeats."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], ClozelineError):
            record.msg, record.args = "%s", (str(record.exc_info[1]),)
            record.exc_info = None
        return not (isinstance(record.msg, str) and record.msg.startswith(_REPEATED))


def tell_errors_plainly() -> None:
    """Switch it on for flow and task runs; doing it twice changes nothing."""
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logger = logging.getLogger(name)
        if not any(isinstance(known, WithoutTraceback) for known in logger.filters):
            logger.addFilter(WithoutTraceback())
