"""The pairs that are found are those that comparing every text with every other one finds."""

import itertools
import random
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pytest

from clozeline.cluster.ledger import Ledger
from clozeline.corpus.cleaning import near_duplicates
from clozeline.corpus.cleaning.buckets import SketchedBucket, write_bucket_sketches
from clozeline.corpus.cleaning.near_duplicates import Edges, Sketches, similar_pairs
from clozeline.records.words.shingles import Banding, shingle_sets
from clozeline.system.workers import Workers

FindPairs = Callable[..., Edges]


@pytest.fixture
def pairs_of(tmp_path_factory: pytest.TempPathFactory) -> FindPairs:
    """`pairs_of(texts, places)`: the similar pairs; `places` of the texts in the source, so that tests can shuffle."""

    def pairs_of(texts: list[str], places: Sequence[int] | None = None) -> Edges:
        banding, root, buckets = Banding.finding(0.5), tmp_path_factory.mktemp("sketches"), []
        place_N = np.array(range(len(texts)) if places is None else places)
        for start in range(0, len(texts), 50):
            part, ordinals = texts[start : start + 50], place_N[start : start + 50]
            bucket = SketchedBucket(f"bucket {start}", root / f"bucket-{start}", len(part), start)
            bucket.folder.mkdir(parents=True)
            sets = shingle_sets(pa.array(part), banding)
            write_bucket_sketches(bucket.folder, ordinals, ordinals, np.zeros(len(part)), sets)
            buckets.append(bucket)
        sketches = Sketches.of(buckets, banding.num_bands, root / "arrays")
        return similar_pairs(sketches, 0.5, Ledger(root / "ledger", "code", Workers(None, 1)))

    return pairs_of


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
        for number in range(3 * seed, 3 * seed + 3):
            changed = original.copy()
            for place in random.Random(number).sample(range(60), 1 + number % 20):
                changed[place] = f"new{seed}x{place}"
            found.append(" ".join(changed))
    return found


def test_similar_pairs_have_their_true_jaccard_and_few_are_missed(pairs_of: FindPairs, texts) -> None:
    edges = pairs_of(texts)
    pairs = zip(edges.earlier_E.tolist(), edges.later_E.tolist(), strict=True)
    found = dict(zip(pairs, edges.similarity_E.tolist(), strict=True))
    every = itertools.combinations(range(len(texts)), 2)
    true = {pair: true for pair in every if (true := true_jaccard(texts[pair[0]], texts[pair[1]])) >= 0.5}
    assert found.keys() <= true.keys()
    assert all(similarity == pytest.approx(true[pair]) for pair, similarity in found.items())
    assert len(true) > 90
    assert len(found) >= 0.97 * len(true)


def test_pairs_do_not_depend_on_the_order_of_buckets_the_size_of_chunks_and_the_parts_of_later_texts(
    pairs_of: FindPairs, texts, monkeypatch
) -> None:
    places = random.Random(1).sample(range(len(texts)), len(texts))
    plain, others = pairs_of(texts), [pairs_of([texts[place] for place in places], places)]
    for sizes in ({"_CHUNK_SHINGLES": 300, "_TASK_SHINGLES": 2_000}, {"_LATER_BITS": 4}):
        with monkeypatch.context() as patch:
            for name, size in sizes.items():
                patch.setattr(near_duplicates, name, size)
            others.append(pairs_of(texts))
    for other in others:
        assert other.num_candidates == plain.num_candidates
        for name in ("earlier_E", "later_E", "similarity_E"):
            np.testing.assert_array_equal(getattr(other, name), getattr(plain, name))


def test_numbers_of_texts_may_exceed_32_bits() -> None:
    earlier = np.array([3, 2**33, 2**40, 2**33])
    later = np.array([5, 2**33 + 2**19, 2**40 + 1, 2**33 + 2**19])
    parts = near_duplicates.packed_by_part(earlier, later).items()
    texts = [near_duplicates.Candidates("key", packed_P, part).texts(slice(None)) for part, packed_P in parts]
    assert np.concatenate(texts, axis=1).T.tolist() == [[3, 5], [2**33, 2**33 + 2**19], [2**40, 2**40 + 1]]


def test_each_of_many_copies_costs_few_comparisons(pairs_of: FindPairs, words) -> None:
    edges = pairs_of([f"{words(0, 40)} {words(seed, 2)}" for seed in range(1, 400)])
    assert edges.num_candidates < 399 * 398 / 2 / 2
    assert set(edges.later_E.tolist()) == set(range(1, 399))


@pytest.mark.parametrize("count", [1, 2])
def test_dissimilar_texts_give_no_pairs(pairs_of: FindPairs, words, count: int) -> None:
    assert len(pairs_of([words(seed) for seed in range(count)]).earlier_E) == 0
