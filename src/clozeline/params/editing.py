"""Edits of params: in the text of params.yaml, and as attributes of its defaults.

In the text, values change, and comments, order and layout stay. `clozeline run --set` and `--config` change the file
itself, as `dvc exp run --set-param` does. So params.yaml stays the one record of what a run was made with. An
assignment to an attribute is checked at once.
"""

import re
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from copy import deepcopy
from io import StringIO
from os import PathLike
from pathlib import Path
from typing import Any, Self

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import CollectionNode, MappingNode, Node

from clozeline.params import delivery, pretraining, project, reading, schema, tasks
from clozeline.params.text import ContractParams, PreprocessParams, TokenizeParams
from clozeline.system import errors, files

# Dotted key, and its new value.
Change = tuple[str, Any]
_ALIAS = re.compile(r"\s*:\s+(\*[\w-]+)")
_COMMENT = re.compile(r" +(?=#)")

# How messages call the params.
_NAME = Path("config")
Place = tuple[str, ...]


def assignments(settings: Sequence[str]) -> list[Change]:
    """Return the changes that settings like `pretrain.steps=500` ask for; the value is YAML.

    Raises:
        ParamsError: a setting has no `=`, or its value is not YAML.
    """
    changes = []
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not key or not separator:
            raise errors.ParamsError(f"{setting!r} is not KEY=VALUE", do="write it as `--set pretrain.steps=500`")
        changes.append((key.strip(), _loaded(value, f"the value of `{key.strip()}`")))
    return changes


def changes_in(path: Path) -> list[Change]:
    """Return the changes that a file of params makes: it holds only what differs from params.yaml.

    A mapping is laid over a section with fixed keys, and replaces one whose names the user chooses, such as `finetune`.

    Raises:
        ParamsError: there is no such file, or it is not YAML with sections.
    """
    if not path.is_file():
        raise errors.ParamsError(
            f"there is no {path}", do="name a YAML file with the params that differ from params.yaml, as in configs/"
        )
    tree = _loaded(path.read_text(encoding="utf-8", errors="replace"), str(path))
    if not isinstance(tree, Mapping):
        raise errors.ParamsError(
            f"{path} holds a {type(tree).__name__}, not sections of params.yaml",
            do="write the keys that differ as the files in configs/ do",
        )
    return sorted(_leaves((), tree), key=lambda change: change[0] != "pretrain.recipe")


def edit(path: Path, changes: Sequence[Change], source: str) -> list[str]:
    """Make the changes in params.yaml, in order; return a line for each value that is different now.

    A key of `pretrain` that the chosen recipe sets is changed in the recipe. A budget replaces that of another sort, as
    `epochs` that in `steps`. The file is written only if the result can be used.

    Args:
        source: what asked for the changes, for messages.

    Raises:
        ParamsError: a key is unknown, a value is out of range, or values contradict each other.
        StorageError: the disk is full; the file is unchanged.
    """
    reading.read_params(path)
    text, lines = path.read_text(encoding="utf-8"), []
    tree = reading.with_defaults(_loaded(text, str(path)))
    for key, value in _with_one_budget(changes):
        place = pretraining.where_written(key, tree)
        changed_text = _with_value(text, place.split("."), value)
        changed = reading.with_defaults(_loaded(changed_text, source))
        if changed != tree:
            lines.append(f"{place}: {_shown(tree, place)} → {reading.on_one_line(value)}")
            text, tree = changed_text, changed
    reading.params_in(tree, Path(source))
    if lines:
        with files.replacing_file(path) as beside:
            beside.write_text(text, encoding="utf-8")
    return lines


def _with_one_budget(changes: Sequence[Change]) -> Iterator[Change]:
    budgets = [f"pretrain.{name}" for name in pretraining.BUDGETS]
    unnamed = {*budgets} - {key for key, _ in changes}
    for key, value in changes:
        yield key, value
        if key in budgets and value is not None:
            yield from ((other, None) for other in budgets if other in unnamed)


def is_section(place: Sequence[str]) -> bool:
    """Return whether the keys at `place` are the fields of a section, rather than names that a user chooses."""
    kind: Any = project.Params
    for name in place:
        field = kind.model_fields.get(name) if kind else None
        kind = schema.section_in(field.annotation) if field else None
    return kind is not None


def _leaves(place: tuple[str, ...], tree: Mapping[Any, Any]) -> Iterator[Change]:
    for name, value in tree.items():
        inner = (*place, str(name))
        if isinstance(value, Mapping) and is_section(inner):
            yield from _leaves(inner, value)
        else:
            yield ".".join(inner), value


def _loaded(text: str, source: str) -> Any:
    try:
        return YAML(typ="safe").load(text)
    except YAMLError as error:
        raise errors.ParamsError(
            f"{source} is not YAML: {' '.join(str(error).split())}",
            do="write it as in params.yaml (4.0e-3, null, [one, two], {key: value}), with quotes around a `:`",
        ) from error


def _shown(tree: Any, place: str) -> str:
    for name in place.split("."):
        tree = tree.get(name) if isinstance(tree, Mapping) else None
    return "{…}" if isinstance(tree, Mapping) and tree else reading.on_one_line(tree)


def _with_value(text: str, key: Sequence[str], value: Any) -> str:
    section: CollectionNode = YAML(typ="safe").compose(text)  # in C: a tenth of the time of the default
    for depth, name in enumerate(key):
        pairs = section.value if isinstance(section, MappingNode) else ()
        found = next((pair for pair in pairs if pair[0].value == name), None)
        if found is None:
            return _inserted(text, section, f"{name}: {reading.on_one_line(_nested(key[depth + 1 :], value))}")
        key_node, value_node = found
        if depth == len(key) - 1 or not isinstance(value_node, MappingNode):
            return _replaced(text, key_node, value_node, reading.on_one_line(_nested(key[depth + 1 :], value)))
        section = value_node
    raise AssertionError("a key has at least one name")


