"""What is asked of a pre-training, and cannot be had or has no effect: told before the first step."""

import logging

from clozeline.errors import ParamsError
from clozeline.params import MaskingParams, PretrainParams

_LOG = logging.getLogger(__name__)
_OFF = {"unit": "token", "word_dropout": 0.0, "protected_tokens": ()}
"""Of `masking`: what each is where nothing is asked for."""


def check_budget(params: PretrainParams, total_steps: int) -> None:
    """Raises:
    ParamsError: a budget in tokens is over before warm-up is; one in steps was compared when params were read.
    """
    warmup_steps = params.schedule.warmup_steps
    if params.tokens is not None and total_steps < warmup_steps:
        raise ParamsError(
            "`tokens` is a budget that ends before its warm-up does",
            given=f"{params.tokens:,} tokens, which are {total_steps:,} steps, and {warmup_steps:,} of warm-up",
            expected="a budget that outlasts its warm-up",
            do="lower `schedule.warmup_steps`, or raise `tokens`",
        )


def tell_what_has_no_effect(params: PretrainParams) -> None:
    """Under `clm` nothing is hidden: what `masking` asks for beside its rates is told of by name."""
    if params.objective != "clm":
        return
    asked = _asked(params.masking)
    if asked:
        _LOG.warning("objective clm hides nothing: `masking` has no effect, though it asks for %s", ", ".join(asked))


def _asked(masking: MaskingParams) -> list[str]:
    values = {name: getattr(masking, name) for name in _OFF}
    return [f"{name} {_told(value)}" for name, value in values.items() if value != _OFF[name]]


def _told(value: object) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value)
