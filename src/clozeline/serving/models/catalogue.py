"""The models that are served, and which of them answers a request."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from clozeline.artifacts.manifest import Task
from clozeline.inference.answerer import Answerer
from clozeline.inference.classifier import Classifier
from clozeline.inference.embedder import Embedder
from clozeline.inference.encoder import Encoder
from clozeline.inference.model_kinds import MODEL_KINDS, RERANK, ZERO_SHOT, kind_of
from clozeline.inference.open_model import OpenModel
from clozeline.inference.tagger import Tagger
from clozeline.inference.zero_shot import can_choose, tells_entailment
from clozeline.serving.errors import ApiError, problem
from clozeline.serving.observe.identity import Identity
from clozeline.serving.scheduling.work import LoadedModel, ServedModel

Model = TypeVar("Model", bound=OpenModel)

LIST = "/models"
"""Where the names are, for clients that have no list of their own protocol."""
_TOKENS = ("/tokenize", "/decode")
TENSORS = "/v2/models/{model}/infer"
ANY = (*_TOKENS, TENSORS, "/invocations")
"""Routes of every model: without a name, the first of all answers."""


def routes_of_kind(task: Task) -> tuple[str, ...]:
    """Which routes models of a task answer; those of the house come first."""
    return (*kind_of(task).routes, *ANY)


def routes_of(model: OpenModel) -> list[str]:
    """Which routes this one answers: of classifiers, only those of pairs rerank, or choose among any labels."""
    not_answered: set[str] = set() if can_choose(model) else {*ZERO_SHOT}
    if not isinstance(model, Classifier) or model.relevant_label is None:
        not_answered.add(RERANK)
    return [route for route in routes_of_kind(model.manifest.task) if route not in not_answered]


class Catalogue:
    """The models by name, in the order they were given: without a name, the first that can answer does."""

    def __init__(self, models: Sequence[LoadedModel]) -> None:
        self._models = {served.identity.name: served for served in models}
        assert len(self._models) == len(models), "names are told apart before models are loaded"
        self.num_swaps = 0

    def __iter__(self) -> Iterator[LoadedModel]:
        return iter(list(self._models.values()))

    def named(self, name: str) -> LoadedModel:
        return self._models[name]

    def first(self, name: str | None = None, *, listed: str = LIST) -> LoadedModel:
        """The model called `name`, or the first of all; who names another is told that they are `listed` there.

        Raises:
            ApiError: 404, there is none of that name.
        """
        for served in self:
            if name in (None, served.identity.name):
                return served
        raise no_such_model(name, [served.identity.name for served in self], listed=listed)

    def answering(self, route: str, name: str | None) -> LoadedModel:
        """The model called `name`, or the first, that answers `route`.

        Raises:
            ApiError: 404, there is none.
        """
        able = [served for served in self if route in routes_of_kind(served.model.manifest.task)]
        for served in able:
            if name in (None, served.identity.name):
                return served
        raise no_such_model(name, [served.identity.name for served in able], route=route)

    def swap(self, served: LoadedModel) -> Identity:
        """Let `served` answer from now on instead of the model of its name; what that has begun, it ends."""
        before = self._models[served.identity.name].identity
        self._models[served.identity.name] = served
        self.num_swaps += 1
        return before

    def encoder(self, name: str | None) -> ServedModel[Encoder]:
        """The encoder called `name`, or the first.

        Raises:
            ApiError: 404, there is none.
        """
        return self._answering(Encoder, name)

    def embedder(self, name: str | None, *, route: str | None = None, listed: str = LIST) -> ServedModel[Embedder]:
        """The model called `name`, or the first, that embeds: with a head for masks or without. Who names another is
        told of this `route`, and that the names are `listed` there.

        Raises:
            ApiError: 404, there is none.
        """
        return self._answering(Embedder, name, route=route, listed=listed)

    def classifier(self, name: str | None) -> ServedModel[Classifier]:
        """The classifier called `name`, or the first.

        Raises:
            ApiError: 404, there is none.
        """
        of_one_text = (served for served in self if not served.model.manifest.reads_pairs)
        chosen = next((served for served in of_one_text if isinstance(served.model, Classifier)), None)
        name = chosen.identity.name if chosen and name is None else name
        return self._answering(Classifier, name)

    def pair_classifier(self, route: str, name: str | None = None) -> ServedModel[Classifier]:
        """The classifier called `name`, or the first, that reads two texts at a time and answers `route`.

        Raises:
            ApiError: 404, there is none.
        """
        able = [
            ServedModel(served.identity, model)
            for served in self
            if isinstance(model := served.model, Classifier)
            if model.manifest.reads_pairs and route in routes_of(model)
        ]
        for chosen in able:
            if name in (None, chosen.identity.name):
                return chosen
        if able:
            raise no_such_model(name, [one.identity.name for one in able], route=f"pairs of texts at {route}")
        raise no_model_of_pairs(route)

    def zero_shot(self, name: str | None) -> LoadedModel:
        """The model called `name` that chooses among any labels; or the first by entailment, else by cloze.

        Raises:
            ApiError: 404, there is none.
        """
        able = sorted((it for it in self if can_choose(it.model)), key=lambda it: not tells_entailment(it.model))
        for served in able:
            if name in (None, served.identity.name):
                return served
        raise no_such_model(name, [served.identity.name for served in able], route=ZERO_SHOT[0])

    def tagger(self, name: str | None) -> ServedModel[Tagger]:
        """The tagger called `name`, or the first.

        Raises:
            ApiError: 404, there is none.
        """
        return self._answering(Tagger, name)

    def answerer(self, name: str | None) -> ServedModel[Answerer]:
        """The question answerer called `name`, or the first.

        Raises:
            ApiError: 404, there is none.
        """
        return self._answering(Answerer, name)

    def _answering(
        self, kind: type[Model], name: str | None, *, route: str | None = None, listed: str = LIST
    ) -> ServedModel[Model]:
        for served in self:
            if isinstance(served.model, kind) and name in (None, served.identity.name):
                return ServedModel(served.identity, served.model)
        able = [served.identity.name for served in self if isinstance(served.model, kind)]
        task = next(task for task, row in MODEL_KINDS.items() if row.model is kind)
        raise no_such_model(name, able, task, route=route, listed=listed)


def no_model_of_pairs(route: str) -> ApiError:
    """404: no model here reads two texts at a time."""
    return problem(
        404,
        "no_such_model",
        "no model here reads two texts at a time" if route != RERANK else "no model here tells how relevant a text is",
        given=f"{route}, and no such model is loaded",
        expected="a classifier of pairs"
        + (", with one score or a label such as `relevant`" if route == RERANK else ""),
        do="start the server with a cross-encoder; /similarity compares the embeddings of an encoder",
    )


def no_such_model(
    name: str | None, able: list[str], task: Task | None = None, *, route: str | None = None, listed: str = LIST
) -> ApiError:
    """404: none of the models that are `able` to answer is called so."""
    answers = route or (" and ".join(routes_of_kind(task)[:2]) if task else None)
    return problem(
        404,
        "no_such_model",
        f"no model of that name answers {answers} here" if answers else "no model is called so",
        given="no name, and no such model is loaded" if name is None else name,
        expected=f"one of: {', '.join(able)}" if able else f"a model {f'of the task {task}' if task else 'that does'}",
        do=f"choose a name from {listed}" if able else "start the server with such a model: `clozeline serve --help`",
        param="model",
    )
