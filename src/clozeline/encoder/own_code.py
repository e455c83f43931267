"""Code of your own encoder: imported by the name in params.yaml, built, and tried before it is trained.

Shapes: B rows, L tokens, H hidden.
"""

import importlib
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from clozeline.encoder.families import TokenIds
from clozeline.errors import ClozelineError, ParamsError
from clozeline.params import ModelParams
from clozeline.params.model import is_own

_TRIED_TOKENS = 8
"""Length of the rows of the trial in tokens, unless the encoder reads fewer."""
_MOST_OF_PADDING = 1e-4
"""Largest difference that padding may make, relative to the largest hidden state."""
_CONTRACT = "read the contract: docs/pretraining.md, under “Your own encoder”"


def built(params: ModelParams, ids: TokenIds) -> nn.Module:
    """Return the encoder that the function `params.family` builds, after a trial on two short rows.

    Raises:
        ParamsError: the function is missing or fails, or what it returns lacks what heads need, fails in the trial,
            returns another shape, or reads padding.
    """
    build = _imported(params.family)
    encoder: nn.Module = _tried(params.family, "cannot be built", lambda: build(params, ids))
    _check_parts(encoder, params, ids)
    with torch.no_grad():
        _check_answers(encoder, params, ids)
    return encoder


def hidden_of(output: Any) -> Tensor:
    """Return `hidden_BLH` of what your encoder returned: a tensor, or an object with `last_hidden_state`."""
    hidden_BLH: Tensor = output if isinstance(output, Tensor) else output.last_hidden_state
    return hidden_BLH


def sources_of_code(family: str, encoder: nn.Module) -> list[Path]:
    """Return the files that define the encoder: the module that `family` names, and those of the same package that
    define its parts.
    """
    named = family.partition(":")[0]
    package = named.partition(".")[0]
    modules = {named, *(kind.__module__ for part in encoder.modules() for kind in type(part).__mro__)}
    own = (sys.modules[name] for name in modules if name.partition(".")[0] == package)
    return sorted(Path(file) for module in own if (file := module.__file__) is not None)


def sources_of_family(family: str) -> list[Path]:
    """Return the files of the top-level module or package that `family` names, without importing it; empty for a
    family of ours.
    """
    found = find_spec(family.partition(":")[0].partition(".")[0]) if is_own(family) else None
    if found is None:
        return []
    if folders := found.submodule_search_locations:
        return sorted(file for folder in folders for file in Path(folder).rglob("*.py"))
    return [Path(found.origin)] if found.has_location and found.origin is not None else []


def _imported(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), function)
    except Exception as error:  # an import runs code of yours, which can raise anything
        raise ParamsError(
            f"`family: {name}` names an encoder of your own that cannot be imported: {_said(error)}",
            do="write `package.module:build`, with the module installed or in the project's folder, and run there",
        ) from error
    return found


def _tried(family: str, what: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except ClozelineError:
        raise
    except Exception as error:  # code of yours can raise anything
        raise ParamsError(
            f"your own encoder (`family: {family}`) {what}: {_said(error)}", do=f"correct your code; {_CONTRACT}"
        ) from error


def _check_parts(encoder: Any, params: ModelParams, ids: TokenIds) -> None:
    hidden_size = getattr(encoder, "hidden_size", None)
    if not (isinstance(encoder, nn.Module) and isinstance(hidden_size, int)):
        raise ParamsError(
            f"`{params.family}` gives {type(encoder).__name__} with `hidden_size` {hidden_size}, not a torch.nn.Module"
            " with an integer",
            do=_CONTRACT,
        )
    if not params.tie_word_embeddings:
        return
    embedding_of: Callable[[], nn.Module | None] = getattr(encoder, "get_input_embeddings", lambda: None)
    embedding = embedding_of()
    shape = tuple(embedding.weight.shape) if isinstance(embedding, nn.Embedding) else None
    expected = (ids.vocab_size, hidden_size)
    if shape != expected:
        raise ParamsError(
            f"the head is tied to an nn.Embedding of {expected}, and your encoder has "
            + (f"one of {shape}" if shape else "no `get_input_embeddings()`"),
            do="add the method, or set `tie_word_embeddings: false`",
        )


def _check_answers(encoder: Any, params: ModelParams, ids: TokenIds) -> None:
    """Compare a padded row of a batch with the same row alone."""
    length = min(_TRIED_TOKENS, params.max_position_embeddings)
    num_real = length - length // 2
    input_ids_BL = torch.arange(length).remainder(ids.vocab_size).expand(2, -1).clone()
    attention_mask_BL = torch.ones_like(input_ids_BL)
    input_ids_BL[1, num_real:], attention_mask_BL[1, num_real:] = ids.pad_id, 0
    was_training = encoder.training
    encoder.eval()

    def answer(rows: Tensor, mask: Tensor | None) -> Any:
        return _tried(params.family, "fails on short rows", lambda: hidden_of(encoder(rows, attention_mask=mask)))

    batch, alone = answer(input_ids_BL, attention_mask_BL), answer(input_ids_BL[1:, :num_real], None)
    encoder.train(was_training)
    expected = (2, length, encoder.hidden_size)
    shape = tuple(getattr(batch, "shape", ()))
    if not isinstance(batch, Tensor) or shape != expected:
        raise ParamsError(
            f"your own encoder returns {shape or type(batch).__name__} for 2 rows of {length} tokens,"
            f" not hidden states of {expected}: rows, length, `hidden_size`",
            do=_CONTRACT,
        )
    if batch.is_meta:  # shapes without numbers, as in `clozeline plan`
        return
    difference = (batch[1, :num_real] - alone[0]).abs().max()
    if not difference <= _MOST_OF_PADDING * alone.abs().max():
        raise ParamsError(
            f"your own encoder reads padding or is not finite: a padded row gets other states, by {difference:.2g}",
            do="use `attention_mask` in `forward`: a row would get other answers in a batch than alone",
        )


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip().partition("\n")[0]
