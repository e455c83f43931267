import pytest

from clozeline.serving.models import AnswerCache, Key

NUMBERS = range(100)
ANSWER = b"x" * 400


def key(number: int) -> Key:
    return "/embed", b"%04d" % number, 0


@pytest.fixture
def cache() -> AnswerCache:
    """Cache that has room for four answers of the length of ANSWER."""
    return AnswerCache(4_000)


def kept(cache: AnswerCache) -> list[int]:
    return [number for number in NUMBERS if cache.find(key(number))]


def test_the_newest_answers_stay_however_many_came_before(cache: AnswerCache) -> None:
    for number in NUMBERS:
        cache.keep(key(number), ANSWER, {})
    assert kept(cache) == [96, 97, 98, 99]


def test_an_answer_that_is_used_again_outlives_unused_ones(cache: AnswerCache) -> None:
    for number in NUMBERS:
        cache.keep(key(number), ANSWER, {})
        assert cache.find(key(0)) == (ANSWER, {})
    assert kept(cache) == [0, 97, 98, 99]


def test_an_answer_larger_than_the_cache_displaces_no_other(cache: AnswerCache) -> None:
    cache.keep(key(0), ANSWER, {})
    cache.keep(key(1), b"x" * 4_000, {})
    assert kept(cache) == [0]
