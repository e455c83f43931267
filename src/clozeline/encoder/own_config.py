"""Configuration of your own encoder: what its config.json holds."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Self

from transformers import AutoConfig, PretrainedConfig

from clozeline.encoder.families import TokenIds
from clozeline.encoder.sizes import shape_of
from clozeline.errors import ArtifactError
from clozeline.params import ModelParams
from clozeline.params.model import is_own

OWN_MODEL_TYPE = "clozeline-encoder"


class OwnConfig(PretrainedConfig):  # type: ignore[misc]  # transformers loads its classes lazily, without types
    """Arguments of the function that builds your encoder, and the facts of it that tasks and export read."""

    model_type = OWN_MODEL_TYPE

    def __init__(
        self,
        params: Mapping[str, Any] | None = None,
        ids: Mapping[str, int] | None = None,
        hidden_size: int = 0,
        **more: Any,
    ) -> None:
        """Every argument has a default, because transformers compares a configuration with an empty one.

        `hidden_size` is that of the built encoder.
        """
        super().__init__(**more)
        self.params, self.ids, self.hidden_size = dict(params or {}), dict(ids or {}), hidden_size
        if params and ids:
            own = self.model_params
            self.vocab_size, self.pad_token_id = self.token_ids.vocab_size, self.token_ids.pad_id
            self.max_position_embeddings = own.max_position_embeddings
            self.num_attention_heads = shape_of(own, gated=False).num_attention_heads

    @classmethod
    def of(cls, params: ModelParams, ids: TokenIds) -> Self:
        return cls(params.model_dump(), asdict(ids))

    @property
    def model_params(self) -> ModelParams:
        return ModelParams(**self.params)

    @property
    def token_ids(self) -> TokenIds:
        return TokenIds(**self.ids)


def read_config(name: str, facts: Mapping[str, Any]) -> OwnConfig:
    """Return the configuration with the facts of the config.json in the folder `name`.

    Raises:
        ArtifactError: they are not the arguments of a function that builds an encoder.
    """
    try:
        if not (facts.get("params") and facts.get("ids")):
            raise ValueError("no `params`, or no `ids`")
        # AutoTokenizer opens the config.json beside a tokenizer, and warns of a class that it does not know.
        AutoConfig.register(OWN_MODEL_TYPE, OwnConfig, exist_ok=True)
        config: OwnConfig = OwnConfig.from_dict(dict(facts))
        return config
    except (TypeError, ValueError) as error:  # pydantic's for an unknown knob is a ValueError
        raise ArtifactError(
            f"config.json of {name} does not say how your own encoder is built: {str(error).partition(chr(10))[0]}",
            do="train again: `dvc repro pretrain`",
        ) from error


def opened_config(name: str, facts: Mapping[str, Any], family: str | None) -> OwnConfig:
    """Return the configuration in the folder `name`, whose code may run.

    Args:
        family: value of `pretrain.model.family` in the params. A config.json can name any module, and importing a
            module runs it, so only the module that the params name is imported.

    Raises:
        ArtifactError: config.json names another module than `family`, or is damaged.
    """
    config = read_config(name, facts)
    named = config.model_params.family
    if family is None or not is_own(family) or named != family:
        raise ArtifactError(
            f"{name} holds a model with the code `{named}`, but the params name `family: {family or 'none'}`",
            do="name it as `family`, but only if that code is yours: no folder decides which code runs",
        )
    return config
