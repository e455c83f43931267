"""A small task whose batch is too large for the available memory; a test runs it in a process of its own."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from clozeline.tasks.training import prepare_training
from clozeline.training.curves import CurvePoint
from clozeline.training.state import Callback
from tests.make.processes import with_little_and_with_enough
from tests.make.tasks import CASES, inputs_of_case, prepare


class Curve(Callback):
    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_point(self, point: CurvePoint) -> None:
        self.losses.append(point.loss)


def losses(kind: str, encoder: Path, data: Path, **changes: object) -> list[float]:
    case, curve = CASES[kind][0], Curve()
    knobs = {"max_length": 64, "epochs": 2, "validations_per_epoch": 1, **changes}
    task = prepare(kind, case, encoder, data, **knobs)
    with TemporaryDirectory() as work:
        training = prepare_training(task, inputs_of_case(kind, case, encoder, data, **knobs), Path(work))
        trained = training.chosen().run(curve, lambda validation: None)
    return [*curve.losses, *(validation.validation_score for validation in trained.validations)]


def main(kind: str, encoder: Path, few: Path, many: Path) -> None:
    losses(kind, encoder, few, batch_size=2)
    with_little_and_with_enough(lambda: losses(kind, encoder, many, batch_size=2048))


if __name__ == "__main__":
    main(sys.argv[1], *map(Path, sys.argv[2:]))
