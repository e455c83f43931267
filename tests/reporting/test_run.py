import pytest

from clozeline.reporting.formats import format_of


@pytest.mark.parametrize("end", ["low", "high"])
def test_the_ends_of_an_interval_are_formatted_like_their_figure(end: str) -> None:
    assert format_of(f"top1_{end}")(0.392) == format_of("top1")(0.392) != format_of("another")(0.392)
