"""The whole of params.yaml."""

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator

from clozeline.params.delivery import ExportParams, ImportParams, ReleaseParams
from clozeline.params.layers import with_layers
from clozeline.params.model import is_exportable
from clozeline.params.pretraining import FROM_CHAMPION, EvaluateParams, PretrainParams
from clozeline.params.schema import FaultsError, Section
from clozeline.params.tasks import AnyTask
from clozeline.params.text import ContractParams, PreprocessParams, TokenizeParams

_GENERATOR = "encoder/generator"
_NO_DISCRIMINATOR = f"objective `mlm`, or `{_GENERATOR}`: a discriminator fills no masks, the generator beside it does"


class Params(Section):
    """The whole of params.yaml: a section for each stage, recipes, defaults of tasks, and a section for releases."""

    seed: Annotated[int, Field(ge=0, lt=2**63)]
    preprocess: PreprocessParams
    tokenize: TokenizeParams
    contract: ContractParams
    recipes: dict[str, dict[str, Any]]
    """Name of a recipe → values that it sets in `pretrain`."""
    pretrain: PretrainParams
    evaluate: EvaluateParams
    finetune_defaults: dict[str, dict[str, Any]]
    """`shared`, or a kind of task → default values of its tasks."""
    presets: dict[str, dict[str, Any]]
    """Name of a preset → values of a task on a known dataset."""
    finetune: dict[str, AnyTask]
    export: ExportParams
    imports: dict[str, ImportParams]
    """Name in dist/ → published model that is packaged as it is."""
    release: ReleaseParams

    @model_validator(mode="wrap")
    @classmethod
    def _layers_are_laid(cls, tree: Any, validated: Callable[[Any], Self]) -> Self:
        """Lay the recipe over `pretrain`, and complete each task with its defaults.

        So no reader needs to know of layers. Faults of the layers and of the result are reported together.
        """
        faults, whole = with_layers(tree)
        try:
            params = validated(whole)
        except ValidationError as error:
            raise FaultsError([*faults, error]) from error
        if faults:
            raise FaultsError(faults)
        return params

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        faults = [*self._lengths(), *self._family(), *self._tasks(), *self._exports(), *self._imports(), *self._start()]
        if faults:
            raise FaultsError(faults)
        return self

    def _lengths(self) -> Iterator[ValueError]:
        bound, most = "pretrain.model.max_position_embeddings", self.pretrain.model.max_position_embeddings
        lengths = {f"finetune.{task}.max_length": section.max_length for task, section in self.finetune.items()}
        for key, length in {"evaluate.max_length": self.evaluate.max_length, **lengths}.items():
            if length > most:
                yield ValueError(f"`{key}` is not above `{bound}`", {key: length, bound: most})

    def _family(self) -> Iterator[ValueError]:
        """Refuse stages that the family cannot go through; pre-training would be over before they fail."""
        if self.pretrain.start is not None:
            return
        family = self.pretrain.model.family
        if self.export.models and not is_exportable(family):
            expected = "`export.models: {}` with a family that cannot be exported to ONNX"
            given = {"pretrain.model.family": family, "export.models": ", ".join(self.export.models)}
            yield ValueError(expected, given)

    def _tasks(self) -> Iterator[ValueError]:
        """Refuse tasks that a causal encoder cannot learn."""
        objective, family = self.pretrain.objective, self.pretrain.model.family
        for name, section in self.finetune.items() if objective == "clm" else ():
            kind = {f"finetune.{name}.kind": section.kind}
            if section.instead_of_causal:
                yield ValueError(section.instead_of_causal, {"pretrain.objective": objective, **kind})
            elif section.instead_of_first_token and self.pretrain.start is None and family != "modernbert":
                given = {"pretrain.objective": objective, "pretrain.model.family": family, **kind}
                yield ValueError(section.instead_of_first_token, given)

    def _exports(self) -> Iterator[ValueError]:
        objective = self.pretrain.objective
        encoder = _GENERATOR if objective == "rtd" else "encoder"
        known = {encoder, *(f"finetuned/{task}" for task in self.finetune)}
        for name, folder in self.export.models.items():
            key = f"export.models.{name}"
            if folder == "encoder" and objective == "rtd":
                yield ValueError(_NO_DISCRIMINATOR, {"pretrain.objective": objective, key: folder})
            elif folder not in known:
                yield ValueError(f"one of: {', '.join(sorted(known))}", {key: folder})

    def _imports(self) -> Iterator[ValueError]:
        for name in self.imports.keys() & self.export.models.keys():
            given = {f"imports.{name}": "…", f"export.models.{name}": self.export.models[name]}
            yield ValueError("different names: both are folders in dist/", given)

    def _start(self) -> Iterator[ValueError]:
        start = {"pretrain.start": self.pretrain.start}
        if start["pretrain.start"] != FROM_CHAMPION:
            return
        if self.encoder_package is None:
            yield ValueError("the encoder in `export.models`: its champion is the start", start)
        if self.tokenize.existing is not None:
            yield ValueError(
                "null: the tokenizer is the champion's", {"tokenize.existing": self.tokenize.existing, **start}
            )

    @property
    def starting_models(self) -> dict[str, str | None]:
        """Folders or hub names of the models that stages begin with, by key; null: none."""
        start = self.pretrain.start
        return {
            "pretrain.start": None if start == FROM_CHAMPION else start,
            "tokenize.existing": self.tokenize.existing,
        }

    @property
    def packages(self) -> dict[str, str | None]:
        """Name in dist/ → folder in models/ that it is made from; None: a published model."""
        return {**self.export.models, **dict.fromkeys(self.imports)}

    @property
    def encoder_package(self) -> str | None:
        """Name in `export.models` of the pre-trained encoder, or of its generator; None if it is not exported."""
        return next((name for name, folder in self.export.models.items() if folder in ("encoder", _GENERATOR)), None)
