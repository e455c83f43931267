"""Params and small texts that every test of this room needs."""

from collections.abc import Callable
from typing import Any

import pytest

from clozeline.params.text import PreprocessParams
from tests.records.words.conftest import words

__all__ = ["params_of", "words"]

ParamsOf = Callable[..., PreprocessParams]
NOTHING = ("url", "query", "label_field", "dataset", "subset", "revision")
SOURCE = {"kind": "files", "path": "texts", "pattern": "**/*", "one_document_per": "paragraph", "text_field": "text"}
WHOLE = {
    "on_bad_record": "stop",
    "min_characters": 20,
    "max_characters": 2_000,
    "min_words": None,
    "max_words": None,
    "near_duplicate_similarity": 0.8,
    "same_side_similarity": 0.5,
    "validation_fraction": 0.2,
    "holdout_fraction": 0.2,
}


@pytest.fixture(scope="session")
def params_of() -> ParamsOf:
    """Params of a source with sensible values; keyword arguments change it."""

    def build(**changes: Any) -> PreprocessParams:
        of_whole = {key: value for key, value in changes.items() if key in WHOLE}
        of_source = {key: value for key, value in changes.items() if key not in WHOLE}
        source = dict.fromkeys(NOTHING) | SOURCE | of_source
        return PreprocessParams.model_validate({**WHOLE, **of_whole, "source": source})

    return build
