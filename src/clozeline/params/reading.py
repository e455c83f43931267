"""Read params.yaml over the defaults of all knobs, and explain what is wrong with it.

The defaults are the params.yaml of our own project, which the package carries; other projects state their changes.
Written as YAML, params have their keys in order and every alias written out. An error of a room names the fields that
it was given; here they become the names that the caller knows.
"""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any, Final, TextIO, TypeVar, get_args, get_origin

from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.reader import ReaderError

from clozeline.params.pretraining import BUDGETS, laid_over, where_written
from clozeline.params.project import Params
from clozeline.params.schema import FaultsError, IdleKeyError, UnknownKeyError, section_in
from clozeline.params.tasks import SECTIONS, FinetuneParams, where_laid
from clozeline.system.errors import ClozelineError, ParamsError
from clozeline.system.files import replacing_file

_HERE: Final = Path(__file__).parent
FILE: Final = _HERE / "defaults.yaml"
"""The project's own params.yaml: a link in a checkout, a copy in a wheel."""
_FILES_BESIDE: Final = ("recipes", "presets")
"""Sections that the package has in a file of their own."""
_LAID_OVER: Final = ("recipes", "finetune_defaults")

_EXPECTED: Final = {
    "missing": "a value for this key",
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "a section: indented lines of `key: value`"),
    **dict.fromkeys(("union_tag_not_found", "union_tag_invalid"), f"a kind of task: {', '.join(SECTIONS)}"),
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "a whole number"),
    **dict.fromkeys(("float_parsing", "float_type"), "a number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "true or false"),
    "string_type": "text",
    **dict.fromkeys(("tuple_type", "list_type"), "a list: [one, two]"),
}
"""Replacements for pydantic messages that mention its internals."""
_SHOWN_CHARACTERS: Final = 160
_AS_WRITTEN: Final = {"None": "null", "True": "true", "False": "false"}
_NOTHING: Final = ("missing", "union_tag_not_found")

_LAYERS: Final = {"recipes", "presets", "finetune_defaults"}
"""Sections that other sections are made of."""

Error = TypeVar("Error", bound=ClozelineError)
_QUOTED_KEY = re.compile(r"`([a-z]\w*(?:\.\w+)*)(: [^`]*)?`")
"""Pattern of a key in back quotes, alone or with its value."""
_ELSEWHERE: Final = {
    key.rpartition(".")[2]: key
    for key in (
        *("tokenize.algorithm", "tokenize.existing", "tokenize.vocab_size"),
        *("pretrain.model.family", "pretrain.model.max_position_embeddings", "pretrain.objective"),
        *("export.models", "export.opset"),
    )
}
"""Keys that rooms advise to change although they belong to another stage's section."""


def default_tree() -> Any:
    """Return the default params, for the caller to change."""
    return deepcopy(_defaults())


def with_defaults(tree: Any) -> Any:
    """Return `tree` completed with defaults.

    Keys that a section lacks are added. A mapping whose names the user chooses, such as `finetune` or `export.models`,
    is taken as it is, and so is the budget of `pretrain`, in steps, tokens or epochs. Recipes and presets are added to
    those of the package by name, and values under one of its names are laid over it: section by section in a recipe,
    key by key in a preset, as a task's own values are.
    """
    if not isinstance(tree, Mapping):
        return tree
    defaults = default_tree()
    whole = _completed(tree, defaults, Params)
    whole |= {name: laid_over(defaults[name], own) for name in _LAID_OVER if isinstance(own := tree.get(name), Mapping)}
    if isinstance(own := tree.get("presets"), Mapping):
        known = defaults["presets"]
        laid = {name: {**known[name], **row} for name, row in own.items() if name in known and isinstance(row, Mapping)}
        whole["presets"] = {**known, **own, **laid}
    if isinstance(own := tree.get("pretrain"), Mapping) and any(name in own for name in BUDGETS):
        whole["pretrain"] |= {name: None for name in BUDGETS if name not in own}
    return whole


@cache
def _defaults() -> dict[str, Any]:
    yaml = YAML(typ="safe")
    return {**yaml.load(FILE), **{name: yaml.load(_HERE / f"{name}.yaml") for name in _FILES_BESIDE}}


@cache
def _removed() -> dict[str, str]:
    """Return the keys of earlier versions: what became of each, as the message says it."""
    removed: dict[str, str] = YAML(typ="safe").load(_HERE / "removed.yaml")
    return removed


