"""Model card of a pre-trained encoder, and the trial export of your own encoder before it is trained.

The card has the training text, the base model, figures and limits. Machine-readable facts are in its front matter:
https://huggingface.co/docs/hub/model-cards. The cards of fine-tuned models and of packages build on it.
"""

import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import ModelCard, ModelCardData
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from clozeline.encoder.own import OwnModel, sources_of
from clozeline.language.objectives import OBJECTIVES
from clozeline.params.pretraining import PretrainParams
from clozeline.records.published import published_file
from clozeline.records.reading.tokens import INFO_NAME, TokensInfo
from clozeline.system import errors, files
from clozeline.training.state import State

_INHERITED = ("license", "license_name", "license_link")
_FRONT_MATTER = re.compile(r"\ufeff?---\s*\n(.*?)\n---\s*\n", re.DOTALL)
_LOGS = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")


def card_of(params: PretrainParams, seed: int, tokens: Path, state: State, num_parameters: int) -> ModelCard:
    """Return the card of the encoder that was trained on the shards in `tokens`."""
    objective = OBJECTIVES[params.objective]
    metadata = _of_start(params)
    facts = ModelCardData(library_name="transformers", pipeline_tag=objective.pipeline_tag, **metadata)
    sections = {
        "Pre-training": _training(objective.title, seed, state),
        "Pre-training text": _text(tokens),
        "Base model": _base(params, metadata),
        "Limits of the encoder": _limits(params),
    }
    named = params.model.family if params.start is None else params.start
    parts = (
        f"---\n{facts.to_yaml()}\n---\n\n# Encoder: {named}, {num_parameters:,} parameters",
        *("\n".join((f"## {heading}", "", *lines)) for heading, lines in sections.items()),
    )
    return ModelCard("\n\n".join(parts) + "\n")


def stated_facts(card: Path) -> Mapping[str, Any]:
    """Return the front matter of any model card; empty if it is missing or cannot be parsed."""
    front = _FRONT_MATTER.match(card.read_text(encoding="utf-8", errors="replace"))
    try:
        metadata = YAML(typ="safe").load(front[1]) if front else None
    except YAMLError:
        return {}
    return metadata if isinstance(metadata, dict) else {}


def _of_start(params: PretrainParams) -> Mapping[str, Any]:
    """Return the licence facts from the base model's card, and the name of the base model."""
    if params.start is None:
        return {}
    card = published_file(params.start, "README.md", params.start_revision)
    stated = stated_facts(card) if card else {}
    inherited = {name: stated[name] for name in _INHERITED if name in stated}
    # A local folder has no hub name, but its card may state one.
    base = stated.get("base_model") if Path(params.start).is_dir() else params.start
    return inherited | ({"base_model": base} if base else {})


def _training(objective: str, seed: int, state: State) -> Iterator[str]:
    yield f"- Objective: {objective}, seed {seed}"
    yield f"- Budget: {state.step:,} optimizer steps, {state.num_tokens:,} tokens, {state.epoch:,} whole epochs"
    if (sizes := state.world_sizes) != [1]:
        yield f"- Number of processes: {', then '.join(map(str, sizes))}"
    if best := state.best_validation:
        yield f"- Best loss on the validation text: {best.loss:.4f} nats per target, at step {best.step:,}"


def _text(tokens: Path) -> Iterator[str]:
    yield "| part | documents | bytes | tokens |"
    yield "|---|---|---|---|"
    for part, split in TokensInfo.of_folder(tokens).splits.items():
        yield f"| {part} | {split.num_documents:,} | {split.text_bytes:,} | {split.num_tokens:,} |"
    yield ""
    sha256 = files.sha256_of(tokens / INFO_NAME)
    yield f"Snapshot: {INFO_NAME}, which lists the hash of every shard, has the sha256 `{sha256}`."


def _base(params: PretrainParams, metadata: Mapping[str, Any]) -> Iterator[str]:
    if params.start is None:
        yield "None: the weights were drawn at random before training."
        return
    at = f" at revision {params.start_revision}" if params.start_revision else ""
    yield f"- {params.start}{at}"
    licence = metadata.get("license_name") or metadata.get("license")
    unknown = "not stated by its model card; ask its authors before you publish this model"
    yield f"- Licence: {licence or unknown}"


def _limits(params: PretrainParams) -> Iterator[str]:
    yield f"- Trained on rows of at most {params.max_length:,} tokens."
    yield "- It knows the languages and the field of its text alone, and repeats the bias of that text."
    yield "- It finds words that fit; it does not know whether a statement is true."
    if OBJECTIVES[params.objective].head == "clm":
        yield "- It reads from left to right: it continues texts, and fills no blanks. It is no chat model."


def check_export(model: OwnModel, work: Path) -> None:
    """Check that your encoder can become a graph for any number and length of texts.

    It takes seconds, so a success is recorded in `work`, the folder of stage `pretrain`: the flow checks before the
    first stage, and the stage then finds the record.

    Raises:
        ParamsError: torch cannot trace it, or ONNX has no counterpart of an operation.
    """
    facts = {"params": model.config.params, "versions": files.versions_of(("torch", "onnxscript", "onnx"))}
    key = files.fingerprint(facts, [*sources_of(model), *files.code_of(("pretraining/card.py", "encoder/own.py"))])
    record = work / "exportable" / key
    if record.exists():
        return
    was_training = model.training
    try:
        _trace(model.eval())
    except Exception as error:  # torch's exporter has no narrower class for what it cannot trace
        raise errors.ParamsError(
            f"your own encoder `{model.config.model_params.family}` cannot be exported to ONNX: {_reason(error)}",
            do="let torch.export trace `forward`: no branch on values, only operations of ONNX; or set `models: {}`",
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
