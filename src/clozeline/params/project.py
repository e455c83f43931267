"""The whole of params.yaml, and its layers: a recipe is laid over `pretrain`, presets and defaults under tasks."""

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, Field, ValidationError, model_validator

from clozeline.params import delivery, model, pretraining, schema, text
from clozeline.params.tasks import DATA, PRESET, SECTIONS, SHARED, AnyTask, FinetuneParams, preset_of, whole_task


class Params(schema.Section):
    """The whole of params.yaml: a section for each stage, recipes, defaults of tasks, and a section for releases."""

    seed: Annotated[int, Field(ge=0, lt=2**63)]
    preprocess: text.PreprocessParams
    tokenize: text.TokenizeParams
    contract: text.ContractParams
    recipes: dict[str, dict[str, Any]]
    """Name of a recipe → values that it sets in `pretrain`."""
    pretrain: pretraining.PretrainParams
    evaluate: pretraining.EvaluateParams
    finetune_defaults: dict[str, dict[str, Any]]
    """`shared`, or a kind of task → default values of its tasks."""
    presets: dict[str, dict[str, Any]]
    """Name of a preset → values of a task on a known dataset."""
    finetune: dict[str, AnyTask]
    export: delivery.ExportParams
    imports: dict[str, delivery.ImportParams]
    """Name in dist/ → published model that is packaged as it is."""
    release: delivery.ReleaseParams

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
            raise schema.FaultsError([*faults, error]) from error
        if faults:
            raise schema.FaultsError(faults)
        return params

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        faults = [*self._lengths(), *self._family(), *self._tasks(), *self._exports(), *self._imports(), *self._start()]
        if faults:
            raise schema.FaultsError(faults)
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
        if self.export.models and family in model.NOT_EXPORTED:
            expected = "`export.models: {}` with a family that cannot be exported to ONNX"
            given = {"pretrain.model.family": family, "export.models": ", ".join(self.export.models)}
            yield ValueError(expected, given)

    def _tasks(self) -> Iterator[ValueError]:
        """Refuse tasks that a causal encoder cannot learn."""
        objective, family = self.pretrain.objective, self.pretrain.model.family
        for name, section in self.finetune.items() if objective == "clm" else ():
            kind = {f"finetune.{name}.kind": section.kind}
            # With `entailment` a classifier of pairs answers, not the encoder.
            if section.instead_of_causal and not getattr(section, "entailment", None):
                yield ValueError(section.instead_of_causal, {"pretrain.objective": objective, **kind})
            elif section.instead_of_first_token and self.pretrain.start is None and family != "modernbert":
                given = {"pretrain.objective": objective, "pretrain.model.family": family, **kind}
                yield ValueError(section.instead_of_first_token, given)

    def _exports(self) -> Iterator[ValueError]:
        objective = self.pretrain.objective
        encoder = pretraining.exported_folder(objective)
        known = {encoder, *(f"finetuned/{task}" for task in self.finetune)}
        for name, folder in self.export.models.items():
            key = f"export.models.{name}"
            if folder == "encoder" != encoder:
                expected = f"objective `mlm`, or `{encoder}`: a discriminator fills no masks, the generator beside it"
                yield ValueError(f"{expected} does", {"pretrain.objective": objective, key: folder})
            elif folder not in known:
                yield ValueError(f"one of: {', '.join(sorted(known))}", {key: folder})

    def _imports(self) -> Iterator[ValueError]:
        for name in self.imports.keys() & self.export.models.keys():
            given = {f"imports.{name}": "…", f"export.models.{name}": self.export.models[name]}
            yield ValueError("different names: both are folders in dist/", given)

    def _start(self) -> Iterator[ValueError]:
        start = {"pretrain.start": self.pretrain.start}
        if start["pretrain.start"] != pretraining.FROM_CHAMPION:
            return
        if self.encoder_package is None:
            yield ValueError("the encoder in `export.models`: its champion is the start", start)
        if self.tokenize.existing is not None:
            yield ValueError("null: the champion's is used", {"tokenize.existing": self.tokenize.existing, **start})

    @property
    def starting_models(self) -> dict[str, str | None]:
        """Folders or hub names of the models that stages begin with, by key; null: none."""
        start = self.pretrain.start
        return {
            "pretrain.start": None if start == pretraining.FROM_CHAMPION else start,
            "tokenize.existing": self.tokenize.existing,
        }

    @property
    def packages(self) -> dict[str, str | None]:
        """Name in dist/ → folder in models/ that it is made from; None: a published model."""
        return {**self.export.models, **dict.fromkeys(self.imports)}

    @property
    def encoder_package(self) -> str | None:
        """Name in `export.models` of the pre-trained encoder, or of its generator; None if it is not exported."""
        folders = ("encoder", *pretraining.GENERATORS.values())
        return next((name for name, folder in self.export.models.items() if folder in folders), None)


# Files that DVC may watch for a task with records on the hub, which has no file of its own; the first is proposed.
_WATCHED = ("corpus.lock", "requirements.lock")


