"""Control of transformers' own messages."""

from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging


@contextmanager
def errors_only() -> Iterator[None]:
    """Silence transformers' warnings and progress bars.

    Some warnings report something intended (a fresh head), others concern transformers' own code. The bars are for
    work that takes no time.
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
