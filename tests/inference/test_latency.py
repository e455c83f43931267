"""The fp32 and INT8 graphs are timed on texts that the model can read."""

import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from clozeline.inference.latency import Latency, _figures, agreed, as_fast, measure


def test_every_figure_is_positive(encoder_package: Path, classifier_package: Path) -> None:
    for package in (encoder_package, classifier_package):
        latency = measure(package, batch_texts=4, repeats=1)
        times = (latency.int8_text_milliseconds, latency.fp32_text_milliseconds)
        times += (latency.int8_batch_milliseconds, latency.fp32_batch_milliseconds)
        assert all(time is not None and time > 0 for time in times)


def test_a_log_line_reads_as_a_sentence() -> None:
    latency = Latency(2.04, 1.0, 40.0, 20.0, batch_texts=32, num_threads=1)
    assert str(latency) == (
        "INT8 is 2.00 × as fast as fp32: one text in 2.0 ms (fp32), 1.0 ms (INT8);"
        " 32 texts in 40.0 ms (fp32), 20.0 ms (INT8); threads: 1"
    )


def test_a_slightly_slower_graph_is_not_shown_as_equally_fast() -> None:
    assert as_fast(0.9999) == "INT8 is 0.99 × as fast as fp32"
    assert as_fast(1.0) == "INT8 is 1.00 × as fast as fp32"


@pytest.mark.parametrize(("int8_text", "int8_batch", "speedup"), [(1.0, 20.0, 2.0), (4.0, 20.0, 0.5), (1.0, 50.0, 0.8)])
def test_the_speedup_is_the_smaller_of_single_text_and_batch(
    int8_text: float, int8_batch: float, speedup: float
) -> None:
    assert Latency(2.0, int8_text, 40.0, int8_batch, 32, 1).int8_speedup == pytest.approx(speedup, abs=1e-3)


def rounds(*speedups: float) -> Iterator[Latency]:
    return (Latency(speedup, 1.0, 10 * speedup, 10.0, batch_texts=32, num_threads=1) for speedup in speedups)


def test_rounds_repeat_until_three_in_a_row_agree_and_their_median_is_reported() -> None:
    made = rounds(0.74, 1.4, 1.02, 0.98, 1.0, 5.0)
    latency = agreed(lambda: next(made))
    assert latency.is_steady
    assert latency.int8_speedup == pytest.approx(1.0)
    assert "INT8 is 1.00 × as fast as fp32 (0.98 to 1.02 in 3 rounds): one text in 1.0 ms" in str(latency)
    assert next(made).int8_speedup == 5.0, "it stopped there"


def test_rounds_that_never_agree_stop_and_are_reported_as_unsteady() -> None:
    made = rounds(*[0.7, 1.0, 1.3] * 4)
    latency = agreed(lambda: next(made))
    assert not latency.is_steady
    assert (latency.int8_speedup, latency.num_rounds) == (1.0, 9)
    assert "which disagree" in str(latency)


def test_a_package_without_int8_is_timed_once() -> None:
    made = iter([Latency(1.0, None, 10.0, None, batch_texts=32, num_threads=1)])
    assert agreed(lambda: next(made)).is_steady


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
    assert len(_figures(both, 3, seconds, statistics.median)) == 2
    assert calls == ["fp32", "INT8"] * num_calls
