"""Where trained weights are, and what is in them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig
from transformers.utils import cached_file

from clozeline.encoder.families import LAYOUTS, HeadKind
from clozeline.encoder.model import Model
from clozeline.encoder.stock import StockModel, loaded_stock
from clozeline.errors import ArtifactError
from clozeline.tokenizer.foreign import inspect_model

_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_ELSEWHERE = {
    "pytorch_model.bin": "a pickle, which may hold any code",
    "pytorch_model.bin.index.json": "pickles, which may hold any code",
    "tf_model.h5": "weights of TensorFlow",
}


@dataclass(frozen=True)
class Checkpoint:
    """Where trained weights are."""

    name: str
    """A folder, or a name on the hub."""
    revision: str | None = None

    @property
    def is_folder(self) -> bool:
        return Path(self.name).is_dir()

    @property
    def where(self) -> dict[str, Any]:
        """For transformers: a folder has no revisions, and is never looked for on the hub."""
        if self.is_folder:
            return {"pretrained_model_name_or_path": self.name, "local_files_only": True}
        return {"pretrained_model_name_or_path": self.name, "revision": self.revision}

    def config(self) -> Any:
        """Of the class that its `model_type` has.

        Raises:
            ArtifactError: it asks for code that is not in transformers, or its weights are a pickle.
        """
        inspect_model(self.name, self.revision)
        return AutoConfig.from_pretrained(**self.where, trust_remote_code=False)

    def file(self, name: str) -> Path | None:
        """On this machine, fetched if it is on the hub; None: there is no such file.

        Raises:
            OSError: the hub cannot be asked.
        """
        if self.is_folder:
            path = Path(self.name) / name
            return path if path.is_file() else None
        found = cached_file(self.name, name, revision=self.revision, _raise_exceptions_for_missing_entries=False)
        return None if found is None else Path(found)

    def weights(self) -> dict[str, Tensor]:
        """By their published names.

        Raises:
            OSError: a file is missing, or the hub cannot be asked.
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
            raise FileNotFoundError(f"no {_WEIGHTS} in it{self._what_is_there()}")
        for name in sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())):
            part = self.file(name)
            if part is None:
                raise FileNotFoundError(f"no {name} in it, which {_INDEX} names")
            yield part

    def _what_is_there(self) -> str:
        if not self.is_folder:
            return ""
        there = [f"{name} is {what}" for name, what in _ELSEWHERE.items() if (Path(self.name) / name).is_file()]
        return "".join(f", and {told}" for told in there)


def opened(checkpoint: Checkpoint, config: Any, kind: HeadKind, seed: int = 0) -> tuple[Model | StockModel, list[str]]:
    """The model saved there under a head of this kind, in single precision; the global random state stays.

    Args:
        config: its configuration, changed or not.
        seed: decides weights that are not there, which are returned by their published names.

    Raises:
        ArtifactError: the weights are missing or damaged, the family has no such head, or the configuration says what
            our layers do not do.
    """
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if config.model_type in LAYOUTS:
                return Model.loaded(config, kind, checkpoint.weights())
            return loaded_stock(config, kind, checkpoint.where)
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise ArtifactError(
            f"the weights of {checkpoint.name} cannot be read: {first_line(error)}",
            given=f"config.json of {config.model_type}, and weights that are missing, damaged or of another shape",
            expected="config.json and weights of one model: model.safetensors, whole or in shards",
            do="download or save it again; of pytorch_model.bin or TensorFlow, transformers 4 makes it:"
            " `AutoModel.from_pretrained(FOLDER).save_pretrained(FOLDER)`, with `from_tf=True` of TensorFlow",
        ) from error


def first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
