"""`clozeline plan`: the cost of a training before it starts, and which encoder to choose."""

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clozeline.cli.stage import with_start_folder
from clozeline.params.model import FAMILY_NAMES, Size
from clozeline.params.pretraining import WITHOUT_START, Objective, PretrainParams
from clozeline.params.reading import in_params, read_params, with_keys
from clozeline.system.errors import ClozelineError, ParamsError

if TYPE_CHECKING:
    from clozeline.params.delivery import ExportParams
    from clozeline.params.project import Params


_TOKENS = Path("data/tokens")
_PARAMS = Path("params.yaml")
Need = StrEnum(
    "Need", "efficiency accuracy domain science biomedical genes legal finance code long multilingual generation"
)
"""The rows of clozeline/planning/chooser.py."""
OPTIONS = {
    "family": "model.family",
    "size": "model.size",
    "objective": "objective",
    "max_length": "max_length",
}
"""Option → key of the section `pretrain`."""

VocabSizeOption = Annotated[
    int | None,
    typer.Option(
        min=64,
        help="Size of the vocabulary. [default: that of data/tokens, else of the checkpoint to start from, "
        "else of params.yaml]",
        show_default=False,
    ),
]
TimingOption = Annotated[
    bool | None,
    typer.Option(
        "--timing/--no-timing",
        help="Time a few training steps on synthetic tokens, for tokens/s and ETA. [default: timing]",
        show_default=False,
    ),
]
ServingOption = Annotated[
    bool, typer.Option("--serving", help="Measure every family in this size on this machine: file, memory, latency.")
]
PublishedOption = Annotated[
    list[str] | None,
    typer.Option(
        "--published",
        metavar="MODEL",
        help="Measure a published model, a folder or a name on the hub, in the same way: only its config.json is"
        " read, no weights are downloaded.",
    ),
]
NeedsOption = Annotated[
    list[Need] | None,
    typer.Option("--for", help="What matters to you: shows the family, size, recipe and tokenizer to choose."),
]
TAKEN: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "--for": (),
        "--all": ("--vocab-size", "--max-length"),
        "--serving": ("--family", "--size", "--vocab-size"),
        "--published": (),
    }
)
"""Options that a table other than the plan of one training depends on; any other option would have no effect on it."""


def plan(
    family: Annotated[
        str | None, typer.Option(help=f"Overrides params.yaml: {', '.join(FAMILY_NAMES)}, or `module:build`.")
    ] = None,
    size: Annotated[Size | None, typer.Option(help="Overrides params.yaml.")] = None,
    objective: Annotated[Objective | None, typer.Option(help="Overrides params.yaml.")] = None,
    vocab_size: VocabSizeOption = None,
    max_length: Annotated[int | None, typer.Option(min=8, help="Overrides params.yaml.")] = None,
    timing: TimingOption = None,
    every: Annotated[bool, typer.Option("--all", help="Show every family in every size.")] = False,
    serving: ServingOption = False,
    published: PublishedOption = None,
    needs: NeedsOption = None,
) -> None:
    """Show what training with params.yaml will cost (parameters, memory, FLOPs, tokens/s, ETA), with advice.

    Examples:

    - `clozeline plan`
    - `clozeline plan --family bert --size base --max-length 512 --no-timing`
    - `clozeline plan --all`
    - `clozeline plan --serving --family modernbert`
    - `clozeline plan --published distilbert/distilbert-base-uncased`
    - `clozeline plan --for multilingual --for long`
    """
    # See stage.py: set before torch is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from clozeline.cli import plan_tables

    options = {
        "--family": family,
        "--size": size,
        "--objective": objective,
        "--vocab-size": vocab_size,
        "--max-length": max_length,
        "--no-timing" if timing is False else "--timing": timing,
    }
    tables = {"--for": needs, "--all": every, "--serving": serving, "--published": published}
    check_options([name for name, it in tables.items() if it], [name for name, it in options.items() if it is not None])
    if needs:
        plan_tables.show(plan_tables.chosen(needs))
        return
    params = read_params(_PARAMS)
    if published:
        plan_tables.show(_published(published, params.export))
        return
    pretrain = with_start_folder(
        changed(params.pretrain, family=family, size=size, objective=objective, max_length=max_length), params
    )
    try:
        num_tokens = vocab_size or _vocab_size(params, pretrain)
        if serving:
            shown = _serving(pretrain, num_tokens, params.export, family)
        elif every:
            shown = _zoo(pretrain, num_tokens)
        else:
            shown = _one(pretrain, num_tokens, timing is not False)
    except ClozelineError as error:
        raise in_params(error, _PARAMS, "pretrain", pretrain) from error
    plan_tables.show(shown)


def check_options(tables: Sequence[str], options: Sequence[str]) -> None:
    """Check that at most one table is requested, with options that it depends on.

    Raises:
        ParamsError: several tables are requested, or options without effect on the requested one.
    """
    if len(tables) > 1:
        raise ParamsError(
            "only one table can be made at a time",
            given=" ".join(tables),
            expected=f"one of: {', '.join(TAKEN)}, or none of them",
            do=f"run a command for each table, such as `clozeline plan {tables[-1]}`",
        )
    for table in tables:
        taken = TAKEN[table]
        meaningless = [option for option in options if option not in taken]
        if meaningless:
            raise ParamsError(
                f"{table} cannot be combined with {' and '.join(meaningless)}",
                given=" ".join([table, *options]),
                expected=f"{table} with {' or '.join(taken)}, or alone" if taken else f"{table} alone",
                do=f"leave out {' and '.join(meaningless)}, or leave out {table} to plan a single training run",
            )


