"""The served models, and the choice of the model that answers a request."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from clozeline.inference.open_model import OpenModel
from clozeline.serving.errors import ApiError, problem
from clozeline.serving.observe.identity import VERSION, Identity
from clozeline.serving.scheduling.work import LoadedModel, ServedModel

Model = TypeVar("Model", bound=OpenModel)

LIST = "/models"
"""Path of the list of names, for clients whose protocol has no list."""


@dataclass(frozen=True, slots=True, eq=False)
class Ability(Generic[Model]):
    """Requirement that a model has to meet to answer a request, and the choice of the default among several such
    models."""

    model: type[Model]
    has: Callable[[Model], bool] = lambda model: True
    """Whether a model of the class has the ability."""
    rank: Callable[[Model], int] = lambda model: 0
    """The model of the lowest rank is the default; of equals, the first."""
    missing: str = "answers {route}"
    """End of the error "no served model …"."""
    expected: str = "a model that answers {route}"
    do: str = "start the server with such a model: `clozeline serve --help`"

    def of(self, served: LoadedModel) -> ServedModel[Model] | None:
        """Return the model of `served` if it has this ability, else None."""
        model = served.model
        if isinstance(model, self.model) and self.has(model):
            return ServedModel(served.identity, model)
        return None


ANY: Final = Ability(OpenModel, missing="is served")  # type: ignore[type-abstract]  # isinstance takes any class


class Catalogue:
    """The models by name, in the given order. Without a name, the first model that can answer does."""

    def __init__(self, models: Sequence[LoadedModel]) -> None:
        self._models = {served.identity.name: served for served in models}
        assert len(self._models) == len(models), "parse_sources refuses duplicate names"
        self._beside: dict[str, dict[str, LoadedModel]] = {}
        """Other versions by name and version; they answer requests that name them."""
        self._coming: dict[str, Collection[str]] = {}
        self.num_swaps = 0

    def __iter__(self) -> Iterator[LoadedModel]:
        return iter(list(self._models.values()))

    def named(self, name: str) -> LoadedModel:
        return self._models[name]

    def able(self, ability: Ability[Model]) -> list[ServedModel[Model]]:
        """Return the models of this ability, the default one first."""
        able = [one for served in self if (one := ability.of(served))]
        return sorted(able, key=lambda one: ability.rank(one.model))

    def answering(
        self, ability: Ability[Model], name: str | None = None, *, route: str = "", listed: str = LIST
    ) -> ServedModel[Model]:
        """Return the model of this ability called `name`; without a name, the default one.

        Raises:
            ApiError: 404, no such model. The error names `route`; if a model could answer, it points to `listed`.
        """
        able = self.able(ability)
        for served in able:
            if name in (None, served.identity.name):
                return served
        raise no_such_model(name, [one.identity.name for one in able], ability, route=route, listed=listed)

    def pinned(self, name: str, version: str, ability: Ability[Model]) -> ServedModel[Model]:
        """Return this version of the model called `name`.

        Raises:
            ApiError: 503, it will be here in a moment; 409, it is not served here.
        """
        others = self._beside.get(name, {})
        found = ability.of(others[version]) if version in others else None
        if found:
            return found
        served = ", ".join([self._models[name].identity.version, *others])
        raise _no_such_version(name, version, served, is_coming=version in self._coming.get(name, ()))

    def keep_beside(self, name: str, others: Sequence[LoadedModel], coming: Collection[str] = ()) -> None:
        """Let exactly these other versions of `name` answer requests that name them; `coming` are not loaded yet."""
        self._coming[name] = coming
        self._beside[name] = {served.identity.version: served for served in others}

    def swap(self, served: LoadedModel) -> Identity:
        """Replace the model of the same name by `served`; return its identity. Requests that have begun keep it."""
        before = self._models[served.identity.name].identity
        self._models[served.identity.name] = served
        self.num_swaps += 1
        return before


def _no_such_version(name: str, version: str, served: str, *, is_coming: bool) -> ApiError:
    return problem(
        503 if is_coming else 409,
        "version_not_loaded" if is_coming else "other_version",
        f"{name} is not served in that version" + (" yet" if is_coming else ""),
        given=f"{VERSION}: {version}",
        expected=f"one of: {served}",
        do="send the request again"
        if is_coming
        else "make vectors that are compared with each other by one version: "
        "begin again with the served one, or serve that version beside it (`clozeline serve --help`)",
        param=VERSION,
        headers={"retry-after": "1"} if is_coming else None,
    )


def no_such_model(
    name: str | None, able: list[str], ability: Ability[Model], *, route: str = "", listed: str = LIST
) -> ApiError:
    """Return a 404 that lists the models `able` to answer."""
    missing, expected = ability.missing.format(route=route), ability.expected.format(route=route)
    return problem(
        404,
        "no_such_model",
        f"no {'served model' if name is None else 'model of that name'} {missing}",
        given="no model name" if name is None else name,
        expected=f"one of: {', '.join(able)}" if able else expected,
        do=f"choose a name from {listed}" if able else ability.do,
        param="model",
    )
