"""Which of a package's two graphs answers here: INT8 if it passed its checks, but fp32 where INT8 is slower."""

from dataclasses import dataclass

from clozeline.artifacts.manifest import Manifest, Precision
from clozeline.inference.latency import compare
from clozeline.inference.open_model import OpenModel
from clozeline.machine.processor import processor
from clozeline.serving.models.sources import FetchedModel

MIN_INT8_SPEEDUP = 0.9
"""fp32's time over INT8's, of one text or of a few; nearer to 1, so short a measurement tells nothing apart."""
_TEXTS = 4
_REPEATS = 15
_SECONDS = 0.15
"""Of one text, and as long again of a few; however slow the model, once after a warm-up."""
_MEASUREMENTS = 3
"""INT8 is slower if it is in each of them. One alone is wrong now and then on a busy machine, as where a server that
answers loads a new version: of 40 each time, 4 and 8 (6 layers of 384, three threads at work on two cores).
"""
_PASSED = "it passed its checks"


@dataclass(frozen=True, slots=True)
class Choice:
    """A graph, and why it is this one."""

    precision: Precision
    reason: str
    is_settled: bool = True
    """False: INT8 passed its checks, and only the clock can tell whether it is the faster one here."""


def choice(found: FetchedModel, manifest: Manifest, asked: Precision | None) -> Choice:
    """The graph that was asked for; else the one that was found fit. What a release found holds on its processor."""
    if asked:
        return Choice(asked, "it was asked for")
    if manifest.served == "fp32":
        return Choice("fp32", "no INT8 scheme passed its checks")
    if found.served is None or found.served_on != processor():
        return Choice("int8", _PASSED, is_settled=False)
    if found.served == "fp32":
        return Choice("fp32", "INT8 was slower at the release, on such a processor")
    return Choice("int8", f"{_PASSED}, and was not slower at the release, on such a processor")


def timed(fp32: OpenModel, int8: OpenModel) -> Choice:
    """Both graphs of a package, asked in turns for a moment; what speaks against INT8 is measured again."""
    models: dict[Precision, OpenModel] = {"fp32": fp32, "int8": int8}
    for _ in range(_MEASUREMENTS):
        measured = compare(models, batch_texts=_TEXTS, repeats=_REPEATS, seconds=_SECONDS, figure=min)
        if (measured.int8_speedup or 0.0) >= MIN_INT8_SPEEDUP:
            return Choice("int8", f"{_PASSED}, and is not slower on this processor: {measured}")
    return Choice("fp32", f"INT8 is slower on this processor: {measured}")


def untimed(why: str) -> Choice:
    """INT8, where fp32 cannot be opened beside it."""
    return Choice("int8", f"{_PASSED}; whether it is the faster one here is not known: {why}")
