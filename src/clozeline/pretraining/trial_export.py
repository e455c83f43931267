"""Trial export of your own encoder, before it is trained."""

import logging
import warnings
from pathlib import Path

import torch

from clozeline.encoder.own import OwnModel, sources_of
from clozeline.errors import ParamsError
from clozeline.storage.fingerprints import code_of, fingerprint, versions_of

_LOGS = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")


def check_export(model: OwnModel, work: Path) -> None:
    """Check that your encoder can become a graph for any number and length of texts.

    It takes seconds, so a success is recorded in `work`, the folder of stage `pretrain`: the flow checks before the
    first stage, and the stage then finds the record.

    Raises:
        ParamsError: torch cannot trace it, or ONNX has no counterpart of an operation.
    """
    facts = {"params": model.config.params, "versions": versions_of(("torch", "onnxscript", "onnx"))}
    key = fingerprint(facts, [*sources_of(model), *code_of(("pretraining/trial_export.py", "encoder/own.py"))])
    record = work / "exportable" / key
    if record.exists():
        return
    was_training = model.training
    try:
        _trace(model.eval())
    except Exception as error:  # torch's exporter has no narrower class for what it cannot trace
        raise ParamsError(
            f"your own encoder `{model.config.model_params.family}` cannot be exported to ONNX: {_reason(error)}",
            do="torch.export must trace `forward` for any number of rows and any length: no Python branch that depends"
            " on values, and only operations of ONNX; change it, or export nothing: `models: {}`",
        ) from error
    finally:
        model.train(was_training)
    record.parent.mkdir(parents=True, exist_ok=True)
    record.touch()


def _trace(model: OwnModel) -> None:
    input_ids_BL = torch.ones(2, min(16, model.config.max_position_embeddings), dtype=torch.long)
    names = ("input_ids", "attention_mask")
    for name in _LOGS:
        logging.getLogger(name).setLevel(logging.ERROR)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of torch's exporter about itself; those of a real export are shown
        program = torch.export.export(
            model.encoder,
            (),
            kwargs=dict.fromkeys(names, input_ids_BL),
            dynamic_shapes={name: dict.fromkeys((0, 1), torch.export.Dim.DYNAMIC) for name in names},
        )
        torch.onnx.export(program, dynamo=True, optimize=False, verbose=False)


def _reason(error: BaseException) -> str:
    """Return the first line of the innermost error, which names the operation or the branch."""
    while error.__cause__ is not None:
        error = error.__cause__
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
