"""Checks before the first step of pre-training: impossible budgets, and settings without effect."""

import logging

from clozeline.errors import ParamsError
from clozeline.language_modelling.objectives import OBJECTIVES
from clozeline.params import MaskingParams, PretrainParams

_LOG = logging.getLogger(__name__)
_OFF = {"unit": "token", "word_dropout": 0.0, "protected_tokens": ()}
"""Fields of `masking`, with the values that turn them off."""


def check_budget(params: PretrainParams, total_steps: int) -> None:
    """Check that a budget in tokens outlasts its warm-up. A budget in steps was checked when the params were read.

    Raises:
        ParamsError: the budget ends before its warm-up.
    """
    warmup_steps = params.schedule.warmup_steps
    if params.tokens is not None and total_steps < warmup_steps:
        raise ParamsError(
            "the budget `tokens` ends before the warm-up",
            given=f"{params.tokens:,} tokens ({total_steps:,} steps), and {warmup_steps:,} steps of warm-up",
            expected="a budget that outlasts the warm-up",
            do="lower `schedule.warmup_steps`, or raise `tokens`",
        )


def tell_what_has_no_effect(params: PretrainParams) -> None:
    """Warn about fields of `masking`, other than its rates, under an objective that hides nothing."""
    if OBJECTIVES[params.objective].masks:
        return
    asked = _asked(params.masking)
    if asked:
        _LOG.warning(
            "objective %s masks nothing: these settings of `masking` have no effect: %s",
            params.objective,
            ", ".join(asked),
        )


def _asked(masking: MaskingParams) -> list[str]:
    values = {name: getattr(masking, name) for name in _OFF}
    return [f"{name} {_value(value)}" for name, value in values.items() if value != _OFF[name]]


def _value(value: object) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value)
