"""Trained weights in a folder or on the hub, and models of transformers' own classes, for families that do not run on
our layers.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig

from clozeline.encoder import architecture, families, own
from clozeline.encoder.families.layout import HEADS, HeadKind
from clozeline.encoder.model import EncoderModel, HeadedModel, Logits, errors_only, failed_writes_as_os_errors
from clozeline.records.published import asking_hub, fetched_file, inspect_model, inspect_settings, pinned
from clozeline.system.errors import ArtifactError

# `model_type` → module that predicts tokens, for classes with a single one: it is called with the targets alone.
_HEADS: Mapping[str, str] = {"deberta-v2": "cls", "big_bird": "cls", "longformer": "lm_head", "mpnet": "lm_head"}

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
# Files of which a checkpoint has one: all weights, or the list of their shards.
WEIGHT_FILES = (_WEIGHTS, _INDEX)
# Errors of transformers about values of a configuration.
_WRONG_VALUES = (AttributeError, KeyError, StrictDataclassError, TypeError, ValueError)
_ELSEWHERE = {
    "pytorch_model.bin": "a pickle, which may hold any code",
    "pytorch_model.bin.index.json": "pickles, which may hold any code",
    "tf_model.h5": "TensorFlow weights",
}


class StockModel(HeadedModel):
    """A stock model. Its last layer computes every position; so does its head, unless `_HEADS` names it."""

    stock: Any

    def __init__(self, stock: Any, kind: HeadKind) -> None:
        super().__init__()
        self.stock, self.kind, self.config = stock, kind, stock.config

    @property
    def base_model(self) -> Any:
        return self.stock.base_model

    @property
    def head(self) -> Any:
        """The head of a language model that `_HEADS` names."""
        return getattr(self.stock, _HEADS[self.config.model_type])

    @property
    def prefix(self) -> str:
        return str(self.stock.base_model_prefix)

    def get_input_embeddings(self) -> Any:
        return self.stock.get_input_embeddings()

    def set_input_embeddings(self, table: nn.Module) -> None:
        self.stock.set_input_embeddings(table)

    def of_encoder(self, published: Iterable[str]) -> list[str]:
        prefix = "" if self.kind == "feature-extraction" else f"{self.prefix}."
        return [name for name in published if name.startswith(prefix) and "pooler" not in name]

    def resize_token_embeddings(self, vocab_size: int) -> None:
        with errors_only():
            self.stock.resize_token_embeddings(vocab_size, mean_resizing=True)

    def gradient_checkpointing_enable(self) -> None:
        self.stock.gradient_checkpointing_enable({"use_reentrant": False})

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        positions: architecture.Positions | None = None,
    ) -> Logits:
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        if HEADS[self.kind].predicts_tokens and self.config.model_type in _HEADS:
            return Logits(self._named(inputs, positions))
        output = self.stock(**inputs)
        if self.kind == "question-answering":
            return Logits(torch.stack((output.start_logits, output.end_logits), dim=-1))
        return Logits(output.logits if positions is None else positions.of(output.logits))

    def _named(self, inputs: dict[str, Any], positions: architecture.Positions | None) -> Tensor:
        more = {"use_cache": False} if self.kind == "clm" else {}
        hidden_PH = self.base_model(**inputs, **more).last_hidden_state
        if positions is not None:
            hidden_PH = positions.of(hidden_PH)
        return self.says(hidden_PH)

    def _write(self, out: Path, kind: HeadKind, weights: Mapping[str, Tensor]) -> None:
        is_whole = kind == self.kind
        model, prefix = (self.stock, "stock.") if is_whole else (self.base_model, f"stock.{self.prefix}.")
        named = {name.removeprefix(prefix): it for name, it in weights.items() if name.startswith(prefix)}
        with failed_writes_as_os_errors(), errors_only():
            model.save_pretrained(out, state_dict=named)


def stock_class(config: Any, kind: HeadKind) -> Any:
    """Return transformers' class for this family and head.

    Raises:
        ArtifactError: transformers has no such head for this family.
    """
    import transformers

    name = HEADS[kind].mapping
    mapping = getattr(transformers, name)
    if type(config) not in mapping:
        raise ArtifactError(
            f"{config.model_type} is not in transformers.{name}, so it has no head of this kind",
            do="pre-train another family (`family`), or choose another kind of task",
        )
    return mapping[type(config)]


def fresh_stock(config: Any, kind: HeadKind) -> StockModel:
    """Return a model with random weights from the global random state."""
    with errors_only():
        return StockModel(stock_class(config, kind)(config), kind)


def loaded_stock(config: Any, kind: HeadKind, where: Mapping[str, Any]) -> tuple[StockModel, list[str]]:
    """Return the saved model in float32, and the names of missing weights, which are initialized at random.

    Raises:
        ArtifactError: transformers has no such head for this family.
        OSError, RuntimeError, ValueError, SafetensorError: weights are missing, damaged or of the wrong shape.
    """
    model_class = stock_class(config, kind)
    with errors_only():
        model, report = model_class.from_pretrained(
            **where,
            config=config,
            dtype=torch.float32,
            # PyTorch's fused attention if the class supports it, regardless of the configuration.
            attn_implementation="sdpa" if model_class._supports_sdpa else "eager",
            output_loading_info=True,
            use_safetensors=True,
        )
    with torch.no_grad():
        for name in report["missing_keys"]:
            if name.endswith(".bias"):  # transformers 5 leaves a tied bias uninitialized
                model.get_parameter(name).zero_()
    return StockModel(model, kind), sorted(report["missing_keys"])


# A model on our layers, on transformers' own, or on yours: the three have one interface.
AnyModel: TypeAlias = EncoderModel | StockModel | own.OwnModel


@dataclass(frozen=True)
class Checkpoint:
    """Location of trained weights."""

    name: str  # path of a folder, or a name on the hub
    revision: str | None = None
    # `pretrain.model.family` of the params: the code of your own encoder runs only if they name it.
    family: str | None = None

    @property
    def is_folder(self) -> bool:
        return Path(self.name).is_dir()

    @property
    def where(self) -> dict[str, Any]:
        """Arguments for transformers' `from_pretrained`. A folder has no revision and is never looked up on the hub."""
        if self.is_folder:
            return {"pretrained_model_name_or_path": self.name, "local_files_only": True}
        return {"pretrained_model_name_or_path": self.name, "revision": self.revision}

    def config(self, *, has_weights: bool = True) -> Any:
        """Return the configuration as an instance of the class registered for its `model_type`.

        Args:
            has_weights: whether the weights are inspected too, which on the hub downloads them.

        Raises:
            ArtifactError: it requires code outside transformers that is not `family`, its `model_type` is unknown, a
                value has the wrong type, or weights are pickled.
        """
        inspect = inspect_model if has_weights else inspect_settings
        inspect(self.name, self.revision)
        facts, _ = PretrainedConfig.get_config_dict(**self.where)
        model_type = facts.get("model_type")
        if model_type == own.OWN_MODEL_TYPE:
            return own.opened_config(self.name, facts, self.family)
        if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING:
            raise ArtifactError(
                f"{self.name}: transformers does not know the model_type {model_type}", do="choose another model"
            )
        try:
            return AutoConfig.from_pretrained(**self.where, trust_remote_code=False)
        except _WRONG_VALUES as error:
            raise ArtifactError(
                f"{self.name}/config.json is damaged: {' '.join(str(error).split())}",
                do="correct the value that it names, or download or save the model again",
            ) from error

    def file(self, name: str) -> Path | None:
        """Return a local path, downloaded from the hub if necessary; None: the file does not exist.

        Raises:
            OSError: the hub cannot be reached.
        """
        return fetched_file(self.name, name, self.revision)

    def weights(self) -> dict[str, Tensor]:
        """Return the weights by their published names.

        Raises:
            OSError: a file is missing, or the hub cannot be reached.
            SafetensorError: a file is damaged.
        """
        return {name: weight for file in self._files() for name, weight in load_file(file).items()}

    def _files(self) -> Iterator[Path]:
        whole = self.file(_WEIGHTS)
        if whole is not None:
            yield whole
            return
        index = self.file(_INDEX)
        if index is None:
            raise FileNotFoundError(f"no {_WEIGHTS} in it{self._other_formats_in_folder()}")
        for name in sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())):
            part = self.file(name)
            if part is None:
                raise FileNotFoundError(f"no {name} in it, which {_INDEX} names")
            yield part

    def _other_formats_in_folder(self) -> str:
        if not self.is_folder:
            return ""
        there = [f"{name} is {what}" for name, what in _ELSEWHERE.items() if (Path(self.name) / name).is_file()]
        return "".join(f", and {line}" for line in there)


