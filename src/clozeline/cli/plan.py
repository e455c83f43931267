"""`clozeline plan`: the cost of a training before it starts, and which encoder to choose."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from clozeline.cli.stage import with_start_folder
from clozeline.cli.tables import show
from clozeline.params.model import FAMILY_NAMES, OF_SIZE, Size
from clozeline.params.pretraining import WITHOUT_START, Objective, PretrainParams, laid_over
from clozeline.params.project import Params
from clozeline.params.reading import in_params, read_params
from clozeline.records.reading.tokens import INFO_NAME, TokensInfo
from clozeline.system.errors import ClozelineError, ParamsError

_TOKENS = Path("data/tokens")
_PARAMS = Path("params.yaml")
_OVERRIDES = "Overrides params.yaml."
# The rows of clozeline/planning/choices.yaml.
Need = StrEnum(
    "Need", "efficiency accuracy domain science biomedical genes legal finance code long multilingual generation"
)
# Options that a table other than the plan of one training depends on; any other option would have no effect on it.
TAKEN: Mapping[str, tuple[str, ...]] = {
    "--for": (),
    "--all": ("--vocab-size", "--max-length"),
    "--serving": ("--family", "--size", "--vocab-size"),
    "--published": (),
}


def plan(
    family: Annotated[
        str | None, typer.Option(help=f"Overrides params.yaml: {', '.join(FAMILY_NAMES)}, or `module:build`.")
    ] = None,
    size: Annotated[Size | None, typer.Option(help=_OVERRIDES)] = None,
    objective: Annotated[Objective | None, typer.Option(help=_OVERRIDES)] = None,
    vocab_size: Annotated[int | None, typer.Option(min=64, show_default=False)] = None,
    max_length: Annotated[int | None, typer.Option(min=8, help=_OVERRIDES)] = None,
    timing: Annotated[bool | None, typer.Option("--timing/--no-timing", show_default=False)] = None,
    every: Annotated[bool, typer.Option("--all")] = False,
    serving: Annotated[bool, typer.Option("--serving")] = False,
    published: Annotated[list[str] | None, typer.Option("--published", metavar="MODEL")] = None,
    needs: Annotated[list[Need] | None, typer.Option("--for")] = None,
) -> None:
    """Show what training with params.yaml will cost (parameters, memory, FLOPs, tokens/s, ETA), with advice.

    Examples:

    - `clozeline plan`
    - `clozeline plan --family bert --size base --max-length 512 --no-timing`
    - `clozeline plan --all`
    - `clozeline plan --serving --family modernbert`
    - `clozeline plan --published distilbert/distilbert-base-uncased`
    - `clozeline plan --for multilingual --for long`

    Args:
        vocab_size: Size of the vocabulary. [default: that of data/tokens, else of the start, else of params.yaml]
        timing: Time a few training steps on synthetic tokens, for tokens/s and ETA. [default: timing]
        every: Show every family in every size.
        serving: Measure every family in this size on this machine: file, memory, latency.
        published: Measure a published model in the same way, a folder or a name on the hub, by its config.json alone.
        needs: What matters to you: shows the family, size, recipe and tokenizer to choose.
    """
    from clozeline.cli import plan_tables

    options: dict[str, object] = {"--family": family, "--size": size, "--objective": objective}
    options |= {"--vocab-size": vocab_size, "--max-length": max_length}
    options["--no-timing" if timing is False else "--timing"] = timing
    tables = {"--for": needs, "--all": every, "--serving": serving, "--published": published}
    check_options([name for name, it in tables.items() if it], [name for name, it in options.items() if it is not None])
    if needs:
        show(plan_tables.chosen(needs), plain_if_piped=True, wraps=True)
        return
    params = read_params(_PARAMS)
    if published:
        show(plan_tables.served_published(published, params.export), plain_if_piped=True, wraps=True)
        return
    pretrain = with_start_folder(changed(params.pretrain, family, size, objective, max_length), params)
    try:
        num_tokens = vocab_size or _vocab_size(params, pretrain)
        if serving:
            shown = plan_tables.served(pretrain.model, num_tokens, params.export, family)
        elif every:
            shown = plan_tables.zoo_table(pretrain.model, num_tokens)
        else:
            shown = plan_tables.plan_of(with_budget_in_tokens(pretrain), num_tokens, timing is not False, _PARAMS)
    except ClozelineError as error:
        raise in_params(error, _PARAMS, "pretrain", pretrain) from error
    show(shown, plain_if_piped=True, wraps=True)


def check_options(tables: Sequence[str], options: Sequence[str]) -> None:
    """Check that at most one table is requested, with options that it depends on.

    Raises:
        ParamsError: several tables are requested, or options without effect on the requested one.
    """
    if len(tables) > 1:
        raise ParamsError(
            f"only one table can be made at a time, not {' '.join(tables)}",
            do=f"run a command for each table, such as `clozeline plan {tables[-1]}`",
        )
    for table in tables:
        if meaningless := [option for option in options if option not in TAKEN[table]]:
            told = " and ".join(meaningless)
            raise ParamsError(
                f"{table} cannot be combined with {told}",
                do=f"give {table} with {' or '.join(TAKEN[table]) or 'nothing else'}, or leave it out",
            )


def changed(
    params: PretrainParams, family: str | None, size: str | None, objective: str | None, max_length: int | None
) -> PretrainParams:
    """Return `params` with the given options in place, validated again.

    Raises:
        ParamsError: the options cannot be used together.
    """
    of_model = {name: value for name, value in {"family": family, "size": size}.items() if value}
    others = {name: value for name, value in {"objective": objective, "max_length": max_length}.items() if value}
    model = of_model | (OF_SIZE if size else {})
    tree = laid_over(params.model_dump(), {**others, **(WITHOUT_START if of_model else {}), "model": model})
    length = tree["max_length"]
    tree["model"]["max_position_embeddings"] = max(tree["model"]["max_position_embeddings"], length)
    tree["batch_tokens"] = max(tree["batch_tokens"], length)
    try:
        return PretrainParams.model_validate(tree)
    except ValidationError as error:
        fault = error.errors()[0]
        cause = fault.get("ctx", {}).get("error")
        expected = "; ".join(one.args[0] for one in getattr(cause, "faults", [cause])) if cause else fault["msg"]
        told = ", ".join(f"{key}: {value}" for key, value in (of_model | others).items())
        raise ParamsError(
            f"these options cannot be used with params.yaml: {told}; expected: {expected}", do="correct the options"
        ) from error


def _vocab_size(params: Params, pretrain: PretrainParams) -> int:
    """Return the vocabulary size of the existing tokens, else of the checkpoint to start from, else of `tokenize`."""
    from clozeline.pretraining.starting import token_ids

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
    if params.epochs is None or params.steps is not None or params.tokens is not None:
        return params
    if not (_TOKENS / INFO_NAME).is_file():
        raise ParamsError(
            f"the length of a training in `epochs` is not known yet: epochs: {params.epochs}, and no {_TOKENS}",
            do="make the tokens by `dvc repro tokenize`, or set `steps` instead of `epochs`",
        )
    num_tokens = TokensInfo.of_folder(_TOKENS).splits["train"].num_tokens
    return params.model_copy(update={"epochs": None, "tokens": max(round(params.epochs * num_tokens), 1)})
