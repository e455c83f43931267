import copy

from clozeline import errors
from clozeline.errors import ClozelineError, DataError

LEAVES = [kind for kind in vars(errors).values() if isinstance(kind, type) and ClozelineError in kind.__bases__]


def test_a_message_tells_what_happened_what_was_given_what_was_expected_and_what_to_do() -> None:
    told = str(ClozelineError("the cup is empty", given="air", expected="tea", do="pour"))
    assert told.splitlines() == ["the cup is empty", "  given:    air", "  expected: tea", "  do:       pour"]


def test_every_leaf_has_an_exit_code_of_its_own() -> None:
    codes = [leaf.exit_code for leaf in LEAVES]
    assert len(LEAVES) == 7
    assert len(set(codes)) == len(codes)
    assert 0 not in codes
    assert ClozelineError.exit_code not in codes


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    assert errors.__doc__ is not None
    for leaf in LEAVES:
        assert leaf.__name__ in errors.__doc__


def test_only_what_may_work_later_has_the_exit_code_that_is_retried() -> None:
    assert [leaf.__name__ for leaf in LEAVES if leaf.exit_code == 75] == ["TransientError"]


def test_an_error_is_copied_whole_as_it_is_on_its_way_out_of_a_worker() -> None:
    error = DataError("the cup is empty", given="air", expected="tea", do="pour")
    again = copy.copy(error)
    assert type(again) is DataError
    assert str(again) == str(error)