def with_layers(tree: Any) -> tuple[list[ValueError], Any]:
    """Return the faults of recipes and defaults, and the tree with as many layers as can be laid."""
    faults: list[ValueError] = []
    match tree:
        case {"recipes": Mapping() as recipes, "pretrain": Mapping() as pretrain}:
            faults.extend(_in_recipes(recipes, chosen := pretrain.get("recipe")))
            if isinstance(recipe := recipes.get(str(chosen)), Mapping):
                tree = {**tree, "pretrain": pretraining.laid_over(pretrain, recipe)}
    match tree:
        case {"finetune_defaults": Mapping() as defaults, "finetune": Mapping() as tasks}:
            faults.extend(_in_defaults(defaults))
            presets, whole = schema.mapping_at(tree, "presets"), dict(tasks)
            for name, task in tasks.items():
                if isinstance(task, Mapping):
                    whole[name] = whole_task(task, defaults, presets)
                    faults.extend(_in_preset(name, task, presets))
                    faults.extend(_idle(name, task, defaults, str(whole[name].get("kind"))))
                    faults.extend(_in_sources(name, task, whole[name].get("hub")))
            tree = {**tree, "finetune": whole}
    return faults, tree


def _in_recipes(recipes: Mapping[str, Any], chosen: Any) -> Iterator[ValueError]:
    """Yield a fault if the chosen recipe is missing, and one for each part of a recipe that `pretrain` cannot take."""
    if str(chosen) not in recipes:
        yield ValueError(f"a key of `recipes`: {', '.join(recipes)}", {"pretrain.recipe": chosen})
    for name, recipe in recipes.items():
        yield from _in_keys(f"recipes.{name}", recipe, pretraining.PretrainParams, without={"recipe"})


def _in_defaults(defaults: Mapping[str, Any]) -> Iterator[ValueError]:
    """Yield a fault for each section of `finetune_defaults` that names no kind, and for each key its kind lacks."""
    known: Mapping[str, type[BaseModel]] = {SHARED: FinetuneParams, **SECTIONS}
    for kind, section in defaults.items():
        if kind not in known:
            yield schema.UnknownKeyError(f"finetune_defaults.{kind}", str(kind), section, list(known))
        else:
            yield from _in_keys(f"finetune_defaults.{kind}", section, known[kind], without={"kind", DATA})


def _in_keys(place: str, values: Any, section: type[BaseModel], without: Collection[str] = ()) -> Iterator[ValueError]:
    """Yield a fault if `values`, to be laid over or under `section`, is not a section, and one for each unknown key."""
    if not isinstance(values, Mapping):
        yield ValueError("keys of the section, with their values", {place: values})
        return
    known = {key: field.annotation for key, field in section.model_fields.items() if key not in without}
    for key, value in values.items():
        if key not in known:
            yield schema.UnknownKeyError(f"{place}.{key}", str(key), value, sorted(known))
        elif (inner := schema.section_in(known[key])) is not None and value is not None:
            yield from _in_keys(f"{place}.{key}", value, inner)


def _in_preset(name: str, task: Mapping[str, Any], presets: Mapping[str, Any]) -> Iterator[ValueError]:
    """Yield a fault for a preset that is unknown, or of another kind than the task."""
    if PRESET not in task or preset_of(task, presets):
        return
    kind = task.get("kind")
    known = [one for one, row in presets.items() if isinstance(row, Mapping) and kind in (None, row.get("kind"))]
    expected = f"a preset{f' of kind `{kind}`' if kind else ''}: {', '.join(known) or 'there is none'}"
    yield ValueError(expected, {f"finetune.{name}.{PRESET}": task[PRESET]})


def _idle(name: str, task: Mapping[str, Any], defaults: Mapping[str, Any], kind: str) -> Iterator[schema.IdleKeyError]:
    """Yield keys without effect in the task or in its kind's defaults; shared defaults may set them."""
    expected = f"no such key: it has no effect in a task of kind `{kind}`"
    for place, given in ((f"finetune.{name}", task), (f"finetune_defaults.{kind}", schema.mapping_at(defaults, kind))):
        for key in SECTIONS[kind].idle if kind in SECTIONS else ():
            if key in given:
                yield schema.IdleKeyError(f"{place}.{key}", given[key], expected)


def _in_sources(name: str, task: Mapping[str, Any], hub: Any) -> Iterator[ValueError]:
    """Yield a fault for a file in `data` beside records of the hub, which are read instead of it.

    A dataset may be a local folder that DVC watches, or a part of it.
    """
    match task, hub:
        case {"data": str() as data}, {"dataset": str() as dataset}:
            is_watched = Path(data).is_relative_to(dataset) or Path(dataset).is_relative_to(data)
            if not is_watched and str(Path(data)) not in _WATCHED:
                expected = f"`data: {_WATCHED[0]}`, because `hub` takes records from the hub; or `hub: null`, to read"
                yield ValueError(f"{expected} the file", {f"finetune.{name}.data": data, f"finetune.{name}.hub": hub})
