"""The whole of params.yaml."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from clozeline.params.data import PreprocessParams, TokenizeParams
from clozeline.params.delivery import ExportParams, ReleaseParams
from clozeline.params.finetuning import AnyTask
from clozeline.params.finetuning.layers import check_defaults, whole_task
from clozeline.params.pretraining import EvaluateParams, PretrainParams
from clozeline.params.recipes import check_recipes, laid_over
from clozeline.params.section import Section

_GENERATOR = "encoder/generator"
_NOT_CAUSAL = MappingProxyType(
    {
        "tagging": "objective `mlm`, because a causal model has not read the words after the one that it tags",
        "question_answering": "objective `mlm`, because a causal model has not read the context after a word",
        "zero_shot": "objective `mlm`, because a causal model fills no masks; or set `entailment`",
    }
)
"""Kind of task → why a causal encoder cannot learn it, and what to set instead."""


class Params(Section):
    """The whole of params.yaml: a section for each stage, recipes, defaults of tasks, and a section for releases."""

    seed: Annotated[int, Field(ge=0, lt=2**63)]
    preprocess: PreprocessParams
    tokenize: TokenizeParams
    recipes: dict[str, dict[str, Any]]
    """Name of a recipe → values that it sets in `pretrain`."""
    pretrain: PretrainParams
    evaluate: EvaluateParams
    finetune_defaults: dict[str, dict[str, Any]]
    """`shared`, or a kind of task → default values of its tasks."""
    finetune: dict[str, AnyTask]
    export: ExportParams
    release: ReleaseParams

    @model_validator(mode="before")
    @classmethod
    def _recipe_is_laid_over(cls, tree: Any) -> Any:
        """Lay the recipe over `pretrain`, so that no reader needs to know of recipes."""
        match tree:
            case {"recipes": Mapping() as recipes, "pretrain": Mapping() as pretrain}:
                check_recipes(recipes, pretrain.get("recipe"))
                return {**tree, "pretrain": laid_over(pretrain, recipes[pretrain["recipe"]])}
        return tree

    @model_validator(mode="before")
    @classmethod
    def _tasks_are_whole(cls, tree: Any) -> Any:
        """Complete each task with its defaults and its preset, so that no reader needs to know of them."""
        match tree:
            case {"finetune_defaults": defaults, "finetune": Mapping() as tasks}:
                check_defaults(defaults)
                whole = {
                    name: whole_task(name, task, defaults) if isinstance(task, Mapping) else task
                    for name, task in tasks.items()
                }
                return {**tree, "finetune": whole}
        return tree

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        bound, most = "pretrain.model.max_position_embeddings", self.pretrain.model.max_position_embeddings
        lengths = {f"finetune.{task}.max_length": section.max_length for task, section in self.finetune.items()}
        for key, length in {"evaluate.max_length": self.evaluate.max_length, **lengths}.items():
            if length > most:
                raise ValueError(f"`{key}` is not above `{bound}`", {key: length, bound: most})
        objective = self.pretrain.objective
        for name, folder in self.export.models.items():
            if folder == "encoder" and objective == "rtd":
                raise ValueError(
                    f"objective `mlm`, or `{_GENERATOR}`: a discriminator fills no masks, the generator beside it does",
                    {"pretrain.objective": objective, f"export.models.{name}": folder},
                )
        for task, section in self.finetune.items():
            is_free = getattr(section, "entailment", None) is not None
            if objective == "clm" and section.kind in _NOT_CAUSAL and not is_free:
                raise ValueError(
                    _NOT_CAUSAL[section.kind],
                    {"pretrain.objective": objective, f"finetune.{task}.kind": section.kind},
                )
        encoder = _GENERATOR if objective == "rtd" else "encoder"
        known = {encoder, *(f"finetuned/{task}" for task in self.finetune)}
        for name, folder in self.export.models.items():
            if folder not in known:
                raise ValueError(f"one of: {', '.join(sorted(known))}", {f"export.models.{name}": folder})
        return self
