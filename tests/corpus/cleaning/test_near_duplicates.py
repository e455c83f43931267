"""The pairs that are found are those that comparing every text with every other one finds."""

import itertools
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from clozeline.cluster.ledger import Ledger
from clozeline.corpus.cleaning import near_duplicates
from clozeline.corpus.cleaning import near_duplicates as candidates
from clozeline.corpus.cleaning.buckets import SketchedBucket, write_bucket_sketches
from clozeline.corpus.cleaning.near_duplicates import Edges, Sketches, similar_pairs
from clozeline.records.words.shingles import Banding, shingle_sets
from clozeline.system.workers import Workers


def sketch(folder: Path, texts: list[str], order: list[int] | None = None) -> Sketches:
    """Sketch `texts`; `order` gives the place of each in the source, so that tests can shuffle them."""
    banding = Banding.finding(0.5)
    places = order or list(range(len(texts)))
    root = folder / f"sketches-{random.random()}"
    buckets = []
    for start in range(0, len(texts), 50):
        part = texts[start : start + 50]
        ordinals = np.array(places[start : start + 50])
        bucket = SketchedBucket(f"bucket {start}", root / f"bucket-{start}", len(part), start)
        bucket.folder.mkdir(parents=True)
        sets = shingle_sets(pa.array(part), banding)
        write_bucket_sketches(bucket.folder, ordinals, ordinals, np.zeros(len(part)), sets)
        buckets.append(bucket)
    return Sketches.of(buckets, banding.num_bands, root / "arrays")


def found_in(sketches: Sketches) -> Edges:
    return similar_pairs(sketches, 0.5, Ledger(sketches.folder / "ledger", "code", Workers(None, 1)))


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
    edges = found_in(sketch(tmp_path, texts))
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
    plain = found_in(sketch(tmp_path, texts))
    other = found_in(sketch(tmp_path, shuffled, order))
    np.testing.assert_array_equal(plain.earlier_E, other.earlier_E)
    np.testing.assert_array_equal(plain.later_E, other.later_E)
    np.testing.assert_array_equal(plain.similarity_E, other.similarity_E)


def test_pairs_do_not_depend_on_the_size_of_chunks(tmp_path, texts, monkeypatch) -> None:
    whole = found_in(sketch(tmp_path, texts))
    monkeypatch.setattr(near_duplicates, "_CHUNK_SHINGLES", 300)
    monkeypatch.setattr(near_duplicates, "_TASK_SHINGLES", 2_000)
    np.testing.assert_array_equal(found_in(sketch(tmp_path, texts)).similarity_E, whole.similarity_E)


def test_pairs_do_not_depend_on_the_parts_of_the_later_texts(tmp_path, texts, monkeypatch) -> None:
    whole = found_in(sketch(tmp_path, texts))
    monkeypatch.setattr(candidates, "_LATER_BITS", 4)
    parts = found_in(sketch(tmp_path, texts))
    assert parts.num_candidates == whole.num_candidates
    for name in ("earlier_E", "later_E", "similarity_E"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))


def test_numbers_of_texts_may_exceed_32_bits() -> None:
    earlier = np.array([3, 2**33, 2**40, 2**33])
    later = np.array([5, 2**33 + 2**19, 2**40 + 1, 2**33 + 2**19])
    by_part = candidates.packed_by_part(earlier, later)
    texts = [candidates.Candidates("key", packed_P, part).texts(slice(None)) for part, packed_P in by_part.items()]
    assert np.concatenate(texts, axis=1).T.tolist() == [[3, 5], [2**33, 2**33 + 2**19], [2**40, 2**40 + 1]]


def test_each_of_many_copies_costs_few_comparisons(tmp_path, words) -> None:
    boilerplate = words(0, 40)
    texts = [f"{boilerplate} {words(seed, 2)}" for seed in range(1, 400)]
    edges = found_in(sketch(tmp_path, texts))
    assert edges.num_candidates < 399 * 398 / 2 / 2
    assert set(edges.later_E.tolist()) == set(range(1, 399))


@pytest.mark.parametrize("count", [1, 2])
def test_dissimilar_texts_give_no_pairs(tmp_path, words, count: int) -> None:
    edges = found_in(sketch(tmp_path, [words(seed) for seed in range(count)]))
    assert len(edges.earlier_E) == 0
