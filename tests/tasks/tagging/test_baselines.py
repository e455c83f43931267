"""Claim: the baseline gives each word its most frequent tag, and O to unseen words."""

from clozeline.tasks.tagging.data import Sentence
from clozeline.tasks.tagging.sentences import nothing, usual_tags


def sentence(words: str, tags: str) -> Sentence:
    return Sentence(tuple(words.split()), tuple(tags.split()), words, "train")


def test_a_word_gets_the_tag_it_has_most_often() -> None:
    train = [sentence("Paris is Paris", "B-LOC O B-LOC"), sentence("Paris sang", "B-PER O")]
    assert usual_tags(train, [sentence("Paris is new", "O O O")]) == [["B-LOC", "O", "O"]]


def test_ties_between_tags_go_to_the_first_by_name() -> None:
    train = [sentence("x x", "O B-A")]
    assert usual_tags(train, [sentence("x", "O")]) == [["B-A"]]


def test_the_trivial_baseline_tags_every_word_o() -> None:
    assert nothing([sentence("a b", "B-A O")]) == [["O", "O"]]
