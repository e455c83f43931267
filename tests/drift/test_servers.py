"""The servers whose traffic is added are named by URL."""

import pytest

from clozeline.orchestration.drift import urls_of
from clozeline.system.errors import ParamsError


def test_urls_are_separated_by_commas() -> None:
    assert urls_of("http://a:8000, http://b:8000") == ["http://a:8000", "http://b:8000"]


def test_the_address_of_a_model_is_refused_with_the_successor() -> None:
    with pytest.raises(ParamsError) as caught:
        urls_of("models:/clozeline-encoder@champion")
    assert "CLOZELINE_SERVER=http://" in caught.value.do
