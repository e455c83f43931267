"""What a run looks like in a notebook: the chapters of the report that its files fill."""

from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from os import PathLike
from pathlib import Path
from typing import Final

from clozeline.api.run import Run, opened
from clozeline.reporting import page
from clozeline.reporting.files import RunFiles
from clozeline.reporting.run import Run as Reported
from clozeline.storage.atomic import replacing_file
from clozeline.tracking.past_runs import PastRuns

_HEIGHT_PIXELS: Final = 720
_OF_TRAINING: Final = ("training",)
_OF_EVALUATION: Final = ("encoder", "training", "examples")
_OF_TASK: Final = ("tasks",)


@dataclass(frozen=True)
class Shown:
    """A page about a run. A notebook displays it; `save` writes it to a file."""

    html: str

    def save(self, path: str | PathLike[str]) -> None:
        """Write the page to a file, which needs no network and no server."""
        with replacing_file(Path(path)) as file:
            file.write_text(self.html, encoding="utf-8")

    def _repr_html_(self) -> str:
        """Return the page in a frame of its own, so that its style does not touch the notebook's."""
        style = f"width:100%;height:{_HEIGHT_PIXELS}px;border:0"
        return f'<iframe title="Clozeline" style="{style}" srcdoc="{escape(self.html)}"></iframe>'


def show(run: Run | str | PathLike[str]) -> Shown:
    """Return a page about a run: curves of its training, hidden words with the encoder's guesses, figures of a task.

    Hidden words and figures of the encoder are there once `evaluate` has run.

    Raises:
        ParamsError: there is no run in the folder.
    """
    found = opened(run)
    params = found.config.checked
    reported = Reported(
        files=RunFiles(found.folder),
        tasks=(found.task,) if found.task else (),
        packages={},
        released=lambda package: None,
        past=PastRuns,
        machine={},
        built_at=datetime.now(UTC),
        is_causal=params.pretrain.objective == "clm",
    )
    is_evaluated = (found.folder / "metrics" / "evaluate.json").is_file()
    chapters = _OF_TASK if found.task else _OF_EVALUATION if is_evaluated else _OF_TRAINING
    return Shown(page.build(reported, chapters).html)
