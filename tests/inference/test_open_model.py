"""Batches hold every text once and stay within the budget, whatever the order of the texts."""

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clozeline.inference.open_model import GraphSession, TextBatch, batches, check_top_k, likeliest
from clozeline.inference.tokenization import TokenizedText
from clozeline.system.errors import DataError
from tests.make.packages import write_encoder

PAD = 0


def batched(lengths: list[int], batch_tokens: int = 64) -> tuple[list[TokenizedText], list[TextBatch]]:
    """Return texts of these lengths, each with ids of its own, and their batches."""
    texts = [TokenizedText(np.arange(length) + 100 * (n + 1), ()) for n, length in enumerate(lengths)]
    return texts, list(batches(texts, pad_id=PAD, batch_tokens=batch_tokens))


def rows_of(batch: TextBatch) -> list[list[int]]:
    both = zip(batch.input_ids_BL, batch.attention_mask_BL, strict=True)
    return [ids_L[mask_L == 1].tolist() for ids_L, mask_L in both]


@given(st.lists(st.integers(1, 40), max_size=30), st.sampled_from([24, 64]))
def test_every_text_is_in_one_batch_with_its_own_tokens_and_padding_at_the_end(
    lengths: list[int], batch_tokens: int
) -> None:
    texts, found = batched(lengths, batch_tokens)
    rows = {place: row for batch in found for place, row in zip(batch.positions, rows_of(batch), strict=True)}
    assert rows == {number: text.ids_L.tolist() for number, text in enumerate(texts)}
    for batch in found:
        assert batch.input_ids_BL.size <= batch_tokens or len(batch.positions) == 1, "only a long text exceeds it"
        assert (np.diff(batch.attention_mask_BL, axis=1) <= 0).all()
        assert ((batch.input_ids_BL == PAD) == (batch.attention_mask_BL == 0)).all()
    shuffled = random.Random(0).sample(texts, len(texts))
    again = batches(shuffled, pad_id=PAD, batch_tokens=batch_tokens)
    assert [rows_of(batch) for batch in again] == [rows_of(batch) for batch in found]


def test_texts_of_mixed_lengths_need_little_padding() -> None:
    _, made = batched(np.random.default_rng(0).integers(5, 200, size=200).tolist(), 512)
    padding = sum(int((batch.attention_mask_BL == 0).sum()) for batch in made)
    assert padding / sum(batch.input_ids_BL.size for batch in made) < 0.05


def test_probabilities_are_the_softmax() -> None:
    values = np.random.default_rng(0).normal(size=50).astype(np.float32)
    places, probabilities = zip(*likeliest(values, 50), strict=True)
    expected = np.exp(values.astype(np.float64)) / np.exp(values.astype(np.float64)).sum()
    np.testing.assert_allclose(probabilities, expected[list(places)], rtol=1e-5)
    assert list(probabilities) == sorted(probabilities, reverse=True)


EVENS, ODDS = range(0, 100, 2), range(1, 200, 2)


@pytest.mark.parametrize(
    ("logits", "top_k", "expected"),
    [
        ([0, 0, 0, 0], 1, [(0, 0.25)]),
        ([1e4, -1e4, 1e4], 3, [(0, 0.5), (2, 0.5), (1, 0.0)]),
        ([0, 1e4], 10, [(1, 1.0), (0, 0.0)]),
        ([1, 1e4] * 100, 150, [*((place, 0.01) for place in ODDS), *((place, 0.0) for place in EVENS)]),
    ],
    ids=["a share of all answers", "no overflow", "all there are", "ties in their order"],
)
def test_the_likeliest_come_first_with_their_share_of_all(
    logits: list[float], top_k: int, expected: list[tuple[int, float]]
) -> None:
    assert likeliest(np.array(logits, dtype=np.float32), top_k) == expected


@pytest.mark.parametrize(("top_k", "step"), [(1, 0.5), (5, 1e-6), (40, 1e-6), (40, 0.5)])
def test_the_likeliest_tokens_equal_those_of_a_full_sort(top_k: int, step: float) -> None:
    """Rounding to steps makes many values equal."""
    drawn = np.random.default_rng(top_k).normal(size=30_522)
    values = (np.round(drawn / step) * step).astype(np.float32)
    values[-top_k:] += 3  # the best are next to each other, at the end
    expected = np.argsort(-values, kind="stable")[:top_k]
    assert [place for place, _ in likeliest(values, top_k)] == expected.tolist()


def test_top_k_0_is_refused() -> None:
    with pytest.raises(DataError, match="top_k"):
        check_top_k(0)


@pytest.mark.parametrize(("num_threads", "spins"), [(1, "0"), (2, "1")])
def test_only_multi_threaded_sessions_spin_and_only_during_a_run(tmp_path: Path, num_threads: int, spins: str) -> None:
    write_encoder(tmp_path / "encoder")
    inputs = ("input_ids", "attention_mask")
    session = GraphSession(tmp_path / "encoder/model.onnx", input_names=inputs, num_threads=num_threads)
    entry = session._session.get_session_options().get_session_config_entry
    assert entry("session.intra_op.allow_spinning") == spins
    assert entry("session.force_spinning_stop") == "1"
