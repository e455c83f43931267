"""Claim: two texts have the same identity exactly if they differ only in case and white space."""

from clozeline.records.reading.streams import content_key, identity_of


def test_identity_ignores_only_case_and_white_space() -> None:
    assert identity_of("A  b\nC") == identity_of("a b c ")
    assert identity_of("a b c") != identity_of("a b, c")


def test_a_pair_gets_its_own_identity() -> None:
    assert identity_of("A b", "c") == identity_of("a  b", "C")
    assert len({identity_of("a b", "c"), identity_of("a", "b c"), identity_of("a b c"), identity_of("c", "a b")}) == 4


def test_identities_equal_those_of_earlier_versions() -> None:
    assert identity_of("A  b\nC") == content_key("a b c").hex() == "bf20797f12a991ed2a5ddfdaef9283f6"
    assert identity_of("a b", "c") == "7319534cb27d6c4cce730856a326696e"
