"""The Python API: the names that `import clozeline as cz` provides. tests/api has what they do."""

import pytest

import clozeline


@pytest.mark.parametrize("name", clozeline.__all__)
def test_each_name_of_the_api_can_be_imported_and_is_listed(name: str) -> None:
    assert getattr(clozeline, name).__name__ == name
    assert name in dir(clozeline)


def test_an_unknown_name_of_the_api_raises_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'pretrian'"):
        clozeline.__getattr__("pretrian")
