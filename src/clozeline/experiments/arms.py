"""The arms of an ablation: the project's params.yaml, each with changes of its own."""

import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from clozeline.api.config import Config
from clozeline.api.editing import Change, assignments, changes_in, edit
from clozeline.api.run import PARAMS
from clozeline.errors import ParamsError
from clozeline.params import FROM_CHAMPION, Params, read_params

_SAME_IN_BOTH: Final[Mapping[str, str]] = {
    "seed": "the seeds follow from `seed` of params.yaml: both arms train from each of them",
    "preprocess": "both arms read the same text, and are measured on the same part of it",
    "evaluate": "both arms are measured in the same way",
}
"""Section → why an arm cannot change it."""
_WITHOUT_EFFECT: Final = {"recipe", "checkpoint_every_steps", "num_checkpoints"}
"""Keys of `pretrain` that change neither the model nor its speed; the values that a recipe sets are compared."""


@dataclass(frozen=True)
class Arm:
    """One side of an ablation."""

    name: str
    """As it was typed."""
    config: Config
    params: Params

    @property
    def training(self) -> dict[str, Any]:
        """What decides the encoder and the time that its training takes, without the text and the seed."""
        return training_of(self.params) | {"tokenize": self.params.tokenize.model_dump()}


def training_of(params: Params) -> dict[str, Any]:
    """Return the section `pretrain` without keys that change neither the model nor its speed."""
    return {"pretrain": params.pretrain.model_dump(exclude=_WITHOUT_EFFECT)}


def arms_of(first: str, second: str, root: Path) -> tuple[Arm, Arm]:
    """Return the two arms of the project in `root`.

    An arm is written as words in one argument. A word is a file with params that differ, as in configs/, or KEY=VALUE.
    The project's params.yaml itself is the arm without changes.

    Raises:
        ParamsError: an arm cannot be read, cannot be compared with the other, or is the same training.
    """
    base = read_params(root / PARAMS)
    arms = (_arm(first, root), _arm(second, root))
    for arm in arms:
        _check_measured_alike(arm, base)
    _check_comparable(*arms)
    return arms


def _arm(typed: str, root: Path) -> Arm:
    with TemporaryDirectory(prefix="clozeline-") as folder:
        copy = Path(folder) / PARAMS
        shutil.copyfile(root / PARAMS, copy)
        if changes := list(_changes(typed, root)):
            edit(copy, changes, typed)
        config = Config(copy)
    return Arm(typed, config, config.checked)


def _changes(typed: str, root: Path) -> Iterator[Change]:
    words = _words(typed)
    for word in words:
        path = root / word
        if "=" in word and not path.is_file():
            yield from assignments([word])
        elif not path.is_file():
            raise _no_arm(typed, word)
        elif not path.samefile(root / PARAMS):
            yield from changes_in(path)


def _words(typed: str) -> list[str]:
    try:
        words = shlex.split(typed)
    except ValueError as error:  # an open quote
        raise _no_arm(typed, str(error)) from error
    if not words:
        raise _no_arm(typed, "nothing")
    return words


def _no_arm(typed: str, given: str) -> ParamsError:
    return ParamsError(
        f"`{typed}` is no arm of an ablation",
        given=given,
        expected="words in one argument: KEY=VALUE, or a file with params that differ, as in configs/; `params.yaml` is"
        " the arm without changes",
        do="type for example `clozeline ablate params.yaml 'pretrain.masking.mask_rate=0.3 pretrain.steps=500'`",
    )


def _check_measured_alike(arm: Arm, base: Params) -> None:
    changed = [name for name in _SAME_IN_BOTH if getattr(arm.params, name) != getattr(base, name)]
    if changed:
        raise ParamsError(
            f"an arm of an ablation cannot change {' and '.join(f'`{name}`' for name in changed)}",
            given=arm.name,
            expected="; ".join(_SAME_IN_BOTH[name] for name in changed),
            do="change only keys of `pretrain` or `tokenize`, or change params.yaml for both: `clozeline run --set`",
        )
    if arm.params.pretrain.start == FROM_CHAMPION:
        raise ParamsError(
            "an ablation does not continue from the live model, which a release may replace meanwhile",
            given=f"`pretrain.start`: {FROM_CHAMPION}",
            expected="null, a folder, or a name on the hub",
            do="add `pretrain.start=null pretrain.replay_fraction=null` to both arms, or the folder of an encoder",
        )


def _check_comparable(first: Arm, second: Arm) -> None:
    if first.training == second.training:
        raise ParamsError(
            "both arms of the ablation are the same training",
            given=f"`{first.name}` and `{second.name}`",
            expected="arms that differ in a key of `pretrain` or `tokenize`",
            do="change one, for example `pretrain.masking.mask_rate=0.3`; `params.yaml` is the arm without changes",
        )
    objectives = [arm.params.pretrain.objective for arm in (first, second)]
    if (objectives[0] == "clm") != (objectives[1] == "clm"):
        raise ParamsError(
            "the losses of these arms do not compare: one predicts a token from both sides, the other from one side",
            given=f"`pretrain.objective`: {' and '.join(objectives)}",
            expected="two masked encoders, or two causal ones",
            do="ablate another key; fine-tuning figures compare such encoders (`clozeline run`, section `finetune`)",
        )
