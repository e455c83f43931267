"""The fp32 and INT8 graphs are timed on texts that the model can read."""

from pathlib import Path

import pytest

from clozeline.inference import latency
from clozeline.inference.latency import Latency, agreed, as_fast


def test_every_figure_is_positive(encoder_package: Path, classifier_package: Path) -> None:
    for package in (encoder_package, classifier_package):
        found = latency.measure(package, batch_texts=4, repeats=1)
        times = [found.int8_text_milliseconds, found.int8_batch_milliseconds]
        times += [found.fp32_text_milliseconds, found.fp32_batch_milliseconds]
        assert all(time is not None and time > 0 for time in times)


def test_the_speedup_is_the_smaller_of_single_text_and_batch_and_never_rounded_up() -> None:
    speedups = [Latency(2.0, text, 40.0, batch, 32, 1).int8_speedup for text, batch in ((4.0, 20.0), (1.0, 50.0))]
    assert speedups == pytest.approx([0.5, 0.8], abs=1e-3)
    assert as_fast(0.9999) == "INT8 is 0.99 × as fast as fp32"


@pytest.mark.parametrize(
    ("speedups", "is_steady", "speedup", "num_rounds", "told"),
    [
        ([0.74, 1.4, 1.02, 0.98, 1.0, 5.0], True, 1.0, 5, "(0.98 to 1.02 in 3 rounds): one text in 1.0"),
        ([0.7, 1.0, 1.3] * 4, False, 1.0, 9, "which disagree"),
        ([None], True, 1.0, 1, ""),
    ],
)
def test_rounds_repeat_until_three_in_a_row_agree_and_their_median_is_reported(
    speedups: list[float | None], is_steady: bool, speedup: float, num_rounds: int, told: str
) -> None:
    made = []

    def round_() -> Latency:
        made.append(ratio := speedups[len(made)])
        int8 = (None, None) if ratio is None else (1.0, 10.0)
        return Latency(ratio or 1.0, int8[0], 10 * (ratio or 1.0), int8[1], batch_texts=32, num_threads=1)

    found = agreed(round_)
    assert (found.is_steady, len(made)) == (is_steady, num_rounds)
    assert found.int8_speedup in (None, pytest.approx(speedup))
    assert told in str(found)