def changed(params: PretrainParams, **options: object) -> PretrainParams:
    """Return `params` with the given options in place, validated again.

    Raises:
        ParamsError: the options cannot be used together.
    """
    from pydantic import ValidationError

    given = {OPTIONS[name]: value for name, value in options.items() if value is not None}
    tree: dict[str, Any] = params.model_dump()
    if {"family", "size"} & {name for name, value in options.items() if value is not None}:
        given |= WITHOUT_START
    for key, value in given.items():
        section, _, name = key.rpartition(".")
        (tree[section] if section else tree)[name] = value
    if options.get("size") is not None:
        shape = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
        tree["model"].update(dict.fromkeys(shape))
    length = tree["max_length"]
    tree["model"]["max_position_embeddings"] = max(tree["model"]["max_position_embeddings"], length)
    tree["batch_tokens"] = max(tree["batch_tokens"], length)
    try:
        return PretrainParams.model_validate(tree)
    except ValidationError as error:
        fault = error.errors()[0]
        expected = fault["ctx"]["error"].args[0] if fault["type"] == "value_error" else fault["msg"]
        raise ParamsError(
            "these options cannot be used with params.yaml",
            given=", ".join(f"{key}: {value}" for key, value in given.items()),
            expected=expected,
            do="correct the options",
        ) from error


def _vocab_size(params: "Params", pretrain: PretrainParams) -> int:
    """Return the vocabulary size of the existing tokens, else of the checkpoint to start from, else of `tokenize`."""
    from clozeline.pretraining.starting import token_ids
    from clozeline.records.reading.tokens import INFO_NAME, TokensInfo

    if (_TOKENS / INFO_NAME).is_file():
        return TokensInfo.of_folder(_TOKENS).vocab_size
    if pretrain.start is not None:
        return token_ids(pretrain.start, pretrain.start_revision, pretrain.objective).vocab_size
    return params.tokenize.vocab_size


def with_budget_in_tokens(params: PretrainParams) -> PretrainParams:
    """Return `params` with epochs of the existing tokens counted in tokens, if they have no other budget.

    Raises:
        ParamsError: there are no tokens yet.
    """
    from clozeline.records.reading.tokens import INFO_NAME, TokensInfo

    if params.epochs is None or params.steps is not None or params.tokens is not None:
        return params
    if not (_TOKENS / INFO_NAME).is_file():
        raise ParamsError(
            "the length of a training in `epochs` is not known yet",
            given=f"epochs: {params.epochs}, and no {_TOKENS}",
            expected="the tokens of the training text",
            do="make them by `dvc repro tokenize`, or set `steps` instead of `epochs`",
        )
    num_tokens = TokensInfo.of_folder(_TOKENS).splits["train"].num_tokens
    return params.model_copy(update={"epochs": None, "tokens": max(round(params.epochs * num_tokens), 1)})


def _zoo(params: PretrainParams, vocab_size: int) -> Iterable[object]:
    from clozeline.cli import plan_tables
    from clozeline.planning.costs import zoo

    # Warnings about knobs that a family ignores are useful only if a single family is chosen.
    logging.getLogger("clozeline.encoder").setLevel(logging.ERROR)
    return plan_tables.zoo_table(zoo(params.model, vocab_size), vocab_size)


def _serving(params: PretrainParams, vocab_size: int, export: "ExportParams", family: str | None) -> Iterable[object]:
    from clozeline.cli import plan_tables
    from clozeline.planning.serving import check_served, of_params, served_families, serving_cost
    from clozeline.system.progress import track

    if family:
        check_served(family)

    _quiet()
    chosen = [family] if family else served_families()
    costs = {
        family: serving_cost(partial(of_params, params.model.model_copy(update={"family": family}), vocab_size), export)
        for family in track(chosen, "measure", len(chosen))
    }
    size = f"size {params.model.size or 'of params.yaml'}, vocabulary of {vocab_size:,}"
    return plan_tables.serving_table(costs, size)


def _published(names: Sequence[str], export: "ExportParams") -> Iterable[object]:
    from clozeline.cli import plan_tables
    from clozeline.planning.serving import of_published, serving_cost
    from clozeline.system.progress import track

    _quiet()
    costs = {name: serving_cost(partial(of_published, name), export) for name in track(names, "measure", len(names))}
    return plan_tables.serving_table(costs, "with the shape and vocabulary of config.json, and random weights")


def _quiet() -> None:
    for name in ("clozeline.encoder", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)


def _one(params: PretrainParams, vocab_size: int, timing: bool) -> Sequence[object]:
    from clozeline.cli import plan_tables
    from clozeline.planning.advice import Situation
    from clozeline.planning.costs import TrainingPlan, device_bytes

    planned = TrainingPlan.of(with_budget_in_tokens(params), vocab_size)
    memory = device_bytes()
    speed = planned.time() if timing and planned.memory.total < memory else None
    name = partial(with_keys, path=_PARAMS, place="pretrain", section=params)
    return plan_tables.tables_of_plan(Situation(planned, speed, memory), name)