def _completed(own: Mapping[str, Any], default: dict[str, Any], kind: type[BaseModel]) -> dict[str, Any]:
    result = {**default, **own}
    for name, field in kind.model_fields.items():
        inner, given, usual = section_in(field.annotation), own.get(name), default.get(name)
        if inner and isinstance(given, Mapping) and isinstance(usual, Mapping):
            result[name] = _completed(given, dict(usual), inner)
    return result


def read_params(path: Path) -> Params:
    """Read and check `path`, which may state only what differs from the defaults.

    Raises:
        ParamsError: the file has faults; the message lists each key with its given and its expected value.
    """
    return params_in(read_tree(path), path)


def read_tree(path: Path) -> Any:
    """Return the YAML in `path`, completed with the defaults; its values are not checked.

    Raises:
        ParamsError: the file is missing or empty, or it is not YAML.
    """
    if not path.is_file():
        raise ParamsError(
            f"there is no {path}",
            given=path.resolve(),
            expected="the project's params.yaml",
            do="run from the project's root folder",
        )
    content = path.read_bytes()
    try:
        tree = YAML(typ="safe").load(content.decode("utf-8"))
    except (YAMLError, ValueError) as error:  # ValueError: not UTF-8, or an impossible date
        reason = _place_and_reason(path, content, error)
        is_alias = "undefined alias" in reason
        raise ParamsError(
            f"{path} is not YAML",
            given=reason,
            expected="UTF-8 text: `key: value` lines, indented with spaces, each key once",
            do="correct the line named above" + ("; a preset is taken by `preset: NAME`" if is_alias else ""),
        ) from error
    if tree is None:
        raise ParamsError(f"{path} is empty", given="nothing", expected="sections", do=f"run `git checkout -- {path}`")
    return with_defaults(tree)


def params_in(tree: Any, name: Path) -> Params:
    """Return the params in `tree`, which messages call `name`.

    Raises:
        ParamsError: the tree has faults, as in `read_params`.
    """
    try:
        return Params.model_validate(tree)
    except ValidationError as error:
        raise _all_faults(name, tree, list(_flat(error))) from error


def check_key(tree: Any, key: str, name: Path) -> None:
    """Check the value at the dotted `key` of `tree` alone: rules that it shares with other keys may be broken.

    Raises:
        ParamsError: the key is unknown, or its value is of another type or out of range.
    """
    try:
        Params.model_validate(tree)
    except ValidationError as error:
        if faults := [fault for fault in _flat(error) if _is_about(fault, key, tree)]:
            raise _all_faults(name, tree, faults) from error


def _is_about(fault: Any, key: str, tree: Any) -> bool:
    """Return whether the fault is in `key` or a part of it, and in nothing else."""
    unknown = _unknown(fault, tree)
    if unknown is not None:
        places = [unknown.place]
    elif fault["type"] == "value_error":  # of our own checks, with the keys that it is about
        places = [".".join([*map(str, _location(fault)), inner]) for inner in fault["ctx"]["error"].args[-1]]
    else:
        places = [_key(fault)]
    return all(place == key or place.startswith(f"{key}.") for place in places)


def where_set(key: str, tree: Any) -> str:
    """Return the key at which `tree` sets `key`: itself, in a recipe or preset, or in the defaults of tasks."""
    return where_laid(where_written(key, tree), tree)


def _place_and_reason(path: Path, content: bytes, error: Exception) -> str:
    reason = " ".join(str(error).replace('"<unicode string>"', str(path)).split())
    if isinstance(error, UnicodeDecodeError):
        start = error.start
    elif isinstance(error, ReaderError):
        start = content.index(chr(error.character).encode("utf-8"))
    else:
        return reason.partition(" To suppress this check")[0]
    line = content.count(b"\n", 0, start) + 1
    return f"{path}, line {line}: {reason}"


def _all_faults(path: Path, tree: Any, given: Sequence[Any]) -> ParamsError:
    """Return one error about all faults, each once: unknown keys first, numbered if there are several."""
    faults = sorted(given, key=lambda fault: fault["type"] != "extra_forbidden")
    unknown = [found for fault in faults if (found := _unknown(fault, tree))]
    errors = [_error_of(path, tree, fault) for fault in faults if not _follows(fault, unknown)]
    first, *others = {one.problem: one for one in errors}.values()
    if not others:
        return ParamsError(f"{path}: {first.problem}", given=first.given, expected=first.expected, do=first.do)
    every = [first, *others]
    problems = "".join(f"\n  {number}. {one.problem}" for number, one in enumerate(every, start=1))
    return ParamsError(
        f"{path} has {len(every)} faults{problems}",
        given=_numbered([one.given for one in every]),
        expected=_numbered([one.expected for one in every]),
        do=_numbered([one.do for one in every]),
    )


