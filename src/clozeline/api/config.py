"""Params that can be edited: the defaults of params.yaml as attributes, each assignment checked at once."""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from copy import deepcopy
from io import StringIO
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from clozeline.api.editing import is_section
from clozeline.params import Params, read_params
from clozeline.params.defaults import default_tree
from clozeline.params.pretraining import BUDGETS
from clozeline.params.project import with_layers
from clozeline.params.reading import check_key, params_in, read_tree
from clozeline.params.recipes import laid_over, where_written
from clozeline.params.writing import write_yaml
from clozeline.storage.atomic import replacing_file

if TYPE_CHECKING:
    from clozeline.params import (
        ContractParams,
        EvaluateParams,
        ExportParams,
        FinetuneParams,
        ImportParams,
        PreprocessParams,
        PretrainParams,
        ReleaseParams,
        TokenizeParams,
    )

_NAME: Final = Path("config")
"""How messages call the params."""
Place = tuple[str, ...]


class Knobs(MutableMapping[str, Any]):
    """One section of a `Config`: its keys are attributes, and items too."""

    _tree: dict[str, Any]
    _place: Place

    def __init__(self, tree: dict[str, Any], place: Place) -> None:
        vars(self).update(_tree=tree, _place=place)

    def __getitem__(self, name: str) -> Any:
        found = _at(with_layers(self._tree)[1], self._place)
        if name not in found:
            raise KeyError(name)
        value = found[name]
        if isinstance(value, Mapping):
            return Knobs(self._tree, (*self._place, name))
        return tuple(value) if isinstance(value, list) else value

    def __setitem__(self, name: str, value: Any) -> None:
        """Set a key; a mapping is laid over a section of fixed keys, and replaces any other.

        A budget of `pretrain` replaces that of another sort: `epochs = 3` sets `steps` to None.

        Raises:
            ParamsError: there is no such key, or the value is of another type or out of range. Rules between keys are
                checked when the params are used.
        """
        place = (*self._place, name)
        tree = deepcopy(self._tree)
        given = _plain(value)
        key = ".".join(place)
        *sections, last = where_written(key, tree).split(".")
        section = tree
        for one in sections:
            section = section.setdefault(one, {})  # a task states only what differs from its defaults
        before = section.get(last)
        if isinstance(given, Mapping) and isinstance(before, Mapping) and is_section(place):
            given = laid_over(before, given)
        section[last] = given
        check_key(tree, key, _NAME)
        self._tree.clear()
        self._tree.update(tree)
        if self._place == ("pretrain",) and name in BUDGETS and given is not None:
            for other in BUDGETS:
                if other != name:
                    self[other] = None

    def __delitem__(self, name: str) -> None:
        del _at(self._tree, self._place)[name]

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            section = ".".join(self._place) or str(_NAME)
            raise AttributeError(f"`{section}` has no key `{name}`", name=name, obj=self) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __iter__(self) -> Iterator[str]:
        return iter(_at(with_layers(self._tree)[1], self._place))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __dir__(self) -> list[str]:
        return sorted(self)

    def __repr__(self) -> str:
        text = StringIO()
        write_yaml(_at(with_layers(self._tree)[1], self._place), text)
        return text.getvalue()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Knobs":
        return Knobs(deepcopy(self._tree), self._place)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self._tree, self._place)


def _restored(kind: type[Knobs], tree: dict[str, Any], place: Place) -> Knobs:
    """Return params that another process has sent."""
    made = kind.__new__(kind)
    Knobs.__init__(made, tree, place)
    return made


class Config(Knobs):
    """All params of a run, as in params.yaml; `config.pretrain.steps = 500` sets one.

    Names, types, ranges and defaults are those of params.yaml, which explains each. `repr(config.pretrain)` shows a
    section. A key that the chosen recipe sets is set there.
    """

    if TYPE_CHECKING:
        seed: int
        preprocess: PreprocessParams
        tokenize: TokenizeParams
        contract: ContractParams
        recipes: dict[str, dict[str, Any]]
        pretrain: PretrainParams
        evaluate: EvaluateParams
        finetune_defaults: dict[str, dict[str, Any]]
        finetune: dict[str, FinetuneParams]
        export: ExportParams
        imports: dict[str, ImportParams]
        release: ReleaseParams

    def __init__(self, path: str | PathLike[str] | None = None) -> None:
        """Take the defaults, or the params in the file `path`.

        Raises:
            ParamsError: the file has faults.
        """
        if path is None:
            super().__init__(default_tree(), ())
            return
        read_params(Path(path))
        super().__init__(read_tree(Path(path)), ())

    @property
    def checked(self) -> Params:
        """The params as the stages take them.

        Raises:
            ParamsError: keys contradict each other; the message lists all of them.
        """
        return params_in(self._tree, _NAME)

    def copy(self) -> Self:
        """Return a copy that can be changed without a change of this one."""
        made = type(self).__new__(type(self))
        Knobs.__init__(made, deepcopy(self._tree), ())
        return made

    def write(self, path: str | PathLike[str]) -> None:
        """Write the params as a params.yaml, for `clozeline run` and `dvc repro`.

        Raises:
            StorageError: the disk is full.
        """
        with replacing_file(Path(path)) as file, file.open("w", encoding="utf-8") as stream:
            write_yaml(self._tree, stream)

    def __repr__(self) -> str:
        return f"Config: {', '.join(self)}"


def _at(tree: Any, place: Sequence[str]) -> Any:
    for name in place:
        tree = tree[name]
    return tree


def _plain(value: Any) -> Any:
    if isinstance(value, Knobs):
        return deepcopy(_at(with_layers(value._tree)[1], value._place))
    if isinstance(value, PathLike):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value
