"""sweep.yaml: what a sweep tries, and what it chooses by; and values as a change of params.yaml."""

import difflib
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

from pydantic import ValidationError, field_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from clozeline.lab.experiment import refuse_champion
from clozeline.params import editing, project, schema
from clozeline.stages.calling.api import PARAMS
from clozeline.system.errors import ParamsError

Value = str | int | float | bool | None
# Validation figures that a sweep can choose by; the last one is of a task.
Metric = Literal["nats_per_byte", "best_validation_loss_nats_per_token", "best_validation_accuracy", "validation_score"]
_EXAMPLE = "see `clozeline sweep --help`, or docs/sweeps.md"
_EXPECTED = {
    "missing": "a value",
    "extra_forbidden": "one of: metric, trials, space, seed, pruning; of a range one of: low, high, log, step",
    "model_type": "keys: metric, trials and space, or of a range low and high; or a list of values",
    "dict_type": "keys of params.yaml, each with the values to try",
    "tuple_type": "a list of values, or a range {low: …, high: …}",
    "literal_error": f"{', '.join(get_args(Metric))}: figures of test data are for the winner alone",
}


class NumberRange(schema.Section):
    """Numbers from `low` to `high`, both included; whole numbers if both are."""

    low: int | float
    high: int | float
    log: bool = False  # whether each factor is equally likely, instead of each difference
    step: int | float | None = None
    rules = (
        ("low high", lambda low, high: low < high, "`low` below `high`"),
        ("low log", lambda low, log: not log or low > 0, "`low` above 0 with `log: true`"),
        ("log step", lambda log, step: not log or step is None, "either `log: true` or a `step`"),
        ("step", lambda step: step is None or step > 0, "a `step` above 0"),
    )

    @property
    def is_whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)


Dimension = NumberRange | tuple[Value, ...]


class SweepPlan(schema.Section):
    """Content of sweep.yaml."""

    metric: Metric
    trials: schema.Count
    space: dict[str, Dimension]  # key of params.yaml → the values that are tried
    # Seed of the proposals. Every training starts from `seed` of params.yaml.
    seed: int = 0
    pruning: bool = True  # whether a trial stops at a validation pass where it is worse than half of the trials so far

    @field_validator("space")
    @classmethod
    def _is_not_empty(cls, space: dict[str, Dimension]) -> dict[str, Dimension]:
        if not space:
            raise ValueError("at least one key with the values to try")
        if short := [key for key, values in space.items() if isinstance(values, tuple) and len(values) < 2]:
            raise ValueError(f"at least two values for `{short[0]}`")
        return space

    @property
    def stage(self) -> str:
        return "finetune" if self.metric == "validation_score" else "pretrain"

    @property
    def direction(self) -> Literal["minimize", "maximize"]:
        return "maximize" if self.metric in ("best_validation_accuracy", "validation_score") else "minimize"

    @property
    def task(self) -> str | None:
        """Name of the fine-tuned task; None: pre-training."""
        return next(iter(self.space)).split(".")[1] if self.stage == "finetune" else None


def read_plan(path: Path, root: Path) -> tuple[SweepPlan, editing.Config]:
    """Return the sweep in the file `path`, and the params of the project in `root`, which it changes.

    Raises:
        ParamsError: the file cannot be used with these params; nothing has been started.
    """
    plan = _parsed(path)
    config = editing.Config(root / PARAMS)
    params = config.checked
    _check_keys(plan, path, params)
    _check_values(plan, path, config)
    _check_stage(plan, params)
    return plan, config


def with_values(config: editing.Config, values: Mapping[str, Value]) -> editing.Config:
    """Return a copy of `config` with these values.

    Raises:
        ParamsError: a key is unknown, or a value is out of range.
    """
    changed = config.copy()
    for key, value in values.items():
        *sections, last = key.split(".")
        section: Any = changed
        for name in sections:
            section = section[name]
        section[last] = value
    return changed


def value_in(params: project.Params, key: str) -> Value:
    """Return the value of a key of params.yaml."""
    found: Any = params
    for name in key.split("."):
        found = found[name] if isinstance(found, Mapping) else getattr(found, name)
    value: Value = found
    return value