def _nested(key: Sequence[str], value: Any) -> Any:
    return {key[0]: _nested(key[1:], value)} if key else value


def _replaced(text: str, key: Node, value: Node, new: str) -> str:
    after_key = key.end_mark.index
    if alias := _ALIAS.match(text, after_key):
        start, end = alias.span(1)
    else:
        start, end = value.start_mark.index, _end_of(value)
    is_block = "\n" in text[after_key:end]
    if is_block or start == end:  # the value begins on a line of its own, or nothing is written
        start = text.index(":", after_key) + 1
        new = f" {new}"
    rest = text[end:]
    if not is_block and (gap := _COMMENT.match(rest)):
        width = max(len(gap[0]) - (len(new) - (end - start)), 1)
        rest = " " * width + rest[gap.end() :]
    return text[:start] + new + rest


def _inserted(text: str, section: CollectionNode, entry: str) -> str:
    if section.flow_style:
        place = section.end_mark.index - 1
        return text[:place] + (", " if section.value else "") + entry + text[place:]
    line_end = text.find("\n", _end_of(section))
    place = len(text) if line_end < 0 else line_end
    indent = " " * section.value[0][0].start_mark.column
    return f"{text[:place]}\n{indent}{entry}{text[place:]}"


def _end_of(node: Node) -> int:
    """Return the index after the last character of a node: a block's own mark is after the comments that follow it."""
    if isinstance(node, CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        key, value = last if isinstance(last, tuple) else (last, last)
        return max(int(key.end_mark.index), _end_of(value))
    return int(node.end_mark.index)


class Knobs(MutableMapping[str, Any]):
    """One section of a `Config`: its keys are attributes, and items too."""

    _tree: dict[str, Any]
    _place: Place

    def __init__(self, tree: dict[str, Any], place: Place) -> None:
        vars(self).update(_tree=tree, _place=place)

    @property
    def _values(self) -> dict[str, Any]:
        """The values of the section, with the layers under them."""
        values: dict[str, Any] = _at(project.with_layers(self._tree)[1], self._place)
        return values

    def __getitem__(self, name: str) -> Any:
        value = self._values[name]
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
        *sections, last = pretraining.where_written(key, tree).split(".")
        section = tree
        for one in sections:
            section = section.setdefault(one, {})  # a task states only what differs from its defaults
        before = section.get(last)
        if isinstance(given, Mapping) and isinstance(before, Mapping) and is_section(place):
            given = pretraining.laid_over(before, given)
        section[last] = given
        reading.check_key(tree, key, _NAME)
        self._tree.clear()
        self._tree.update(tree)
        if self._place == ("pretrain",) and name in pretraining.BUDGETS and given is not None:
            for other in pretraining.BUDGETS:
                if other != name:
                    self[other] = None

    def __delitem__(self, name: str) -> None:
        del _at(self._tree, self._place)[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # `copy` and `pickle` ask for methods before there is a tree
            raise AttributeError(name)
        if name in self:
            return self[name]
        section = ".".join(self._place) or str(_NAME)
        raise AttributeError(f"`{section}` has no key `{name}`", name=name, obj=self)

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __dir__(self) -> list[str]:
        return sorted(self)

    def __repr__(self) -> str:
        text = StringIO()
        reading.write_yaml(self._values, text)
        return text.getvalue()


class Config(Knobs):
    """All params of a run, as in params.yaml; `config.pretrain.steps = 500` sets one.

    Names, types, ranges and defaults are those of params.yaml, which explains each. `repr(config.pretrain)` shows a
    section. A key that the chosen recipe sets is set there.
    """

    seed: int
    preprocess: PreprocessParams
    tokenize: TokenizeParams
    contract: ContractParams
    recipes: dict[str, dict[str, Any]]
    pretrain: pretraining.PretrainParams
    evaluate: pretraining.EvaluateParams
    finetune_defaults: dict[str, dict[str, Any]]
    finetune: dict[str, tasks.FinetuneParams]
    export: delivery.ExportParams
    imports: dict[str, delivery.ImportParams]
    release: delivery.ReleaseParams

    def __init__(self, path: str | PathLike[str] | None = None) -> None:
        """Take the defaults, or the params in the file `path`.

        Raises:
            ParamsError: the file has faults.
        """
        if path is not None:
            reading.read_params(Path(path))
        super().__init__(reading.default_tree() if path is None else reading.read_tree(Path(path)), ())

    @property
    def checked(self) -> project.Params:
        """The params as the stages take them.

        Raises:
            ParamsError: keys contradict each other; the message lists all of them.
        """
        return reading.params_in(self._tree, _NAME)

    def copy(self) -> Self:
        """Return a copy that can be changed without a change of this one."""
        return deepcopy(self)

    def write(self, path: str | PathLike[str]) -> None:
        """Write the params as a params.yaml, for `clozeline run` and `dvc repro`.

        Raises:
            StorageError: the disk is full.
        """
        with files.replacing_file(Path(path)) as file, file.open("w", encoding="utf-8") as stream:
            reading.write_yaml(self._tree, stream)

    def __repr__(self) -> str:
        return f"Config: {', '.join(self)}"


def _at(tree: Any, place: Sequence[str]) -> Any:
    for name in place:
        tree = tree[name]
    return tree


def _plain(value: Any) -> Any:
    if isinstance(value, Knobs):
        return deepcopy(value._values)
    if isinstance(value, PathLike):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, list | tuple) else value
