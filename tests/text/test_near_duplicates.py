import itertools
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from clozeline.machine.workers import Workers
from clozeline.text import near_duplicates
from clozeline.text.exact_duplicates import SketchedBucket
from clozeline.text.near_duplicates import similar_pairs
from clozeline.text.sketches import Sketches, SketchWriter
from clozeline.words.shingles import Banding, shingle_sets

INLINE = Workers(None, 1)


def sketch(folder: Path, texts: list[str], order: list[int] | None = None) -> Sketches:
    """Sketch `texts`; `order` gives the place of each in the source, so that tests can shuffle them."""
    banding = Banding.finding(0.5)
    places = order or list(range(len(texts)))
    with SketchWriter(folder / f"sketches-{random.random()}", banding.num_bands) as writer:
        for start in range(0, len(texts), 50):
            part = texts[start : start + 50]
            ordinals = np.array(places[start : start + 50])
            writer.append(
                SketchedBucket(0, ordinals, ordinals, np.zeros(len(part)), [shingle_sets(pa.array(part), banding)])
            )
        return writer.finish()


def true_jaccard(one: str, other: str) -> float:
    left, right = (
        {tuple(words[start : start + 3]) for start in range(len(words) - 2)} for words in (one.split(), other.split())
    )
    return len(left & right) / len(left | right)


@pytest.fixture
def texts(words) -> list[str]:
    """60 originals, each with three copies in which 1 to 20 of 60 words are replaced."""
    found = []
    for seed in range(60):
        original = words(seed, 60).split()
        found.append(" ".join(original))
        for copy in range(3):
            changed = original.copy()
            for place in random.Random(seed * 3 + copy).sample(range(60), 1 + (seed * 3 + copy) % 20):
                changed[place] = f"new{seed}x{place}"
            found.append(" ".join(changed))
    return found


def test_similar_pairs_have_their_true_jaccard_and_few_are_missed(tmp_path, texts) -> None:
    edges = similar_pairs(sketch(tmp_path, texts), 0.5, INLINE)
    found = {
        (first, second): similarity
        for first, second, similarity in zip(edges.earlier_E, edges.later_E, edges.similarity_E, strict=True)
    }
    true = {
        pair: similarity
        for pair in itertools.combinations(range(len(texts)), 2)
        if (similarity := true_jaccard(texts[pair[0]], texts[pair[1]])) >= 0.5
    }
    assert found.keys() <= true.keys()
    assert all(similarity == pytest.approx(true[pair]) for pair, similarity in found.items())
    assert len(true) > 90
    assert len(found) >= 0.97 * len(true)


def test_pairs_do_not_depend_on_the_order_of_buckets(tmp_path, texts) -> None:
    order = list(range(len(texts)))
    random.Random(1).shuffle(order)
    shuffled = [texts[place] for place in order]
    plain = similar_pairs(sketch(tmp_path, texts), 0.5, INLINE)
    other = similar_pairs(sketch(tmp_path, shuffled, order), 0.5, INLINE)
    np.testing.assert_array_equal(plain.earlier_E, other.earlier_E)
    np.testing.assert_array_equal(plain.later_E, other.later_E)
    np.testing.assert_array_equal(plain.similarity_E, other.similarity_E)


def test_pairs_do_not_depend_on_the_size_of_chunks(tmp_path, texts, monkeypatch) -> None:
    sketches = sketch(tmp_path, texts)
    whole = similar_pairs(sketches, 0.5, INLINE)
    monkeypatch.setattr(near_duplicates, "_CHUNK_SHINGLES", 300)
    np.testing.assert_array_equal(similar_pairs(sketches, 0.5, INLINE).similarity_E, whole.similarity_E)


def test_each_of_many_copies_costs_few_comparisons(tmp_path, words) -> None:
    boilerplate = words(0, 40)
    texts = [f"{boilerplate} {words(seed, 2)}" for seed in range(1, 400)]
    edges = similar_pairs(sketch(tmp_path, texts), 0.5, INLINE)
    assert edges.num_candidates < 399 * 398 / 2 / 2
    assert set(edges.later_E.tolist()) == set(range(1, 399))


@pytest.mark.parametrize("count", [1, 2])
def test_dissimilar_texts_give_no_pairs(tmp_path, words, count: int) -> None:
    edges = similar_pairs(sketch(tmp_path, [words(seed) for seed in range(count)]), 0.5, INLINE)
    assert len(edges.earlier_E) == 0
