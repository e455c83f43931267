"""The fp32 and INT8 graphs are timed on texts that the model can read."""

import statistics
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


def test_a_slightly_slower_graph_is_not_shown_as_equally_fast() -> None:
    assert as_fast(0.9999) == "INT8 is 0.99 × as fast as fp32"
    assert as_fast(1.0) == "INT8 is 1.00 × as fast as fp32"
    told = str(Latency(2.04, 1.0, 40.0, 20.0, batch_texts=32, num_threads=1))
    assert told.startswith(f"{as_fast(2.0)}: one text in 2.0 ms (fp32), 1.0 ms (INT8)")


@pytest.mark.parametrize(("int8_text", "int8_batch", "speedup"), [(1.0, 20.0, 2.0), (4.0, 20.0, 0.5), (1.0, 50.0, 0.8)])
def test_the_speedup_is_the_smaller_of_single_text_and_batch(
    int8_text: float, int8_batch: float, speedup: float
) -> None:
    assert Latency(2.0, int8_text, 40.0, int8_batch, 32, 1).int8_speedup == pytest.approx(speedup, abs=1e-3)


@pytest.mark.parametrize(
    ("speedups", "is_steady", "speedup", "num_rounds", "told"),
    [
        (
            [0.74, 1.4, 1.02, 0.98, 1.0, 5.0],
            True,
            1.0,
            5,
            "as fast as fp32 (0.98 to 1.02 in 3 rounds): one text in 1.0",
        ),
        ([0.7, 1.0, 1.3] * 4, False, 1.0, 9, "which disagree"),
        ([None], True, 1.0, 1, ""),
    ],
    ids=["until three in a row agree", "until it is hopeless", "once, without INT8"],
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


@pytest.mark.parametrize(
    ("seconds", "num_calls"),
    [
        pytest.param(float("inf"), 4, id="a warm-up and three rounds"),
        pytest.param(0.0, 2, id="without time, each graph runs once after the warm-up"),
    ],
)
def test_the_two_graphs_run_alternately(seconds: float, num_calls: int) -> None:
    calls: list[str] = []
    both = [lambda: calls.append("fp32"), lambda: calls.append("INT8")]
    assert len(latency._figures(both, 3, seconds, statistics.median)) == 2
    assert calls == ["fp32", "INT8"] * num_calls
