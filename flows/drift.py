"""Looks at the counters of a server: is what its models are asked still what they were asked at first?"""

import hashlib
import os
from pathlib import Path

from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact

from clozeline.drift.comparison import Limits
from clozeline.drift.traffic import ask
from clozeline.drift.watch import Verdict, Watch
from clozeline.errors import GateError
from clozeline.orchestration.prefect_adapter import tell_errors_plainly
from clozeline.serving import KEYS_VARIABLE
from clozeline.workspace import Workspace, reach_this_machine_directly


class DriftError(GateError):
    """What a model is asked is no longer what it was asked at first."""


@flow(name="drift", validate_parameters=False)
def drift(
    project: Path = Path(),
    url: str = "http://127.0.0.1:8000",
    min_texts: int = Limits.min_texts,
    max_index: float = Limits.max_index,
    max_unknown_increase: float = Limits.max_unknown_increase,
) -> list[Verdict]:
    """Compare what came since the last look with the first `min_texts` texts of each version that `url` serves.

    A key comes from the variable CLOZELINE_API_KEYS. What is known lies in `work/drift`.

    Raises:
        DriftError: a figure is beyond its limit; the run fails, and whoever is told of failed runs hears of it.
        TransientError: the server does not answer.
        DataError: it is no server of Clozeline.
    """
    tell_errors_plainly()
    reach_this_machine_directly()
    limits = Limits(min_texts, max_index, max_unknown_increase)
    file = Workspace(project.resolve()).work / "drift" / f"{hashlib.sha256(url.encode()).hexdigest()[:16]}.json"
    key = next(filter(None, map(str.strip, os.environ.get(KEYS_VARIABLE, "").split(","))), None)
    watch, verdicts = Watch.read(file).look(ask(url, key), limits)
    watch.write(file)
    lines = [str(verdict) for verdict in verdicts]
    get_run_logger().info("%s", "\n".join(lines))
    create_markdown_artifact("\n".join([f"# {url}", *(f"- {line}" for line in lines)]), key="drift")
    drifted = [verdict for verdict in verdicts if verdict.is_drift]
    if drifted:
        raise DriftError(
            f"what is asked has drifted: {', '.join(verdict.model for verdict in drifted)}",
            given="; ".join(str(shift) for verdict in drifted for shift in verdict.shifts if shift.is_drift),
            expected="texts as those that the version was asked at first",
            do="look at what clients send now; add such text to the corpus and run the pipeline again, "
            f"or remove {file} if this is what is to be expected from now on",
        )
    return verdicts
