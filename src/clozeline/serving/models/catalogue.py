"""The served models, and the choice of the model that answers a request."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from clozeline.artifacts.export.manifest import Task
from clozeline.choosing.zero_shot import can_choose, tells_entailment
from clozeline.inference.answerer import Answerer
from clozeline.inference.classifier import Classifier
from clozeline.inference.embedder import Embedder
from clozeline.inference.encoder import Encoder
from clozeline.inference.model_kinds import MODEL_KINDS, RERANK, ZERO_SHOT, kind_of
from clozeline.inference.open_model import OpenModel
from clozeline.inference.tagger import Tagger
from clozeline.serving.errors import ApiError, problem
from clozeline.serving.observe.identity import Identity
from clozeline.serving.scheduling.work import LoadedModel, ServedModel

Model = TypeVar("Model", bound=OpenModel)

LIST = "/models"
"""Path of the list of names, for clients whose protocol has no list."""
_TOKENS = ("/tokenize", "/decode")
TENSORS = "/v2/models/{model}/infer"
ANY = (*_TOKENS, TENSORS, "/invocations")
"""Routes of every model: without a name, the first model answers."""


def routes_of_kind(task: Task) -> tuple[str, ...]:
    """Return the routes of a kind of model; those of the house come first."""
    return (*kind_of(task).routes, *ANY)


def routes_of(model: OpenModel) -> list[str]:
    """Return the routes of one model. Only some models of a kind rerank, or choose among any labels."""
    not_answered: set[str] = set() if can_choose(model) else {*ZERO_SHOT}
    if not isinstance(model, Classifier) or model.relevant_label is None:
        not_answered.add(RERANK)
    return [route for route in routes_of_kind(model.manifest.task) if route not in not_answered]


class Catalogue:
    """The models by name, in the given order. Without a name, the first model that can answer does."""

    def __init__(self, models: Sequence[LoadedModel]) -> None:
        self._models = {served.identity.name: served for served in models}
        assert len(self._models) == len(models), "parse_sources refuses duplicate names"
        self.num_swaps = 0

    def __iter__(self) -> Iterator[LoadedModel]:
        return iter(list(self._models.values()))

    def named(self, name: str) -> LoadedModel:
        return self._models[name]

    def first(self, name: str | None = None, *, listed: str = LIST) -> LoadedModel:
        """Return the model called `name`, or the first of all. An unknown name gets a 404 that points to `listed`.

        Raises:
            ApiError: 404, no model has that name.
        """
        for served in self:
            if name in (None, served.identity.name):
                return served
        raise no_such_model(name, [served.identity.name for served in self], listed=listed)

    def answering(self, route: str, name: str | None) -> LoadedModel:
        """Return the model called `name`, or the first, whose kind answers `route`.

        Raises:
            ApiError: 404, no such model.
        """
        able = [served for served in self if route in routes_of_kind(served.model.manifest.task)]
        for served in able:
            if name in (None, served.identity.name):
                return served
        raise no_such_model(name, [served.identity.name for served in able], route=route)

    def swap(self, served: LoadedModel) -> Identity:
        """Replace the model of the same name by `served`; return its identity. Requests that have begun keep it."""
        before = self._models[served.identity.name].identity
        self._models[served.identity.name] = served
        self.num_swaps += 1
        return before

    def encoder(self, name: str | None) -> ServedModel[Encoder]:
        """Return the encoder called `name`, or the first.

        Raises:
            ApiError: 404, no such encoder.
        """
        return self._answering(Encoder, name)

    def embedder(self, name: str | None, *, route: str | None = None, listed: str = LIST) -> ServedModel[Embedder]:
        """Return the model called `name`, or the first, that embeds, with or without a head for masks.

        Raises:
            ApiError: 404, no such model. The error names `route` and points to `listed`.
        """
        return self._answering(Embedder, name, route=route, listed=listed)

    def classifier(self, name: str | None) -> ServedModel[Classifier]:
        """Return the classifier called `name`; without a name the first that reads single texts, else the first.

        Raises:
            ApiError: 404, no such classifier.
        """
        of_one_text = (served for served in self if not served.model.manifest.reads_pairs)
        chosen = next((served for served in of_one_text if isinstance(served.model, Classifier)), None)
        name = chosen.identity.name if chosen and name is None else name
        return self._answering(Classifier, name)

    def pair_classifier(self, route: str, name: str | None = None) -> ServedModel[Classifier]:
        """Return the classifier called `name`, or the first, that reads pairs of texts and answers `route`.

        Raises:
            ApiError: 404, no such classifier.
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
        """Return the model called `name` that chooses among any labels, or the first: by entailment, else by cloze.

        Raises:
            ApiError: 404, no such model.
        """
        able = sorted((it for it in self if can_choose(it.model)), key=lambda it: not tells_entailment(it.model))
        for served in able:
            if name in (None, served.identity.name):
                return served
        raise no_such_model(name, [served.identity.name for served in able], route=ZERO_SHOT[0])

    def tagger(self, name: str | None) -> ServedModel[Tagger]:
        """Return the tagger called `name`, or the first.

        Raises:
            ApiError: 404, no such tagger.
        """
        return self._answering(Tagger, name)

    def answerer(self, name: str | None) -> ServedModel[Answerer]:
        """Return the question-answering model called `name`, or the first.

        Raises:
            ApiError: 404, no such model.
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
    """Return a 404: no model here reads pairs of texts, or none ranks them."""
    return problem(
        404,
        "no_such_model",
        "no served model reads pairs of texts" if route != RERANK else "no served model scores the relevance of a text",
        given=f"a request to {route}",
        expected="a classifier of pairs"
        + (", with one score or a label such as `relevant`" if route == RERANK else ""),
        do="start the server with a cross-encoder, or compare embeddings of texts with /similarity",
    )


def no_such_model(
    name: str | None, able: list[str], task: Task | None = None, *, route: str | None = None, listed: str = LIST
) -> ApiError:
    """Return a 404 that lists the models `able` to answer."""
    answers = route or (" and ".join(routes_of_kind(task)[:2]) if task else None)
    return problem(
        404,
        "no_such_model",
        _missing(name, answers),
        given="no model name" if name is None else name,
        expected=f"one of: {', '.join(able)}" if able else f"a model that answers {answers}",
        do=f"choose a name from {listed}" if able else "start the server with such a model: `clozeline serve --help`",
        param="model",
    )


def _missing(name: str | None, answers: str | None) -> str:
    if name is None:
        return f"no served model answers {answers}"
    return f"no model of that name answers {answers}" if answers else "no such model is served"