def published_config(name: str) -> Any:
    """Return the configuration of the model `name`. Its weights are neither inspected nor downloaded.

    Raises:
        ArtifactError: there is no such model, it asks for code of its own, or transformers does not know its class.
    """
    checkpoint, _ = find_checkpoint(name, None)
    return checkpoint.config(has_weights=False)


def find_checkpoint(name: str, revision: str | None, named: str | None = None) -> tuple[Checkpoint, dict[str, Any]]:
    """Return the checkpoint `name`, a folder or a name on the hub, and the content of its config.json.

    `named`: the knob that names it, for the error.

    Raises:
        ArtifactError: there is none.
    """
    try:
        with asking_hub(name):
            checkpoint = Checkpoint(name, pinned(name, revision))
            facts, _ = PretrainedConfig.get_config_dict(**checkpoint.where)
    except OSError as error:
        at = f" --revision {revision}" if revision else ""
        raise ArtifactError(
            f"{named or name}: there is no such model",
            given="no config.json in it" if Path(name).is_dir() else "no folder, and none on the hub, or no answer",
            expected="a folder with config.json and weights, or a name on the hub and a network",
            do=f"check the name; with a network, run `hf download {name}{at} --local-dir FOLDER`",
        ) from error
    return checkpoint, dict(facts)


