"""Params and small texts that every test of this room needs."""

from collections.abc import Callable
from typing import Any

import pytest

from clozeline.params.text import PreprocessParams, SourceParams
from tests.records.words.conftest import words

__all__ = ["params_of", "words"]

ParamsOf = Callable[..., PreprocessParams]


@pytest.fixture
def params_of() -> ParamsOf:
    """Params of a source with sensible values; keyword arguments change it."""

    def build(**changes: Any) -> PreprocessParams:
        source = {
            "kind": "files",
            "path": "texts",
            "url": None,
            "query": None,
            "pattern": "**/*",
            "one_document_per": "paragraph",
            "text_field": "text",
            "label_field": None,
            "dataset": None,
            "subset": None,
            "revision": None,
        }
        whole = {
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
        source |= {key: value for key, value in changes.items() if key in source}
        whole |= {key: value for key, value in changes.items() if key in whole}
        return PreprocessParams(source=SourceParams(**source), **whole)

    return build
