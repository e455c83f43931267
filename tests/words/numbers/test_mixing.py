"""Claim: the bits are SplitMix64's, so that draws never change between versions."""

import numpy as np

from clozeline.records.words.numbers import mixed

MASK = 2**64 - 1


def test_mixing_gives_the_published_outputs_of_splitmix64() -> None:
    """First outputs of splitmix64.c (Vigna 2015) for the seed 1234567; its state grows by a constant."""
    seeds = np.array([(1234567 + step * 0x9E3779B97F4A7C15) & MASK for step in range(3)], dtype=np.uint64)
    assert mixed(seeds).tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_changing_one_bit_flips_half_of_the_output_bits() -> None:
    values = np.arange(2000, dtype=np.uint64)
    for bit in range(64):
        changed = mixed(values) ^ mixed(values ^ np.uint64(1 << bit))
        assert 0.45 < np.unpackbits(changed.view(np.uint8)).mean() < 0.55
