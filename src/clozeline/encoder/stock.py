"""Models of transformers' own classes for families that do not run on our layers."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from clozeline.encoder.architecture import Positions
from clozeline.encoder.families.layout import HeadKind
from clozeline.encoder.model import HeadedModel, Logits, errors_only, failed_writes_as_os_errors
from clozeline.system.errors import ArtifactError

_CLASSES: Mapping[HeadKind, str] = MappingProxyType(
    {
        "mlm": "MODEL_FOR_MASKED_LM_MAPPING",
        "clm": "MODEL_FOR_CAUSAL_LM_MAPPING",
        "rtd": "MODEL_FOR_PRETRAINING_MAPPING",
        "feature-extraction": "MODEL_MAPPING",
        "text-classification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING",
        "token-classification": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING",
        "question-answering": "MODEL_FOR_QUESTION_ANSWERING_MAPPING",
    }
)
"""transformers' own tables from configuration class to model class."""
_HEADS: Mapping[str, str] = MappingProxyType(
    {"deberta-v2": "cls", "big_bird": "cls", "longformer": "lm_head", "mpnet": "lm_head"}
)
"""`model_type` → module that predicts tokens, for classes with a single one: it is called with the targets alone."""


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
        positions: Positions | None = None,
    ) -> Logits:
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        if self.kind in ("mlm", "clm") and self.config.model_type in _HEADS:
            return Logits(self._named(inputs, positions))
        output = self.stock(**inputs)
        if self.kind == "question-answering":
            return Logits(torch.stack((output.start_logits, output.end_logits), dim=-1))
        return Logits(output.logits if positions is None else positions.of(output.logits))

    def _named(self, inputs: dict[str, Any], positions: Positions | None) -> Tensor:
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

    mapping = getattr(transformers, _CLASSES[kind])
    if type(config) not in mapping:
        raise ArtifactError(
            f"{config.model_type} is not in transformers.{_CLASSES[kind]}, so it has no head of this kind",
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