def _flat(error: ValidationError) -> Iterator[Any]:
    """Yield pydantic's records of faults, those of a `FaultsError` one by one."""
    for fault in error.errors():
        cause = fault.get("ctx", {}).get("error")
        for inner in cause.faults if isinstance(cause, FaultsError) else ():
            if isinstance(inner, ValidationError):
                yield from _flat(inner)
            else:
                yield {**fault, "ctx": {"error": inner}}
        if not isinstance(cause, FaultsError):
            yield fault


def _unknown(fault: Any, tree: Any) -> UnknownKeyError | None:
    """Return the unknown key of this fault, with the place where it is written; None: it is a fault of another sort."""
    cause = fault.get("ctx", {}).get("error")
    if fault["type"] == "extra_forbidden":
        place, location = where_set(_key(fault), tree), fault["loc"]
        return UnknownKeyError(place, str(location[-1]), fault["input"], _keys_beside(location))
    return cause if isinstance(cause, UnknownKeyError) else None


def _follows(fault: Any, unknown: Sequence[UnknownKeyError]) -> bool:
    """Return whether a missing key may only be misspelt; its misspelling is already reported as an unknown key."""
    is_task = fault["loc"][:1] == ("finetune",)
    return fault["type"] == "missing" and any(
        _near(one) == fault["loc"][-1] or (is_task and one.place.startswith("finetune_defaults.")) for one in unknown
    )


def _error_of(path: Path, tree: Any, fault: Any) -> ParamsError:
    """Return the error about one fault; its problem does not name `path`."""
    if unknown := _unknown(fault, tree):
        section, _, rest = unknown.place.partition(".")  # a recipe has the keys of `pretrain`
        place = f"pretrain.{rest.partition('.')[2]}" if section == "recipes" else unknown.place
        if became := _removed().get(place) or _removed().get(unknown.name):
            return ParamsError(
                f"`{unknown.place}` {became}",
                given=f"{unknown.name}: {_short(unknown.value)}",
                expected="a file without this key",
                do=f"rename it in {path}" if became.startswith("is now ") else f"remove it from {path}",
            )
        near = _near(unknown)
        return ParamsError(
            f"unknown key `{unknown.place}`",
            given=f"{unknown.name}: {_short(unknown.value)}",
            expected=f"one of: {', '.join(unknown.known)}",
            do=f"rename it to `{near}`" if near else "remove it, or correct its name",
        )
    expected = _EXPECTED.get(fault["type"], fault["msg"]).removeprefix("Input should be ")
    given = {_key(fault): fault["ctx"]["tag"] if fault["type"] == "union_tag_invalid" else fault["input"]}
    if fault["type"] == "value_error":  # raised by our own checks, with the values of some keys of the section
        expected, values = fault["ctx"]["error"].args
        given = {".".join([*map(str, _location(fault)), inner]): value for inner, value in values.items()}
    given = {where_set(name, tree): value for name, value in given.items()}
    names = [f"`{name}`" for name in given]
    remedy = f"set {' or '.join(names)} in {path}"
    if isinstance(fault.get("ctx", {}).get("error"), IdleKeyError):
        remedy = f"remove it from {path}"
    elif fault["type"] == "string_type" and isinstance(fault["input"], int | float):  # such as a label
        remedy = f"write it in quotes in {path}: '{_short(fault['input'])}'"
    return ParamsError(
        f"{' and '.join(names)} cannot be used{' together' if len(names) > 1 else ''}",
        given="nothing" if fault["type"] in _NOTHING else ", ".join(f"{k}: {_short(v)}" for k, v in given.items()),
        expected=expected,
        do=remedy,
    )


def _near(unknown: UnknownKeyError) -> str | None:
    return next(iter(difflib.get_close_matches(unknown.name, unknown.known, n=1)), None)


def _numbered(parts: Sequence[object]) -> str:
    return ("\n" + " " * 12).join(f"{number}. {part}" for number, part in enumerate(parts, start=1))


def _key(fault: Any) -> str:
    return ".".join(map(str, _location(fault))) or "(whole file)"


def _location(fault: Any) -> tuple[int | str, ...]:
    """Return the keys as in the file: pydantic adds a task's kind after its name, and omits a missing key `kind`."""
    keys: tuple[int | str, ...] = fault["loc"]
    if fault["type"].startswith("union_tag"):
        return (*keys, "kind")
    return keys[:2] + keys[3:] if keys[:1] == ("finetune",) and len(keys) > 2 else keys


