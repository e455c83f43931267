"""Models to start from that are outputs of the project: DVC deletes the outputs of a stage before it runs."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from clozeline.errors import ParamsError


def refuse_own_outputs(named: Mapping[str, str | None], outs: Iterable[str | Path], root: Path) -> None:
    """Check that no model in `named` lies in one of `outs`; without the folder, its name would be looked up on the hub.

    Args:
        named: key of params.yaml → folder or hub name; null is no model.
        outs: outputs of stages, relative to `root`.

    Raises:
        ParamsError: a model lies in an output.
    """
    folders = [(root / out).resolve() for out in outs]
    for key, name in named.items():
        if name is None:
            continue
        place = (root / name).resolve()
        if any(place.is_relative_to(folder) for folder in folders):
            raise ParamsError(
                f"`{key}` is an output of this project, which DVC deletes before the stage that writes it runs",
                given=f"{key}: {name}",
                expected="a folder that no stage writes, or a name on the hub",
                do=f"copy the model, for example `cp -r {name} my-start`, and set `{key}: my-start`; to train the "
                "released encoder further, `start: champion` is enough",
            )
