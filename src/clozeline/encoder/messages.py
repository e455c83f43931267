"""What transformers says on its own."""

from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging


@contextmanager
def errors_only() -> Iterator[None]:
    """Keep back transformers' warnings, of which some are of what is wanted (a fresh head) and some of its own code."""
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)