def diff_of(root: Path, values: Mapping[str, Value]) -> str:
    """Return the change of the params.yaml in `root` to these values, for `git apply`; empty if it has them."""
    with TemporaryDirectory(prefix="clozeline-") as folder:
        copy = Path(folder) / PARAMS
        shutil.copyfile(root / PARAMS, copy)
        editing.edit(copy, list(values.items()), "the winner of the sweep")
        before, after = ((place / PARAMS).read_text(encoding="utf-8").splitlines(True) for place in (root, copy.parent))
    lines = difflib.unified_diff(before, after, f"a/{PARAMS}", f"b/{PARAMS}")
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _parsed(path: Path) -> SweepPlan:
    if not path.is_file():
        raise ParamsError(f"there is no {path}, a YAML file with metric, trials and space", do=_EXAMPLE)
    try:
        return SweepPlan.model_validate(YAML(typ="safe").load(path.read_text(encoding="utf-8")))
    except (YAMLError, UnicodeDecodeError) as error:
        raise ParamsError(f"{path} is not YAML: {' '.join(str(error).split())}", do="correct that line") from error
    except ValidationError as error:
        raise _fault(path, sorted(error.errors(), key=lambda fault: fault["type"] != "extra_forbidden")[0]) from error


def _fault(path: Path, fault: Any) -> ParamsError:
    # Pydantic names the types of a union too, such as `tuple[…]`.
    place = ".".join(str(name) for name in fault["loc"] if not re.search(r"\W", str(name).replace(".", "")))
    expected = _EXPECTED.get(fault["type"], fault["msg"])
    if fault["type"] == "value_error":
        told = fault["ctx"]["error"].args[0]
        expected = told if isinstance(told, str) else str(told[0].args[0])
    given = "nothing" if fault["type"] == "missing" else str(fault["input"])[:160]
    which = f"{path}: `{place}`" if place else str(path)
    return ParamsError(f"{which} cannot be used: {given}; expected: {expected}", do=_EXAMPLE)


def _check_keys(plan: SweepPlan, path: Path, params: project.Params) -> None:
    if wrong := [key for key in plan.space if key.partition(".")[0] != plan.stage]:
        raise ParamsError(
            f"{path}: {', '.join(wrong)} cannot change the figure `{plan.metric}` of stage `{plan.stage}`",
            do=f"remove them, choose another metric ({', '.join(get_args(Metric))}), or use `clozeline ablate`",
        )
    named = {key.split(".")[1] for key in plan.space if plan.task is not None}
    if len(named) > 1 or not named <= params.finetune.keys():
        raise ParamsError(
            f"{path}: a sweep tries one task, not {', '.join(sorted(named))}; there are"
            f" {', '.join(sorted(params.finetune)) or 'none'}",
            do="write one sweep for each task",
        )


def _check_values(plan: SweepPlan, path: Path, config: editing.Config) -> None:
    """Check both ends of each range, and each value of a list, as params.yaml would be."""
    for key, values in plan.space.items():
        ends = (values.low, values.high) if isinstance(values, NumberRange) else values
        for value in ends:
            try:
                with_values(config, {key: value})
            except ParamsError as error:
                told = error.problem.removeprefix("config: ")
                raise ParamsError(
                    f"{path}: params.yaml cannot take a value that the sweep would try: {told}",
                    given=error.given,
                    expected=error.expected,
                    do=f"correct `space.{key}` in {path}",
                ) from error


def _check_stage(plan: SweepPlan, params: project.Params) -> None:
    do = "run `clozeline run --set pretrain.start=null --set pretrain.replay_fraction=null` first"
    refuse_champion(params, "a sweep", do)
    needs_validation = plan.metric.startswith("best_validation") or plan.pruning
    if plan.stage == "pretrain" and needs_validation and params.pretrain.validation.every_steps is None:
        raise ParamsError(
            "the trainings of this sweep have no validation passes, which pruning and this metric need",
            do="set `pretrain.validation.every_steps` in params.yaml, or `pruning: false` and `metric: nats_per_byte`",
        )
