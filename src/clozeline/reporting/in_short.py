"""The few figures that a reader looks for first."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from clozeline.errors import ClozelineError
from clozeline.reporting import packages, quality, tasks
from clozeline.reporting.compared import in_words, interval
from clozeline.reporting.numbers import amount, megabytes, milliseconds, share
from clozeline.reporting.run import Run


@dataclass(frozen=True)
class Tile:
    name: str
    value: str
    beside: str


def tiles(run: Run) -> list[Tile]:
    """Those whose files are there: their chapters say of the others what is missing."""
    return [tile for source in (_encoder, _tasks, _packages) for tile in _there(source, run)]


def _there(source: Callable[[Run], Iterator[Tile]], run: Run) -> Iterable[Tile]:
    made: list[Tile] = []
    try:
        made.extend(source(run))
    except ClozelineError:
        return made
    return made


def _encoder(run: Run) -> Iterator[Tile]:
    figures = quality.metrics(run)
    for key, form in (("perplexity", amount), ("top1", share)):
        if key in figures:
            ends = interval(figures, key)
            beside = f"unigram baseline {form(figures[f'unigram_{key}'])}" if f"unigram_{key}" in figures else ""
            yield Tile(f"encoder, {in_words(key)}", form(figures[key]), "; ".join(filter(None, [ends, beside])))


def _tasks(run: Run) -> Iterator[Tile]:
    for task in run.tasks:
        given = tasks.headline(run, task)
        told = tasks.form(given)
        beside = f"{given.baseline} {told(given.baseline_value)}, {given.trivial} {told(given.trivial_value)}"
        shown = "; ".join([*tasks.faults(run, task), beside])
        yield Tile(f"{task}, {in_words(given.metric)}", told(given.value), shown)


def _packages(run: Run) -> Iterator[Tile]:
    for package in run.packages:
        figures = packages.metrics(run, package)
        if figures.get("int8_size_bytes") and figures.get("int8_agreement"):
            beside = f"fp32 {megabytes(figures['fp32_size_bytes'])}; agrees in {share(figures['int8_agreement'])}"
            yield Tile(f"{package}, INT8", megabytes(figures["int8_size_bytes"]), beside)
        released = run.released(package)
        if released and "int8_text_milliseconds" in released.latency:
            beside = f"fp32 {milliseconds(released.latency['fp32_text_milliseconds'])}; on one thread"
            yield Tile(f"{package}, one text in INT8", milliseconds(released.latency["int8_text_milliseconds"]), beside)