def _keys_beside(location: tuple[int | str, ...]) -> list[str]:
    """Return the names of the keys that are allowed in the same section as `location`."""
    kind: Any = Params
    for part in location[:-1]:
        if kind is FinetuneParams:
            kind = SECTIONS[str(part)]
        elif get_origin(kind) is dict:
            kind = section_in(get_args(kind)[1])
        else:
            inner = kind.model_fields[part].annotation
            kind = section_in(inner) or inner
    return sorted(kind.model_fields)


def _short(value: object) -> str:
    """Return the value in YAML notation, shortened."""
    text = "{…}" if isinstance(value, dict) else _AS_WRITTEN.get(repr(value), repr(value))
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"


def complete_tree(params: Params) -> dict[str, Any]:
    """Return the params as the stages take them: the recipe is laid over `pretrain`, and each task is complete."""
    return params.model_dump(mode="json", exclude=_LAYERS)


def write_complete(params: Params, path: Path) -> None:
    """Write the `complete_tree`.

    DVC compares their values: an edit of a default, a recipe or a preset runs the stages whose values it changes. A
    file that says the same already is not touched.

    Raises:
        StorageError: the disk is full.
    """
    text = StringIO()
    write_yaml(complete_tree(params), text)
    if path.is_file() and path.read_text(encoding="utf-8") == text.getvalue():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing_file(path) as beside:
        beside.write_text(text.getvalue(), encoding="utf-8")


def write_yaml(tree: Any, stream: TextIO) -> None:
    """Write `tree` with a line for each key."""
    _yaml(on_one_line=False).dump(tree, stream)


def on_one_line(value: Any) -> str:
    """Return the value as YAML on one line."""
    yaml, stream = _yaml(on_one_line=True), StringIO()
    yaml.width = 1 << 20
    yaml.dump(value, stream)
    return stream.getvalue().removesuffix("...\n").strip()


def _yaml(*, on_one_line: bool) -> YAML:
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = on_one_line
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # None in its class
    yaml.representer.ignore_aliases = lambda data: True
    return yaml


def renamed(
    error: Error,
    name_of: Callable[[str], str | None],
    where: str = "",
    advised: Callable[[str], str | None] | None = None,
) -> Error:
    """Return `error` with other names for those in back quotes.

    Args:
        name_of: returns the new name; None keeps the old one.
        where: place that the error's advice names after the last key.
        advised: like `name_of`, for the advice; None: the same function.
    """
    advised = advised or name_of
    changed = [found.end() for found in _QUOTED_KEY.finditer(error.do) if advised(found[1])]
    end = changed[-1] if changed else 0
    return type(error)(
        _renamed(error.problem, name_of),
        given=_renamed(error.given, name_of) if isinstance(error.given, str) else error.given,
        expected=_renamed(error.expected, name_of),
        do=_renamed(error.do[:end], advised) + (where if changed else "") + _renamed(error.do[end:], advised),
    )


def in_params(error: Error, path: Path, place: str, section: BaseModel, called: str = "") -> Error:
    """Return `error` with its field names replaced by keys of the params.yaml `path`; `section` is the value at
    `place`. `called`: name of the params for the caller; empty: that of the file.
    """
    key_of = _keys_of(path, place, section)
    where = "" if path.name in error.do else f" in {called or path.name}"
    return renamed(error, key_of, where, lambda name: key_of(name) or _ELSEWHERE.get(name))


def with_keys(text: str, path: Path, place: str, section: BaseModel) -> str:
    """Return `text` with the keys of `path` in place of the fields that it names, like `in_params`."""
    key_of = _keys_of(path, place, section)
    return _renamed(text, lambda name: key_of(name) or _ELSEWHERE.get(name))


def _renamed(text: str, name_of: Callable[[str], str | None]) -> str:
    return _QUOTED_KEY.sub(lambda found: f"`{name_of(found[1]) or found[1]}{found[2] or ''}`", text)


def _keys_of(path: Path, place: str, section: BaseModel) -> Callable[[str], str | None]:
    """Return a function that maps a field to its key in `path`.

    The field belongs to the section, or to its only subsection with such a field, because some rooms get only a
    subsection.
    """

    def key_of(name: str) -> str | None:
        inside = [f"{inner}." for inner, part in section if isinstance(part, BaseModel) and _has(part, name)]
        if (is_own := _has(section, name)) or len(inside) == 1:
            return where_set(f"{place}.{'' if is_own else inside[0]}{name}", read_tree(path))
        return None

    return key_of


def _has(section: object, name: str) -> bool:
    """Return whether the section has such a field; a part that is null counts as having any."""
    for part in name.split("."):
        if not isinstance(section, BaseModel):
            return section is None
        if part not in type(section).model_fields:
            return False
        section = getattr(section, part)
    return True
