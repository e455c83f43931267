"""A problem that a person can act on is told in Prefect's logs by its message, not by a traceback."""

import logging

from clozeline.errors import ClozelineError


class WithoutTraceback(logging.Filter):
    """Takes the traceback of a `ClozelineError` out of what Prefect logs of it."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], ClozelineError):
            record.msg, record.args = "%s", (str(record.exc_info[1]),)
            record.exc_info = None
        elif isinstance(record.msg, str) and record.msg.startswith("Finished in state"):
            record.msg = record.msg.partition(r"\n")[0]  # the rest was told by the record above
        return True


def tell_errors_plainly() -> None:
    """Switch it on for flow and task runs; doing it twice changes nothing."""
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logger = logging.getLogger(name)
        if not any(isinstance(known, WithoutTraceback) for known in logger.filters):
            logger.addFilter(WithoutTraceback())
