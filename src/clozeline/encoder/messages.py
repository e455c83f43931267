"""What transformers says on its own."""

from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging


@contextmanager
def errors_only() -> Iterator[None]:
    """Keep back transformers' warnings, of which some are of what is wanted (a fresh head) and some of its own code,
    and its bars for what takes no time.
    """
    level, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if has_bars:
            logging.enable_progress_bar()
