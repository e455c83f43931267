"""Claim: every kind of task has its knobs."""

from clozeline.params.tasks import SECTIONS
from clozeline.tasks.kinds import KINDS


def test_kinds_and_sections_of_params_match() -> None:
    assert set(KINDS) == set(SECTIONS)
