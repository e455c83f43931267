"""Check before the first step of pre-training: settings without effect."""

import logging

from clozeline.language_modelling.objectives import OBJECTIVES
from clozeline.params import MaskingParams, PretrainParams

_LOG = logging.getLogger(__name__)
_OFF = {"unit": "token", "protected_tokens": ()}
"""Fields of `masking`, with the values that turn them off."""


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