def opened(checkpoint: Checkpoint, config: Any, kind: HeadKind, seed: int = 0) -> tuple[AnyModel, list[str]]:
    """Open the model with a head of this kind, in fp32. The global random state is unchanged.

    Args:
        config: its configuration, possibly changed.
        seed: decides missing weights.

    Returns:
        The model, and the published names of the missing weights.

    Raises:
        ArtifactError: the weights are missing or damaged, the family has no such head, or our layers do not support
            the configuration.
    """
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if config.model_type == own.OWN_MODEL_TYPE:
                return own.OwnModel.loaded(config, kind, checkpoint.weights())
            if config.model_type in families.LAYOUTS:
                return EncoderModel.loaded(config, kind, checkpoint.weights())
            return loaded_stock(config, kind, checkpoint.where)
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise ArtifactError(
            f"the weights of {checkpoint.name} cannot be read as a {config.model_type}: {first_line(error)}",
            do="download or save model.safetensors again; transformers 4 converts pytorch_model.bin and TensorFlow "
            "weights: `AutoModel.from_pretrained(FOLDER).save_pretrained(FOLDER)`, with `from_tf=True` for TensorFlow",
        ) from error


def opened_whole(checkpoint: Checkpoint, kind: HeadKind) -> AnyModel:
    """Open a model that `pretrain` wrote.

    Raises:
        ArtifactError: as in `opened`; or a weight is missing.
    """
    model, missing = opened(checkpoint, checkpoint.config(), kind)
    check_whole(checkpoint.name, missing, do="run `dvc repro pretrain`")
    return model


def check_whole(name: object, missing: Sequence[str], do: str) -> None:
    """Refuse a checkpoint that lacks weights, because they would be drawn at random.

    Raises:
        ArtifactError: weights are missing.
    """
    if missing:
        raise ArtifactError(
            f"{name} does not hold all weights of its model: {len(missing)} missing, such as {missing[0]}", do=do
        )


def first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
