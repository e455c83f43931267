"""Chooses the precision of a package on this processor: the faster one if INT8 passed its checks, else fp32."""

from dataclasses import dataclass

from clozeline.artifacts.export.manifest import Manifest, Precision
from clozeline.inference.latency import as_fast, compare
from clozeline.inference.open_model import OpenModel
from clozeline.machine.processor import processor
from clozeline.serving.models.sources import FetchedModel

_TEXTS = 4
_REPEATS = 15
_SECONDS = 0.15
"""Time to measure one text, and again a few texts. Even a slow model runs once after a warm-up."""
_MEASUREMENTS = 3
"""INT8 counts as slower only if all of these measurements agree. On a busy machine, such as a server that loads a new
version, a single one is sometimes wrong: in 4 of 40 and 8 of 40 trials (6 layers of 384, three busy threads on two
cores).
"""
_PASSED = "it passed its checks"


@dataclass(frozen=True, slots=True)
class Choice:
    """A precision and the reason for it."""

    precision: Precision
    reason: str
    is_settled: bool = True
    """False: INT8 passed its checks, but only a measurement can tell whether it is faster here."""


def choice(found: FetchedModel, manifest: Manifest, asked: Precision | None, *, is_in_fleet: bool = False) -> Choice:
    """Return the requested precision; else fp32 if INT8 failed its checks; else what the release chose, if it ran on
    this processor; else INT8, unsettled. In a fleet, what the release chose on any processor: INT8 and fp32 give
    different vectors.
    """
    if asked:
        return Choice(asked, "it was requested")
    if manifest.served == "fp32":
        return Choice("fp32", "no INT8 scheme passed its checks")
    released = found.version
    if is_in_fleet:
        served = released.served if released and released.served else manifest.served
        return Choice(served, "the release chose it for the whole fleet")
    if released is None or released.served is None or released.served_on != processor():
        return Choice("int8", _PASSED, is_settled=False)
    reason = f"{as_fast(released.int8_speedup)}, measured by the release on this kind of processor"
    return Choice(released.served, reason if released.served == "fp32" else f"{_PASSED}; {reason}")


def timed(fp32: OpenModel, int8: OpenModel) -> Choice:
    """Time both graphs in turns for a moment and choose the faster one; a measurement in favour of fp32 is repeated."""
    models: dict[Precision, OpenModel] = {"fp32": fp32, "int8": int8}
    for _ in range(_MEASUREMENTS):
        measured = compare(models, batch_texts=_TEXTS, repeats=_REPEATS, seconds=_SECONDS, figure=min)
        if (measured.int8_speedup or 0.0) >= 1:
            return Choice("int8", f"{_PASSED}; measured here: {measured}")
    return Choice("fp32", f"measured here: {measured}")


def untimed(why: str) -> Choice:
    """Choose INT8 because fp32 cannot be opened beside it."""
    return Choice("int8", f"{_PASSED}; its speed was not compared with that of fp32: {why}")
